/* Notices that other programs want the cores, and lets the threads of GNU OpenMP wait only briefly while they do.
 *
 * Between two loops threads spin, since to wake one that sleeps takes 3 to 80 microseconds. On a core that others want,
 * spinning is what keeps the thread that all wait for from running: steps took up to 94 times as long. How long threads
 * spin is settled when GNU OpenMP is loaded (waiting.py), with one exception, which it documents under GOMP_SPINCOUNT: a
 * process with more OpenMP threads than there are cores spins 100 times at most. So, while others want the cores, a
 * thread of ours keeps a team that makes up that number, and sleeps.
 *
 * How often the system has taken a core from one of our threads tells (`ru_nivcsw` of getrusage): 10 to 30 times a second
 * and thread on a quiet machine, 200 to 16,000 beside one busy program (benchmarks/NOTES.md). */
#ifndef PYTAGI_DDP_CROWD_H
#define PYTAGI_DDP_CROWD_H

#if defined(__linux__) && defined(_OPENMP) && defined(__GNUC__) && !defined(__clang__)
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

#define CROWD_WANTED 150 /* times a second and thread that a core is taken, from which on others want it */
#define CROWD_QUIET 50   /* and below which they do no longer */

static pthread_mutex_t crowd_lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows */
static pthread_cond_t crowd_over = PTHREAD_COND_INITIALIZER;
static int crowd_watched, crowded, crowd_team; /* crowd_team: threads that the sleeping team has */
static double crowd_seen;                      /* when we looked last, in seconds */
static long crowd_taken;                       /* and the times that cores were taken until then */

static double crowd_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
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

/* With the lock held. The signals of the program are not for the new threads. */
static void crowd_begin(int threads) {
    pthread_t thread;
    sigset_t all, before;
    if (crowd_team) return; /* the last one is still ending: next time */
    crowd_team = omp_get_num_procs() - threads + 2;
    if (crowd_team < 2) crowd_team = 2;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, crowd_keep, NULL) == 0) {
        pthread_detach(thread);
        crowded = 1;
    } else {
        crowd_team = 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* To be called now and then by who works on so many threads; usually it only reads the clock. */
static void notice_crowd(int threads) {
    struct rusage usage;
    if (threads < 2 || !crowd_watched || pthread_mutex_trylock(&crowd_lock)) return;
    double now = crowd_clock(), seconds = now - crowd_seen;
    if (seconds >= (crowded ? 0.25 : 0.05) && getrusage(RUSAGE_SELF, &usage) == 0) {
        double taken = (usage.ru_nivcsw - crowd_taken) / (seconds * threads);
        if (crowded && taken < CROWD_QUIET) {
            crowded = 0;
            pthread_cond_signal(&crowd_over);
        } else if (!crowded && taken > CROWD_WANTED) {
            crowd_begin(threads);
        }
        crowd_seen = now;
        crowd_taken = usage.ru_nivcsw;
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
