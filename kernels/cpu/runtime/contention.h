/* CPU contention: detects that other programs need the cores, and then makes the threads of GNU OpenMP spin only
 * briefly. _replay.pyx calls it before each kernel or list of kernels.
 *
 * Between two parallel loops threads spin, because waking a sleeping thread takes 3 to 80 microseconds. But under
 * contention, a spinning thread may prevent the thread that it waits for from running: steps took up to 94 times as
 * long. GNU OpenMP reads the time of spinning when it is loaded (waiting.py). Its documentation mentions one exception,
 * under GOMP_SPINCOUNT: in a process with more OpenMP threads than cores, threads spin 100 times at most. So under
 * contention, a helper thread starts a team, such that there are more threads than cores, and sleeps.
 *
 * Detection of contention: the second number of /proc/PID/task/TID/schedstat is the time that a thread was ready to run
 * and had no core. On a quiet machine this is a hundredth of the time, and with one busy program most of it, summed
 * over all threads (benchmarks/NOTES.md). Linux may put two threads on one core for some hundredths of a second
 * although other cores are idle. So several consecutive looks have to find contention.
 *
 * Detection of its end: that number cannot be used, because sleeping threads wait for a core whenever they wake, on
 * some machines for a quarter of the time. Instead, threads spin again after a while. If there is still contention, the
 * next such trial comes later. */
#ifndef PYTAGI_DDP_CONTENTION_H
#define PYTAGI_DDP_CONTENTION_H

#if defined(__linux__) && defined(_OPENMP) && defined(__GNUC__) && !defined(__clang__)
#include <dirent.h>
#include <fcntl.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define TAGI_CONTENTION_WINDOW 0.05 /* seconds between two looks */
#define TAGI_CONTENTION_WANTED 0.2 /* contention: threads waited for a core for more than this share of the time, */
#define TAGI_CONTENTION_WINDOWS 4  /* in this number of consecutive looks */
#define TAGI_CONTENTION_TRIAL 0.5  /* seconds from the beginning of contention to the first trial */
#define TAGI_CONTENTION_PATIENCE 8.0 /* the same for later trials, at most */

static pthread_mutex_t tagi_contention_lock = PTHREAD_MUTEX_INITIALIZER; /* protects the variables below */
static pthread_cond_t tagi_contention_over = PTHREAD_COND_INITIALIZER;
static _Atomic int tagi_contention_watched, tagi_contended; /* also read without the lock */
static int tagi_contention_team;                            /* size of the helper thread's team, 0 if there is none */
static int tagi_contention_windows;                    /* consecutive looks that have found contention */
static double tagi_contention_seen, tagi_contention_waited; /* last look, and waiting time of threads then */
static double tagi_contention_patience, tagi_contention_until; /* seconds until a trial, and time of the trial */

/* Seconds of a coarse clock, which is fast to read. */
static double tagi_contention_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

/* Seconds that the threads of this process have waited for a core since they began; 0 if unknown. */
static double tagi_contention_wait(void) {
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
        if (sscanf(line, "%*u %llu", &waited) == 1) seconds += 1e-9 * waited;
    }
    closedir(threads);
    return seconds;
}

/* The helper thread: it starts a team, and sleeps until the contention is over. */
static void *tagi_contention_keep(void *unused) {
    (void)unused;
    pthread_mutex_lock(&tagi_contention_lock);
    int team = tagi_contention_team;
    pthread_mutex_unlock(&tagi_contention_lock);
#pragma omp parallel num_threads(team)
    {
        __asm__ volatile(""); /* otherwise the compiler would omit the parallel region */
    }
    pthread_mutex_lock(&tagi_contention_lock);
    while (tagi_contended) pthread_cond_wait(&tagi_contention_over, &tagi_contention_lock);
    tagi_contention_team = 0;
    pthread_mutex_unlock(&tagi_contention_lock);
    return NULL; /* GNU OpenMP ends the team with the thread that started it */
}

/* Starts the helper thread, and returns whether it did; the caller has the lock. All signals are blocked meanwhile, and
 * so in the new threads, because signals are for the threads of the program. */
static int tagi_contention_begin(int threads) {
    pthread_t thread;
    sigset_t all, before;
    if (tagi_contention_team) return 0; /* the helper thread of the last contention has not ended yet */
    tagi_contention_team = omp_get_num_procs() - threads + 2;
    if (tagi_contention_team < 2) tagi_contention_team = 2;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    tagi_contended = pthread_create(&thread, NULL, tagi_contention_keep, NULL) == 0;
    if (tagi_contended)
        pthread_detach(thread);
    else
        tagi_contention_team = 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return tagi_contended;
}

/* Looks for contention, or for its end, if that is due. Called before a computation on `threads` threads. Usually it
 * only reads the clock. */
static void tagi_check_contention(int threads) {
    if (threads < 2 || !tagi_contention_watched || pthread_mutex_trylock(&tagi_contention_lock)) return;
    double now = tagi_contention_clock(), seconds = now - tagi_contention_seen;
    if (tagi_contended ? now >= tagi_contention_until : seconds >= TAGI_CONTENTION_WINDOW) {
        double waited = tagi_contention_wait();
        int found = !tagi_contended && waited - tagi_contention_waited > TAGI_CONTENTION_WANTED * seconds;
        tagi_contention_windows = found ? tagi_contention_windows + 1 : 0;
        if (tagi_contended) {
            tagi_contended = 0;
            pthread_cond_signal(&tagi_contention_over);
        } else if (tagi_contention_windows >= TAGI_CONTENTION_WINDOWS && tagi_contention_begin(threads)) {
            int soon = now - tagi_contention_until < 1; /* after a trial */
            tagi_contention_patience = soon ? 2 * tagi_contention_patience : TAGI_CONTENTION_TRIAL;
            if (tagi_contention_patience > TAGI_CONTENTION_PATIENCE)
                tagi_contention_patience = TAGI_CONTENTION_PATIENCE;
            tagi_contention_until = now + tagi_contention_patience;
        }
        tagi_contention_seen = now;
        tagi_contention_waited = waited;
    }
    pthread_mutex_unlock(&tagi_contention_lock);
}

static void tagi_watch_contention(int on) { tagi_contention_watched = on; }
static int tagi_is_contended(void) { return tagi_contended; }
#else
static void tagi_check_contention(int threads) { (void)threads; }
static void tagi_watch_contention(int on) { (void)on; }
static int tagi_is_contended(void) { return 0; }
#endif

#endif
