/* Notices that other programs want the cores, a *crowd*, and makes the threads of GNU OpenMP spin only briefly while
 * they do. _replay.pyx calls it before each kernel or list of kernels.
 *
 * Between two parallel loops threads spin, since waking one that sleeps takes 3 to 80 microseconds. But on a core that
 * others want, a spinning thread may keep the thread that it waits for from running: steps took up to 94 times as long.
 * GNU OpenMP settles how long threads spin when it is loaded (waiting.py), with one exception that its documentation
 * mentions under GOMP_SPINCOUNT: in a process with more OpenMP threads than cores, threads spin 100 times at most. So
 * in a crowd, a helper thread starts a team of so many threads that there are more than cores, and sleeps.
 *
 * How a crowd is recognised: the second number of /proc/PID/task/TID/schedstat says how long a thread was ready to run
 * and had no core. On a quiet machine this is a hundredth of the time, and beside one busy program most of it, summed
 * over all threads (benchmarks/NOTES.md). Since Linux may put two threads on one core for some hundredths of a second
 * though other cores are idle, several looks in a row have to find a crowd.
 *
 * How its end is recognised: not by that number, as threads that sleep wait for a core whenever they are woken, on some
 * machines for a quarter of the time. Instead, after a while threads are allowed to spin again. If that shows the crowd
 * to be still there, the next such trial comes later. */
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

#define TAGI_CROWD_WINDOW 0.05 /* seconds between two looks */
#define TAGI_CROWD_WANTED 0.2 /* there is a crowd if threads waited for a core for more than this share of that time, */
#define TAGI_CROWD_WINDOWS 4  /* in so many looks in a row */
#define TAGI_CROWD_TRIAL 0.5  /* seconds from the beginning of a crowd to the first trial */
#define TAGI_CROWD_PATIENCE 8.0 /* the same for later trials, at most */

static pthread_mutex_t tagi_crowd_lock = PTHREAD_MUTEX_INITIALIZER; /* protects what follows */
static pthread_cond_t tagi_crowd_over = PTHREAD_COND_INITIALIZER;
static int tagi_crowd_watched, tagi_crowded,
    tagi_crowd_team;                              /* crowd_team: size of the helper thread's team, 0 if there is none */
static int tagi_crowd_windows;                    /* looks in a row that have found a crowd */
static double tagi_crowd_seen, tagi_crowd_waited; /* when we looked last, and how long threads had waited, in seconds */
static double tagi_crowd_patience, tagi_crowd_until; /* seconds from a crowd to its trial, and when that is due */

/* Seconds since some moment; reading this coarse clock is cheap. */
static double tagi_crowd_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

/* Seconds that the threads of this process have waited for a core since they began; 0 where the system does not say. */
static double tagi_crowd_wait(void) {
    double seconds = 0;
    DIR *threads = opendir("/proc/self/task");
    if (!threads) return 0;
    for (struct dirent *thread; (thread = readdir(threads));) {
        char path[300], line[100];
        unsigned long long waited;
        if (thread->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/schedstat", thread->d_name);
        int file = openat(dirfd(threads), path, O_RDONLY | O_CLOEXEC);
        if (file < 0) continue; /* the thread has ended */
        ssize_t length = read(file, line, sizeof line - 1);
        close(file);
        line[length > 0 ? length : 0] = 0;
        if (sscanf(line, "%*llu %llu", &waited) == 1) seconds += 1e-9 * waited;
    }
    closedir(threads);
    return seconds;
}

/* What the helper thread runs: it starts a team, and sleeps until the crowd is over. */
static void *tagi_crowd_keep(void *unused) {
    (void)unused;
    pthread_mutex_lock(&tagi_crowd_lock);
    int team = tagi_crowd_team;
    pthread_mutex_unlock(&tagi_crowd_lock);
#pragma omp parallel num_threads(team)
    {
        __asm__ volatile(""); /* else the compiler would leave the parallel region out */
    }
    pthread_mutex_lock(&tagi_crowd_lock);
    while (tagi_crowded) pthread_cond_wait(&tagi_crowd_over, &tagi_crowd_lock);
    tagi_crowd_team = 0;
    pthread_mutex_unlock(&tagi_crowd_lock);
    return NULL; /* GNU OpenMP ends the team with the thread that started it */
}

/* Starts the helper thread, and returns whether it did; the caller holds the lock. All signals are blocked meanwhile,
 * and so in the new threads, as the program's signals are for its own threads. */
static int tagi_crowd_begin(int threads) {
    pthread_t thread;
    sigset_t all, before;
    if (tagi_crowd_team) return 0; /* the helper thread of the last crowd has not ended yet */
    tagi_crowd_team = omp_get_num_procs() - threads + 2;
    if (tagi_crowd_team < 2) tagi_crowd_team = 2;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    tagi_crowded = pthread_create(&thread, NULL, tagi_crowd_keep, NULL) == 0;
    if (tagi_crowded)
        pthread_detach(thread);
    else
        tagi_crowd_team = 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return tagi_crowded;
}

/* Looks for a crowd, or for the end of one, if that is due. Whoever is about to compute on so many threads calls it.
 * Usually it only reads the clock. */
static void tagi_notice_crowd(int threads) {
    if (threads < 2 || !tagi_crowd_watched || pthread_mutex_trylock(&tagi_crowd_lock)) return;
    double now = tagi_crowd_clock(), seconds = now - tagi_crowd_seen;
    if (tagi_crowded ? now >= tagi_crowd_until : seconds >= TAGI_CROWD_WINDOW) {
        double waited = tagi_crowd_wait();
        tagi_crowd_windows =
            !tagi_crowded && waited - tagi_crowd_waited > TAGI_CROWD_WANTED * seconds ? tagi_crowd_windows + 1 : 0;
        if (tagi_crowded) {
            tagi_crowded = 0;
            pthread_cond_signal(&tagi_crowd_over);
        } else if (tagi_crowd_windows >= TAGI_CROWD_WINDOWS && tagi_crowd_begin(threads)) {
            tagi_crowd_patience =
                now - tagi_crowd_until < 1 ? 2 * tagi_crowd_patience : TAGI_CROWD_TRIAL; /* soon after a trial */
            if (tagi_crowd_patience > TAGI_CROWD_PATIENCE) tagi_crowd_patience = TAGI_CROWD_PATIENCE;
            tagi_crowd_until = now + tagi_crowd_patience;
        }
        tagi_crowd_seen = now;
        tagi_crowd_waited = waited;
    }
    pthread_mutex_unlock(&tagi_crowd_lock);
}

static void tagi_watch_crowd(int on) { tagi_crowd_watched = on; }
static int tagi_is_crowded(void) { return tagi_crowded; }
#else
static void tagi_notice_crowd(int threads) { (void)threads; }
static void tagi_watch_crowd(int on) { (void)on; }
static int tagi_is_crowded(void) { return 0; }
#endif

#endif
