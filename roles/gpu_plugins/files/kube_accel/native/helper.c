// SPDX-License-Identifier: Apache-2.0
// The thread that reads events, and ends batches that no other thread ends.
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "meter.h"

#define TICK       (5 * MILLISECOND)
#define LATE       (2 * MILLISECOND) // after which it ends a batch
#define IDLE_TICKS 200 // after which it ends

void sleep_ns(uint64_t ns) {
    static int (*sleeper)(const struct timespec *, struct timespec *);
    int (*call)(const struct timespec *, struct timespec *) = __atomic_load_n(&sleeper, __ATOMIC_RELAXED);
    if (!call && (call = (__typeof__(call))real_symbol("nanosleep")))
        __atomic_store_n(&sleeper, call, __ATOMIC_RELAXED);
    struct timespec pause = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    if (call) call(&pause, NULL);
}

static bool end_late_batches(struct process *mine, uint64_t now) {
    bool any = false;
    if (!harvest_begin(mine)) return true;
    for (size_t i = 0; i < LANES; i++) {
        spin_lock(&mine->lanes[i].lock);
        struct batch *batch = mine->lanes[i].open;
        bool late = batch && !batch->inflight && now > batch->last && now - batch->last >= LATE;
        spin_unlock(&mine->lanes[i].lock);
        any |= batch && !(late && lane_flush(mine, i, now));
    }
    spin_unlock(&mine->harvesting);
    return any;
}

static bool any_pending(struct process *mine) {
    for (int i = 0; i < METERS; i++)
        if (__atomic_load_n(&mine->meters[i].context, __ATOMIC_ACQUIRE) &&
            __atomic_load_n(&mine->meters[i].outstanding, __ATOMIC_RELAXED))
            return true;
    return false;
}

static void *help(void *argument) {
    struct process *mine = argument;
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (HAS(cuThreadExchangeStreamCaptureMode)) REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    for (int idle = 0; idle < IDLE_TICKS && !__atomic_load_n(&mine->leaving, __ATOMIC_RELAXED); idle++) {
        sleep_ns(TICK);
        bool open = end_late_batches(mine, now_ns());
        harvest(mine);
        if (open || any_pending(mine)) idle = 0;
    }
    __atomic_store_n(&mine->helper, 0, __ATOMIC_SEQ_CST);
    return NULL;
}

// Before the driver's own, which was registered earlier: no thread of ours is amid a question to it then.
static void stop_helper(void *unused) {
    struct process *mine = process();
    (void)unused;
    if (!mine) return;
    __atomic_store_n(&mine->leaving, 1, __ATOMIC_SEQ_CST);
    spin_lock(&mine->harvesting);
    spin_unlock(&mine->harvesting);
}

static void at_exit(void) {
    static uint32_t registered; // in a forked child too
    int (*call)(void (*)(void *), void *, void *) =
        __atomic_exchange_n(&registered, 1, __ATOMIC_RELAXED) ? NULL : (__typeof__(call))real_symbol("__cxa_atexit");
    if (call) call(stop_helper, NULL, NULL);
}

void helper_start(struct process *mine) {
    uint32_t none = 0;
    if (__builtin_expect(__atomic_load_n(&mine->helper, __ATOMIC_SEQ_CST), 1)) return;
    if (!__atomic_compare_exchange_n(&mine->helper, &none, 1, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) return;
    int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
        (__typeof__(create))real_symbol("pthread_create");
    int (*detach)(pthread_t) = (__typeof__(detach))real_symbol("pthread_detach");
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before); // of this thread, and so of the new one: signals are the program's
    at_exit();
    bool started = create && detach && !create(&thread, NULL, help, mine);
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (started) detach(thread);
    else __atomic_store_n(&mine->helper, 0, __ATOMIC_SEQ_CST);
}
