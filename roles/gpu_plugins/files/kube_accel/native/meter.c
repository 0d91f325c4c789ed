// SPDX-License-Identifier: Apache-2.0
// What the container's launches cost. Launches that follow one another on a stream make a batch with an event before
// and one after; the time between them is paid from the budget, and so is, every few milliseconds, that of what still
// runs. A thread of ours reads the events, and ends batches that nobody else does.
//
// A batch ends with its 32nd launch, after a millisecond, or before any function by which the program could learn that
// its work is done (those that names/cuda.txt marks), so that no idle time comes between the last launch and the event.
// Where the GPU may have been idle within a batch all the same (the program looked at memory, or launches less than the
// GPU could do), the batch is charged by what such launches usually take, and its stream is measured precisely for a
// while, as one is at first: with the event right after each launch, and a batch for each that comes after a pause.
// Nothing is recorded on a stream in capture.
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "gate.h"

#define LANES      64
#define STREAMS    4096
#define METERS     64
#define BATCHES    512
#define LAUNCHES   32 // a batch
#define AGE        MILLISECOND // of a batch
#define DEPTH      (20 * MILLISECOND) // how far launches may run ahead of the GPU
#define SLICE      (20 * MILLISECOND) // of a wait
#define TICK       (5 * MILLISECOND) // of the helper
#define LATE       (2 * MILLISECOND) // after which it ends a batch
#define SOON       50000 // ns between launches of a batch
#define TIGHT      5000 // ns in which no GPU goes idle
#define PRECISE    64 // batches for which a stream is measured precisely, at first too
#define SAMPLES    256 // precise measurements at once,
#define SAMPLE     100000 // ns between two on average when there are more launches than that
#define CERTAIN    32 // part of a batch that may have been idle and does not matter
#define IDLE_TICKS 200 // after which it ends
#define LEGACY     ((CUstream)1)
#define PER_THREAD ((CUstream)2)
#define ENDING     ((CUcontext)1) // of a meter whose context was destroyed: nothing is opened any more
#define REBASE     (4000ll * MILLISECOND) // cuEventElapsedTime answers a float
#define DRIFT      80000 // ns our clock may lose to the GPU's meanwhile

struct batch {
    struct batch *next;
    struct meter *meter;
    CUstream stream;
    void *thread; // of a per-thread default stream: nobody else can name it
    CUevent start, end;
    uint64_t opened, last;
    uint64_t ended_at;
    uint64_t idle; // ns before the end in which the stream went idle, nobody knows when
    uint64_t pauses; // ns between launches in which it may have been idle
    uint32_t launches, place;
    uint32_t inflight; // threads that have it in hand; from 0 on it is open, pending or free
    uint32_t moves; // of threads that take it in hand and let go
    bool closing;
    bool recorded; // the end, after the last launch
    bool gone; // its context ended meanwhile: who has it in hand gives it up
};

struct meter { // a context
    CUcontext context;
    int index;
    uint32_t lock; // of the lists
    struct batch *free, *pending, **tail;
    uint32_t outstanding; // launches not yet paid for
    uint64_t since; // when they began to be
    uint64_t average; // ns a launch; 0: not known yet
    CUevent base; // what the times of events are asked against
    int64_t offset; // CLOCK_MONOTONIC at base
};

static struct process { // not inherited by a forked child
    struct {
        uint32_t lock;
        struct batch *open;
    } lanes[LANES];
    uint32_t queued[STREAMS]; // launches not yet paid for, by stream
    uint8_t told[STREAMS]; // batches of it since the GPU may last have been idle within one, as far as PRECISE
    uint64_t sampled, random; // up to when precise measurements are used up
    struct meter meters[METERS];
    struct batch batches[BATCHES];
    uint32_t lock, harvesting, helper, capturing, captures;
    uint32_t leaving; // the process ends, and the driver with it
} *process(void) {
    static void *memory;
    return wiped(&memory, sizeof(struct process));
}

uint64_t
    open_lanes; // a bit for each with an open batch; a forked child finds those of its parent, and none behind them
_Static_assert(LANES == 64, "bits");

// ---------------------------------------------------------------- contexts

