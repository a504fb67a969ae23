/* Notices that other programs want the cores, and lets the threads of GNU OpenMP wait only briefly while they do.
 *
 * Between two loops threads spin, since to wake one that sleeps takes 3 to 80 microseconds. On a core that others want,
 * spinning is what keeps the thread that all wait for from running: steps took up to 94 times as long. How long threads
 * spin is settled when GNU OpenMP is loaded (waiting.py), with one exception, which it documents under GOMP_SPINCOUNT: a
 * process with more OpenMP threads than there are cores spins 100 times at most. So, while others want the cores, a
 * thread of ours keeps a team that makes up that number, and sleeps.
 *
 * How long our threads could have run and had no core tells (the second number of /proc/PID/task/TID/schedstat): for a
 * hundredth of the time on a quiet machine, and for most of it, all threads together, beside one busy program
 * (benchmarks/NOTES.md). A system may put two threads on one core for some hundredths of a second though others are idle,
 * so several looks in a row have to find it. Threads that sleep do not tell whether the others have gone: to be woken is
 * to wait, on some machines for a quarter of the time. So the end is found by trial: after a while threads spin again,
 * and where that shows the others to be there still, the next trial comes later. */
#ifndef PYTAGI_DDP_CROWD_H
#define PYTAGI_DDP_CROWD_H

#if defined(__linux__) && defined(_OPENMP) && defined(__GNUC__) && !defined(__clang__)
#include <dirent.h>
#include <fcntl.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define CROWD_WINDOW 0.05  /* seconds between two looks */
#define CROWD_WANTED 0.2   /* share of them that threads waited for a core: from there on others want it, */
#define CROWD_WINDOWS 4    /* if so many looks in a row find that */
#define CROWD_TRIAL 0.5    /* seconds until the first trial, */
#define CROWD_PATIENCE 8.0 /* and until a later one, at most */

static pthread_mutex_t crowd_lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static pthread_cond_t crowd_over = PTHREAD_COND_INITIALIZER;
static int crowd_watched, crowded, crowd_team; /* crowd_team: threads that the sleeping team has */
static int crowd_windows;                      /* looks in a row that have found a crowd */
static double crowd_seen, crowd_waited;        /* when we looked last, and how long threads had waited, in seconds */
static double crowd_patience, crowd_until;     /* seconds from a crowd to its trial, and when that is due */

static double crowd_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

/* Seconds that the threads of this process have waited for a core since they began; 0 where the system does not say. */
static double crowd_wait(void) {
    double seconds = 0;
    DIR *threads = opendir("/proc/self/task");
    if (!threads) return 0;
    for (struct dirent *thread; (thread = readdir(threads));) {
        char path[300], line[100];
        unsigned long long waited;
        if (thread->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/schedstat", thread->d_name);
        int file = openat(dirfd(threads), path, O_RDONLY | O_CLOEXEC);
        if (file < 0) continue; /* it has ended */
        ssize_t length = read(file, line, sizeof line - 1);
        close(file);
        line[length > 0 ? length : 0] = 0;
        if (sscanf(line, "%*llu %llu", &waited) == 1) seconds += 1e-9 * waited;
    }
    closedir(threads);
    return seconds;
}

static void *crowd_keep(void *unused) {
    (void)unused;
    pthread_mutex_lock(&crowd_lock);
    int team = crowd_team;
    pthread_mutex_unlock(&crowd_lock);
#pragma omp parallel num_threads(team)
    {
        __asm__ volatile(""); /* else the compiler leaves the region out */
    }
    pthread_mutex_lock(&crowd_lock);
    while (crowded) pthread_cond_wait(&crowd_over, &crowd_lock);
    crowd_team = 0;
    pthread_mutex_unlock(&crowd_lock);
    return NULL; /* and the team ends with its thread */
}

/* With the lock held; returns whether it did. The signals of the program are not for the new threads. */
static int crowd_begin(int threads) {
    pthread_t thread;
    sigset_t all, before;
    if (crowd_team) return 0; /* the last one is still ending: next time */
    crowd_team = omp_get_num_procs() - threads + 2;
    if (crowd_team < 2) crowd_team = 2;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    crowded = pthread_create(&thread, NULL, crowd_keep, NULL) == 0;
    if (crowded)
        pthread_detach(thread);
    else
        crowd_team = 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return crowded;
}

/* To be called now and then by who works on so many threads; usually it only reads the clock. */
static void notice_crowd(int threads) {
    if (threads < 2 || !crowd_watched || pthread_mutex_trylock(&crowd_lock)) return;
    double now = crowd_clock(), seconds = now - crowd_seen;
    if (crowded ? now >= crowd_until : seconds >= CROWD_WINDOW) {
        double waited = crowd_wait();
        crowd_windows = !crowded && waited - crowd_waited > CROWD_WANTED * seconds ? crowd_windows + 1 : 0;
        if (crowded) {
            crowded = 0;
            pthread_cond_signal(&crowd_over);
        } else if (crowd_windows >= CROWD_WINDOWS && crowd_begin(threads)) {
            crowd_patience = now - crowd_until < 1 ? 2 * crowd_patience : CROWD_TRIAL; /* 1: a trial that has failed */
            if (crowd_patience > CROWD_PATIENCE) crowd_patience = CROWD_PATIENCE;
            crowd_until = now + crowd_patience;
        }
        crowd_seen = now;
        crowd_waited = waited;
    }
    pthread_mutex_unlock(&crowd_lock);
}

static void watch_crowd(int on) { crowd_watched = on; }
static int is_crowded(void) { return crowded; }
#else
static void notice_crowd(int threads) { (void)threads; }
static void watch_crowd(int on) { (void)on; }
static int is_crowded(void) { return 0; }
#endif

#endif
