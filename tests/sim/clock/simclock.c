// SPDX-License-Identifier: Apache-2.0
//
// Virtual time for the processes that preload this and name the same SIMCLOCK_FILE: CLOCK_MONOTONIC stands still while
// any of their threads runs, and jumps to the next wake-up once all sleep. A thread that asks for the time ages by
// ASK_NS, so that polling ends. The clock starts when SIMCLOCK_PARTIES processes are there.
//
// Threads that block in anything but nanosleep and pthread_join hold the time up.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))

enum { SLEEPERS = 512, ASK_NS = 100 };
enum state { FREE, RUNS, SLEEPS, AWAY };

struct clock {
    uint32_t ready;
    int32_t joined;  // processes that came
    pthread_mutex_t lock;
    uint32_t ticks;  // a futex
    int64_t now;
    struct sleeper {
        int32_t pid;
        int32_t state;
        int64_t wake;
    } sleepers[SLEEPERS];
};

static struct clock *shared;
static int parties;
static bool leaving;  // this process ends: its other threads shall not come back
static pthread_key_t key;
static __thread struct sleeper *me;

static void lock(void) {
    if (pthread_mutex_lock(&shared->lock) == EOWNERDEAD)
        pthread_mutex_consistent(&shared->lock);
}

static void unlock(void) {
    pthread_mutex_unlock(&shared->lock);
}

static void wake_all(void) {
    shared->ticks++;
    syscall(SYS_futex, &shared->ticks, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static struct sleeper *enlist(void) {
    for (int i = 0; i < SLEEPERS; i++)
        if (shared->sleepers[i].state == FREE) {
            shared->sleepers[i] = (struct sleeper){getpid(), RUNS, 0};
            return &shared->sleepers[i];
        }
    abort();
}

// The caller holds the lock.
static void tick(void) {
    int64_t next = INT64_MAX;
    for (int i = 0; i < SLEEPERS; i++) {
        const struct sleeper *sleeper = &shared->sleepers[i];
        if (sleeper->state == RUNS || (sleeper->state == SLEEPS && sleeper->wake <= shared->now)) {
            wake_all();
            return;
        }
        if (sleeper->state == SLEEPS && sleeper->wake < next)
            next = sleeper->wake;
    }
    if (next == INT64_MAX || shared->joined < parties)
        return;
    shared->now = next;
    wake_all();
}

static void leave_thread(void *sleeper) {
    lock();
    ((struct sleeper *)sleeper)->state = FREE;
    tick();
    unlock();
}

static void become(struct sleeper *sleeper) {
    me = sleeper;
    pthread_setspecific(key, sleeper);
}

static void set_state(enum state state) {
    lock();
    if (me == NULL)
        become(enlist());
    me->state = state;
    tick();
    unlock();
}

__attribute__((constructor)) static void join_clock(void) {
    const char *path = getenv("SIMCLOCK_FILE");
    int file = path != NULL ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (file < 0 || flock(file, LOCK_EX) != 0 || ftruncate(file, sizeof *shared) != 0)
        abort();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED)
        abort();
    if (!shared->ready) {
        pthread_mutexattr_t robust;
        pthread_mutexattr_init(&robust);
        pthread_mutexattr_setpshared(&robust, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&shared->lock, &robust);
        shared->now = 1000000000;
        shared->ready = 1;
    }
    flock(file, LOCK_UN);
    close(file);
    parties = getenv("SIMCLOCK_PARTIES") != NULL ? atoi(getenv("SIMCLOCK_PARTIES")) : 1;
    pthread_key_create(&key, leave_thread);
    lock();
    shared->joined++;
    become(enlist());
    unlock();
}

__attribute__((destructor)) static void leave_clock(void) {
    lock();
    leaving = true;
    for (int i = 0; i < SLEEPERS; i++)
        if (shared->sleepers[i].pid == getpid())
            shared->sleepers[i].state = FREE;
    tick();
    unlock();
}

API int clock_gettime(clockid_t clock, struct timespec *out) {
    if (clock != CLOCK_MONOTONIC)
        return (int)syscall(SYS_clock_gettime, clock, out);
    int64_t now = __atomic_add_fetch(&shared->now, ASK_NS, __ATOMIC_RELAXED);
    *out = (struct timespec){now / 1000000000, now % 1000000000};
    return 0;
}

API int nanosleep(const struct timespec *length, struct timespec *left) {
    (void)left;
    lock();
    if (me == NULL && !leaving)
        become(enlist());
    if (leaving) {
        unlock();
        for (;;)
            pause();
    }
    me->wake = shared->now + length->tv_sec * INT64_C(1000000000) + length->tv_nsec;
    me->state = SLEEPS;
    tick();
    while (leaving || me->wake > __atomic_load_n(&shared->now, __ATOMIC_RELAXED)) {
        uint32_t seen = shared->ticks;
        unlock();
        syscall(SYS_futex, &shared->ticks, FUTEX_WAIT, seen, NULL, NULL, 0);
        lock();
    }
    me->state = RUNS;
    unlock();
    return 0;
}

struct start {
    void *(*function)(void *);
    void *argument;
    struct sleeper *sleeper;
};

static void *run(void *argument) {
    struct start start = *(struct start *)argument;
    free(argument);
    become(start.sleeper);
    return start.function(start.argument);
}

API int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *), void *argument) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
    struct start *start = malloc(sizeof *start);
    if (start == NULL)
        return EAGAIN;
    lock();
    *start = (struct start){function, argument, enlist()};
    unlock();
    return real(thread, attributes, run, start);
}

API int pthread_join(pthread_t thread, void **value) {
    int (*real)(pthread_t, void **) = dlsym(RTLD_NEXT, "pthread_join");
    set_state(AWAY);
    int result = real(thread, value);
    set_state(RUNS);
    return result;
}