// The meter of a context, a new one where it has none and `index` is a device. NULL: none, or no place.
static struct meter *meter_of(struct process *mine, CUcontext context, int index) {
    for (int i = 0; i < METERS; i++)
        if (__atomic_load_n(&mine->meters[i].context, __ATOMIC_ACQUIRE) == context) return &mine->meters[i];
    struct meter *meter = NULL;
    if (index < 0) return NULL;
    spin_lock(&mine->lock);
    for (int i = METERS; i-- > 0;)
        if (!mine->meters[i].context || mine->meters[i].context == context) meter = &mine->meters[i];
    if (meter && !meter->context) {
        meter->index = index;
        meter->tail = &meter->pending;
        __atomic_store_n(&meter->context, context, __ATOMIC_RELEASE);
    }
    spin_unlock(&mine->lock);
    return meter;
}

static CUresult meter_here(struct meter **meter) {
    CUcontext context = NULL;
    CUdevice device;
    struct process *mine = process();
    *meter = NULL;
    if (!mine || REAL(cuCtxGetCurrent)(&context) || !context) return CUDA_SUCCESS; // the driver is to say so
    if (!(*meter = meter_of(mine, context, -1))) {
        int index = current_device(&device) ? -1 : device_index(device);
        if (index < 0) return CUDA_SUCCESS;
        if (!(*meter = meter_of(mine, context, index))) {
            say("more than %d CUDA contexts in a process whose GPU time is limited: the launch is refused", METERS);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (!(__atomic_load_n(&gated_devices, __ATOMIC_RELAXED) >> (*meter)->index & 1)) *meter = NULL;
    return CUDA_SUCCESS;
}

// Makes a batch's context current for what follows.
static bool enter_context(CUcontext context) {
    CUcontext current = NULL;
    return (REAL(cuCtxGetCurrent)(&current) || current != context) && !REAL(cuCtxPushCurrent_v2)(context);
}

static void leave_context(bool entered) {
    CUcontext context;
    if (entered) REAL(cuCtxPopCurrent_v2)(&context);
}

static bool in_capture(CUstream stream) {
    int status = 0;
    return REAL(cuStreamIsCapturing)(stream, &status) || status;
}

// ---------------------------------------------------------------- batches

static void owe(struct batch *batch, uint32_t launches) {
    struct meter *meter = batch->meter;
    if (!__atomic_fetch_add(&meter->outstanding, launches, __ATOMIC_RELAXED))
        __atomic_store_n(&meter->since, batch->opened, __ATOMIC_RELAXED);
    __atomic_fetch_add(&process()->queued[batch->place], launches, __ATOMIC_RELAXED);
}

static void put_back(struct batch *batch) {
    struct meter *meter = batch->meter;
    owe(batch, -batch->launches);
    batch->launches = 0;
    spin_lock(&meter->lock);
    bool gone = batch->gone;
    if (!gone) {
        batch->inflight = 0;
        batch->next = meter->free;
        meter->free = batch;
    }
    spin_unlock(&meter->lock);
    if (!gone) return;
    spin_lock(&process()->lock);
    __builtin_memset(batch, 0, sizeof *batch);
    spin_unlock(&process()->lock);
}

// A capture of another stream would be broken by the question, unless this thread says it knows what it does.
static bool gone_idle(CUstream stream) {
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool exchanged = HAS(cuThreadExchangeStreamCaptureMode) && !REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    bool idle = !REAL(cuStreamQuery)(stream);
    if (exchanged) REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return idle;
}

static bool is_gone(const struct batch *batch) { return __atomic_load_n(&batch->gone, __ATOMIC_RELAXED); }

static bool record_end(struct batch *batch) {
    bool entered = enter_context(batch->meter->context);
    bool recorded = !in_capture(batch->stream) && !REAL(cuEventRecord)(batch->end, batch->stream);
    leave_context(entered);
    return recorded;
}

// The last launch of the batch was made: the event after it. The caller is the only one that has the batch.
static void finish(struct batch *batch, uint64_t now) {
    struct meter *meter = batch->meter;
    if (is_gone(batch)) return put_back(batch);
    if (!batch->recorded && !batch->thread) {
        uint64_t late = now > batch->last ? now - batch->last : 0;
        bool entered = enter_context(meter->context), idle = late > TIGHT && gone_idle(batch->stream);
        batch->recorded = record_end(batch);
        leave_context(entered);
        batch->idle = idle ? late : 0;
    }
    batch->ended_at = now;
    spin_lock(&meter->lock);
    bool good = batch->recorded && !batch->gone;
    if (good) {
        batch->inflight = 0;
        batch->next = NULL;
        *meter->tail = batch;
        meter->tail = &batch->next;
    }
    spin_unlock(&meter->lock);
    if (!good) put_back(batch);
}

static CUstream name_of(CUstream stream, bool per_thread) { return stream ? stream : per_thread ? PER_THREAD : LEGACY; }

static void *thread_of(CUstream stream) { return stream == PER_THREAD ? (void *)&errno : NULL; }

static size_t place_of(const struct meter *meter, CUstream stream, const void *thread) {
    return (size_t)(((uintptr_t)stream ^ (uintptr_t)meter >> 3 ^ (uintptr_t)thread >> 4) * 0x9e3779b97f4a7c15u >> 40) %
           STREAMS;
}

// With the lane's lock held; others look without it whether there is anything.
static void set_open(struct process *mine, size_t lane, struct batch *batch) {
    __atomic_store_n(&mine->lanes[lane].open, batch, __ATOMIC_RELAXED);
    if (batch) __atomic_fetch_or(&open_lanes, 1ull << lane, __ATOMIC_RELAXED);
    else __atomic_fetch_and(&open_lanes, ~(1ull << lane), __ATOMIC_RELAXED);
}

// Ends what is open in the lane, unless a thread has it in hand, which then does so. A recording on the legacy stream
// would break a capture of another one: its batch is left while there is any, and none may begin meanwhile. True: none
// is open any more.
static bool flush_lane(struct process *mine, size_t lane, uint64_t now) {
    spin_lock(&mine->lanes[lane].lock);
    struct batch *batch = mine->lanes[lane].open;
    if (!batch) __atomic_fetch_and(&open_lanes, ~(1ull << lane), __ATOMIC_RELAXED); // a forked child's
    if (batch) batch->closing = true;
    bool held = batch && batch->inflight, legacy = batch && !held && batch->stream == LEGACY && !batch->recorded;
    if (legacy) spin_lock(&mine->capturing);
    if (held || (legacy && mine->captures)) {
        if (legacy) spin_unlock(&mine->capturing);
        spin_unlock(&mine->lanes[lane].lock);
        return false;
    }
    if (batch) {
        batch->inflight = 1;
        set_open(mine, lane, NULL);
    }
    spin_unlock(&mine->lanes[lane].lock);
    if (batch) finish(batch, now);
    if (legacy) spin_unlock(&mine->capturing);
    return true;
}

static void flush_all(struct process *mine, uint64_t now) {
    for (uint64_t open = __atomic_load_n(&open_lanes, __ATOMIC_RELAXED); open; open &= open - 1)
        flush_lane(mine, (size_t)__builtin_ctzll(open), now);
}

void meter_told(void) {
    struct process *mine = process();
    if (mine) flush_all(mine, now_ns());
}

// Whether one more measurement may be precise: all, where there are few.
static bool sample(struct process *mine, uint64_t now) {
    uint64_t used = __atomic_load_n(&mine->sampled, __ATOMIC_RELAXED);
    if ((int64_t)(used - now) > (int64_t)SAMPLES * SAMPLE) return false;
    uint64_t random = __atomic_load_n(&mine->random, __ATOMIC_RELAXED) * 6364136223846793005u + 1442695040888963407u;
    uint64_t step = SAMPLE / 2 + (random >> 40) % SAMPLE; // no program's own rhythm
    __atomic_store_n(&mine->random, random, __ATOMIC_RELAXED);
    __atomic_store_n(&mine->sampled, ((int64_t)(used - now) > 0 ? used : now) + step, __ATOMIC_RELAXED);
    return true;
}

// ---------------------------------------------------------------- paying

// An event is over after it was recorded: the latest such bound is when `base` was, by our clock.
static void anchor(struct meter *meter, struct batch *batch, int64_t from) {
    if (meter->base && from < REBASE) {
        if ((int64_t)batch->opened - from > meter->offset) meter->offset = (int64_t)batch->opened - from;
        return;
    }
    meter->offset = meter->base ? meter->offset + from - DRIFT : (int64_t)batch->opened;
    CUevent base = meter->base; // the batch's start is the next base, the old one an event to use
    meter->base = batch->start;
    batch->start = base;
    if ((int64_t)batch->opened > meter->offset) meter->offset = (int64_t)batch->opened;
}

// When the batch began, in ns after base; false: the driver does not tell.
static bool began(struct meter *meter, struct batch *batch, int64_t *from) {
    float offset = 0;
    if (meter->base && REAL(cuEventElapsedTime)(&offset, meter->base, batch->start)) return false;
    *from = (int64_t)((double)offset * MILLISECOND);
    return offset > -1e6f && offset < 1e9f;
}

// Of what passed between the batch's events, what its launches took, and how its stream is to be measured from now on.
static uint64_t likely(struct meter *meter, const struct batch *batch, uint64_t start, uint64_t took) {
    uint8_t *told = &process()->told[batch->place], so_far = __atomic_load_n(told, __ATOMIC_RELAXED);
    uint64_t average = __atomic_load_n(&meter->average, __ATOMIC_RELAXED), end = start + took;
    uint64_t open = batch->last > start ? batch->last - start : 0, each = took / batch->launches;
    uint64_t idle = batch->idle + (batch->pauses < open ? batch->pauses : open); // but what the GPU was behind by
    if (idle * CERTAIN > took || batch->ended_at > end + TIGHT) so_far = 0;
    else if (so_far < PRECISE) so_far++;
    __atomic_store_n(told, so_far, __ATOMIC_RELAXED);
    if (idle * CERTAIN <= took) {
        __atomic_store_n(&meter->average, average ? (3 * average + each) / 4 + 1 : each + 1, __ATOMIC_RELAXED);
        return took;
    }
    uint64_t least = took > idle ? took - idle : 0, usual = average * batch->launches;
    return usual < least ? least : usual < took ? usual : took;
}

// False: it still runs.
static bool settle(struct meter *meter, struct batch *batch, uint64_t now) {
    CUresult result = REAL(cuEventQuery)(batch->end);
    float length = 0;
    int64_t from;
    if (result == CUDA_ERROR_NOT_READY) {
        if (meter->base && !REAL(cuEventQuery)(batch->start) && began(meter, batch, &from))
            budget_pay(meter->index, (uint64_t)(from + meter->offset), now, now);
        return false;
    }
    if (!result && batch->launches && !REAL(cuEventElapsedTime)(&length, batch->start, batch->end) &&
        began(meter, batch, &from) && length >= 0 && length < 1e9f) {
        anchor(meter, batch, from);
        uint64_t start = (uint64_t)((batch->start == NULL || from >= REBASE ? 0 : from) + meter->offset);
        uint64_t took = (uint64_t)((double)length * MILLISECOND);
        budget_pay(meter->index, start, start + likely(meter, batch, start, took), now);
        budget_count(meter->index, batch->launches, 0);
    }
    put_back(batch);
    return true;
}

static void harvest_meter(struct meter *meter, uint64_t now) {
    spin_lock(&meter->lock);
    struct batch *list = meter->pending, *kept = NULL, **tail = &kept;
    meter->pending = NULL;
    meter->tail = &meter->pending;
    spin_unlock(&meter->lock);
    for (struct batch *next; list; list = next) {
        next = list->next;
        if (settle(meter, list, now)) continue;
        *tail = list;
        tail = &list->next;
    }
    *tail = NULL;
    if (!kept) return;
    spin_lock(&meter->lock);
    *tail = meter->pending;
    if (!meter->pending) meter->tail = tail;
    meter->pending = kept;
    spin_unlock(&meter->lock);
}

// One thread at a time, and none any more when the process ends.
static bool begin(struct process *mine) {
    if (!spin_try(&mine->harvesting)) return false;
    if (!__atomic_load_n(&mine->leaving, __ATOMIC_SEQ_CST)) return true;
    spin_unlock(&mine->harvesting);
    return false;
}

// Another thread may have a capture in which the driver forbids to ask for events, unless this thread says it knows
// what it does.
static void harvest(struct process *mine) {
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (!begin(mine)) return;
    bool exchanged = HAS(cuThreadExchangeStreamCaptureMode) && !REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    uint64_t now = now_ns();
    for (int i = 0; i < METERS; i++) {
        struct meter *meter = &mine->meters[i];
        CUcontext context = __atomic_load_n(&meter->context, __ATOMIC_ACQUIRE);
        if (!context || !__atomic_load_n(&meter->outstanding, __ATOMIC_RELAXED)) continue;
        bool entered = enter_context(context);
        harvest_meter(meter, now);
        leave_context(entered);
    }
    if (exchanged) REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    spin_unlock(&mine->harvesting);
}

static struct batch *pop_free(struct meter *meter) {
    spin_lock(&meter->lock);
    struct batch *batch = meter->free;
    if (batch) {
        meter->free = batch->next;
        batch->inflight = 1;
    }
    spin_unlock(&meter->lock);
    return batch;
}

static struct batch *spare(struct process *mine, struct meter *meter) {
    struct batch *batch = pop_free(meter);
    if (batch) return batch;
    spin_lock(&mine->lock);
    for (uint32_t i = 0; i < BATCHES && !batch; i++) // those of contexts that are gone come back here
        if (!mine->batches[i].meter) batch = &mine->batches[i];
    if (batch) {
        batch->meter = meter;
        batch->inflight = 1;
    }
    spin_unlock(&mine->lock);
    return batch;
}

// One that another context has no use for now. Its events are that context's, which must not end meanwhile.
static struct batch *others_spare(struct process *mine, struct meter *meter) {
    struct batch *batch = NULL;
    if (!spin_try(&mine->harvesting)) return NULL;
    for (int i = 0; i < METERS && !batch; i++)
        if (__atomic_load_n(&mine->meters[i].context, __ATOMIC_ACQUIRE)) batch = pop_free(&mine->meters[i]);
    if (batch && batch->start) REAL(cuEventDestroy_v2)(batch->start);
    if (batch && batch->end) REAL(cuEventDestroy_v2)(batch->end);
    if (batch) *batch = (struct batch){.meter = meter, .inflight = 1};
    spin_unlock(&mine->harvesting);
    return batch;
}

// Where all batches are on the GPU, waits for one, but no longer than twice what is queued takes: a kernel that runs
// may be waiting for this launch.
static struct batch *take(struct process *mine, struct meter *meter, uint64_t *now) {
    struct batch *batch = spare(mine, meter);
    uint64_t entered = *now, queued = __atomic_load_n(&meter->average, __ATOMIC_RELAXED) *
                                      __atomic_load_n(&meter->outstanding, __ATOMIC_RELAXED);
    uint64_t most = 2 * (queued < DEPTH ? DEPTH : queued), some = queued / 4 < MILLISECOND ? queued / 4 : MILLISECOND;
    while (!batch) {
        harvest(mine);
        if ((batch = spare(mine, meter)) || (batch = others_spare(mine, meter)) || *now - entered >= most) break;
        sleep_ns(some < SOON ? SOON : some);
        *now = now_ns();
    }
    if (*now != entered) budget_count(meter->index, 0, *now - entered);
    if (!batch) return NULL;
    batch->launches = 0;
    batch->idle = batch->pauses = 0;
    batch->closing = batch->recorded = false;
    if ((batch->start || !REAL(cuEventCreate)(&batch->start, 0)) &&
        (batch->end || !REAL(cuEventCreate)(&batch->end, 0)))
        return batch;
    put_back(batch);
    return NULL;
}

// ---------------------------------------------------------------- the helper

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
    if (!begin(mine)) return true;
    for (size_t i = 0; i < LANES; i++) {
        spin_lock(&mine->lanes[i].lock);
        struct batch *batch = mine->lanes[i].open;
        bool late = batch && !batch->inflight && now > batch->last && now - batch->last >= LATE;
        spin_unlock(&mine->lanes[i].lock);
        any |= batch && !(late && flush_lane(mine, i, now));
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

static void start_helper(struct process *mine) {
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

// ---------------------------------------------------------------- the way of a launch

// Time that launches already made on a stream will still take, as far as the average tells. What other streams have
// queued may run beside it, and is in the average where it does not. Before anything is known, each is thought to take
// as long as the first one has been running.
static int64_t ahead_of_gpu(struct process *mine, const struct meter *meter, size_t place, uint64_t now) {
    uint64_t average = __atomic_load_n(&meter->average, __ATOMIC_RELAXED),
             since = __atomic_load_n(&meter->since, __ATOMIC_RELAXED);
    uint32_t launches = __atomic_load_n(average ? &mine->queued[place] : &meter->outstanding, __ATOMIC_RELAXED);
    if (average) return (int64_t)(average * launches);
    return launches > LAUNCHES && now > since ? (int64_t)((now - since) * launches) : 0;
}

// Whether launches run further ahead of the GPU than they should: than a limit of time where others use the GPU too, or
// tenants would take turns of such a length; else than the budget has paid for.
static bool too_far(const struct meter *meter, int64_t queued, int64_t left) {
    if (queued <= DEPTH) return false;
    uint64_t average = __atomic_load_n(&meter->average, __ATOMIC_RELAXED),
             all = average * __atomic_load_n(&meter->outstanding, __ATOMIC_RELAXED);
    return !average || (int64_t)all > left || budget_contended(meter->index);
}

// No wait goes on longer than the debt it began with takes to be paid, or the queued work to be done: a kernel that
// runs may be waiting for this launch.
static uint64_t wait(struct process *mine, struct meter *meter, size_t place, uint64_t entered) {
    int64_t left = budget_left(meter->index, entered), queued = ahead_of_gpu(mine, meter, place, entered);
    uint64_t paid = entered + (left < 0 ? budget_wait(meter->index, -left) : 0);
    uint64_t done = entered + (queued > DEPTH ? 2 * (uint64_t)queued : 0), now = entered;
    for (;;) {
        harvest(mine);
        left = budget_left(meter->index, now);
        queued = ahead_of_gpu(mine, meter, place, now);
        uint64_t pause;
        if (left < 0 && now < paid) pause = budget_wait(meter->index, -left);
        else if (too_far(meter, queued, left) && now < done) pause = (uint64_t)(queued - DEPTH / 2);
        else break;
        sleep_ns(pause < SLICE ? pause > 50000 ? pause : 50000 : SLICE);
        now = now_ns();
    }
    budget_count(meter->index, 0, now - entered);
    return now;
}

CUresult meter_enter(struct pass *pass, CUstream stream, bool per_thread) {
    struct process *mine = process();
    struct meter *meter;
    CUresult result = meter_here(&meter);
    pass->batch = NULL;
    if (!meter) return result;
    stream = name_of(stream, per_thread);
    void *thread = thread_of(stream);
    size_t place = place_of(meter, stream, thread), lane = place % LANES;
    uint64_t now = now_ns();
    int64_t left = budget_left(meter->index, now);
    if (__builtin_expect(left < 0 || too_far(meter, ahead_of_gpu(mine, meter, place, now), left), 0)) {
        if (in_capture(stream)) return CUDA_SUCCESS;
        flush_all(mine, now);
        now = wait(mine, meter, place, now);
    }
    pass->at = now;
    // Of a thread's own default stream nobody else can record an event.
    pass->precise = thread || (__atomic_load_n(&mine->told[place], __ATOMIC_RELAXED) < PRECISE && sample(mine, now));
    spin_lock(&mine->lanes[lane].lock);
    struct batch *batch = mine->lanes[lane].open;
    bool ours = batch && batch->meter == meter && batch->stream == stream && batch->thread == thread;
    uint64_t pause = ours ? now - batch->last : 0;
    uint64_t most = pass->precise || (batch && batch->recorded) ? TIGHT : SOON;
    if (ours && !batch->closing && pause <= most) {
        batch->inflight++;
        batch->launches++;
        __atomic_fetch_add(&batch->moves, 1, __ATOMIC_RELAXED);
        batch->last = now;
        if (pause > TIGHT) batch->pauses += pause;
        owe(batch, 1);
        pass->batch = batch;
    }
    spin_unlock(&mine->lanes[lane].lock);
    if (pass->batch) return CUDA_SUCCESS;
    if (batch) flush_lane(mine, lane, now);
    if (in_capture(stream) || !(batch = take(mine, meter, &now))) return CUDA_SUCCESS;
    pass->at = now;
    if (REAL(cuEventRecord)(batch->start, stream)) {
        put_back(batch);
        return CUDA_SUCCESS;
    }
    batch->stream = stream;
    batch->thread = thread;
    batch->opened = batch->last = now;
    batch->launches = 1;
    batch->place = (uint32_t)place;
    owe(batch, 1);
    pass->batch = batch;
    spin_lock(&mine->lanes[lane].lock);
    if (!mine->lanes[lane].open && !batch->gone && __atomic_load_n(&meter->context, __ATOMIC_RELAXED) != ENDING)
        set_open(mine, lane, batch);
    spin_unlock(&mine->lanes[lane].lock);
    start_helper(mine);
    return CUDA_SUCCESS;
}

// An end that was recorded while other threads were amid a launch may come before theirs.
void meter_leave(struct pass *pass, CUresult result, bool alone) {
    struct batch *batch = pass->batch;
    if (!batch) return;
    struct process *mine = process();
    size_t lane = batch->place % LANES;
    uint32_t moves = __atomic_load_n(&batch->moves, __ATOMIC_RELAXED);
    bool recorded = !result && (pass->precise || alone) && !is_gone(batch) && record_end(batch);
    spin_lock(&mine->lanes[lane].lock);
    bool shared = mine->lanes[lane].open == batch;
    if (result) {
        batch->launches--;
        owe(batch, -1u);
    } else {
        batch->recorded = recorded && batch->moves == moves && batch->inflight == 1;
    }
    __atomic_fetch_add(&batch->moves, 1, __ATOMIC_RELAXED);
    if (!shared || batch->launches >= LAUNCHES || pass->at - batch->opened >= AGE) batch->closing = true;
    bool last = batch->inflight == 1 && batch->closing;
    if (!last) batch->inflight--;
    if (last && shared) set_open(mine, lane, NULL);
    spin_unlock(&mine->lanes[lane].lock);
    if (last) finish(batch, pass->at);
}

void meter_capture(bool begins) {
    struct process *mine = process();
    if (!mine) return;
    spin_lock(&mine->capturing);
    mine->captures = begins ? mine->captures + 1 : mine->captures ? mine->captures - 1 : 0;
    spin_unlock(&mine->capturing);
}

void gate_destroying(void) {
    struct process *mine = process();
    if (!mine) return;
    tells();
    harvest(mine);
    spin_lock(&mine->harvesting);
}

// Work that is not paid for is charged by its average, as far as that is a slice: its events went with the context.
// Threads may be amid a launch.
static void forget(struct process *mine, struct meter *meter) {
    __atomic_store_n(&meter->context, ENDING, __ATOMIC_RELAXED);
    for (size_t i = 0; i < LANES; i++) {
        spin_lock(&mine->lanes[i].lock);
        if (mine->lanes[i].open && mine->lanes[i].open->meter == meter) set_open(mine, i, NULL);
        spin_unlock(&mine->lanes[i].lock);
    }
    uint64_t now = now_ns(), usual = meter->outstanding * meter->average;
    if (meter->outstanding) budget_pay(meter->index, now - (usual < SLICE ? usual : SLICE), now, now);
    spin_lock(&mine->lock);
    spin_lock(&meter->lock);
    for (size_t i = 0; i < BATCHES; i++) {
        struct batch *batch = &mine->batches[i];
        if (batch->meter != meter) continue;
        if (batch->inflight) {
            __atomic_store_n(&batch->gone, true, __ATOMIC_RELAXED);
            continue;
        }
        owe(batch, -batch->launches);
        __builtin_memset(batch, 0, sizeof *batch);
    }
    meter->free = meter->pending = NULL;
    meter->tail = &meter->pending;
    meter->average = 0;
    meter->base = NULL;
    meter->offset = 0;
    spin_unlock(&meter->lock);
    __atomic_store_n(&meter->context, NULL, __ATOMIC_RELEASE);
    spin_unlock(&mine->lock);
}

void gate_destroyed(CUcontext context) {
    struct process *mine = process();
    struct meter *meter = mine && context ? meter_of(mine, context, -1) : NULL;
    if (meter) forget(mine, meter);
    if (mine) spin_unlock(&mine->harvesting);
}
