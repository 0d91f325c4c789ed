// SPDX-License-Identifier: Apache-2.0
// What the container's launches cost. Launches that follow one another on a stream make a batch with an event before
// and one after; the time between them is paid from the budget, and so is, every few milliseconds, that of what still
// runs. A thread of ours reads the events, and ends batches that no other thread ends.
//
// A batch ends with its 32nd launch, after a millisecond, or before any function by which the program could learn that
// its work is done (those that names/cuda.txt marks), so that no idle time comes between the last launch and the event.
// Where the GPU may have been idle within a batch all the same (the program looked at memory, or launches less than the
// GPU could do), the batch is charged by what such launches usually take, and its stream is measured precisely for a
// while, as one is at first: with the event right after each launch, and a batch for each that comes after a pause.
// Nothing is recorded on a stream in capture.
#include <errno.h>

#include "meter.h"

#define LAUNCHES   32 // a batch
#define AGE        MILLISECOND // of a batch
#define SLICE      (20 * MILLISECOND) // of a wait
#define SAMPLES    256 // precise measurements at once,
#define SAMPLE     100000 // ns between two on average when there are more launches than that
#define PER_THREAD ((CUstream)2)
#define ENDING     ((CUcontext)1) // of a meter whose context was destroyed: nothing is opened any more

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

// ---------------------------------------------------------------- the way of a launch

static CUstream name_of(CUstream stream, bool per_thread) { return stream ? stream : per_thread ? PER_THREAD : LEGACY; }

static void *thread_of(CUstream stream) { return stream == PER_THREAD ? (void *)&errno : NULL; }

static bool take_place(struct stream *at, uint64_t before, uint64_t key) {
    return __atomic_compare_exchange_n(&at->key, &before, key, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED) ||
           before == key;
}

// Where all near its hash are others', a stream gets the place of one without a launch on its way, and at last shares
// one: then each is thought to have queued what both have.
static size_t place_of(struct process *mine, const struct meter *meter, CUstream stream, const void *thread) {
    uint64_t key = ((uintptr_t)stream ^ (uintptr_t)meter >> 3 ^ (uintptr_t)thread >> 4) * 0x9e3779b97f4a7c15u;
    size_t first = (size_t)(key >> 40);
    for (size_t i = first; i < first + PROBES; i++) {
        struct stream *at = &mine->streams[i % STREAMS];
        uint64_t found = __atomic_load_n(&at->key, __ATOMIC_RELAXED);
        if (found == key || (!found && take_place(at, 0, key))) return i % STREAMS;
    }
    for (size_t i = first; i < first + PROBES; i++) {
        struct stream *at = &mine->streams[i % STREAMS];
        if (__atomic_load_n(&at->queued, __ATOMIC_RELAXED)) continue;
        if (!take_place(at, __atomic_load_n(&at->key, __ATOMIC_RELAXED), key)) continue;
        __atomic_store_n(&at->steady, 0, __ATOMIC_RELAXED);
        return i % STREAMS;
    }
    return first % STREAMS;
}

// Time that launches already made on a stream will still take, as far as the average tells. What other streams have
// queued may run beside it, and is in the average where it does not. Before anything is known, each is thought to take
// as long as the first one has been running.
static int64_t ahead_of_gpu(struct process *mine, const struct meter *meter, size_t place, uint64_t now) {
    uint64_t average = __atomic_load_n(&meter->average, __ATOMIC_RELAXED),
             since = __atomic_load_n(&meter->since, __ATOMIC_RELAXED);
    uint32_t launches = __atomic_load_n(average ? &mine->streams[place].queued : &meter->outstanding, __ATOMIC_RELAXED);
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
    size_t place = place_of(mine, meter, stream, thread), lane = place % LANES;
    uint64_t now = now_ns();
    int64_t left = budget_left(meter->index, now);
    if (__builtin_expect(left < 0 || too_far(meter, ahead_of_gpu(mine, meter, place, now), left), 0)) {
        if (in_capture(stream)) return CUDA_SUCCESS;
        lanes_flush(mine, now);
        now = wait(mine, meter, place, now);
    }
    pass->at = now;
    // No other thread can record an event on this one's own default stream.
    pass->precise =
        thread || (__atomic_load_n(&mine->streams[place].steady, __ATOMIC_RELAXED) < PRECISE && sample(mine, now));
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
        batch_owe(batch, 1);
        pass->batch = batch;
    }
    spin_unlock(&mine->lanes[lane].lock);
    if (pass->batch) return CUDA_SUCCESS;
    if (batch) lane_flush(mine, lane, now);
    if (in_capture(stream) || !(batch = batch_take(mine, meter, &now))) return CUDA_SUCCESS;
    pass->at = now;
    if (REAL(cuEventRecord)(batch->start, stream)) {
        batch_put_back(batch);
        return CUDA_SUCCESS;
    }
    batch->stream = stream;
    batch->thread = thread;
    batch->opened = batch->last = now;
    batch->launches = 1;
    batch->place = (uint32_t)place;
    batch_owe(batch, 1);
    pass->batch = batch;
    spin_lock(&mine->lanes[lane].lock);
    if (!mine->lanes[lane].open && !batch->gone && __atomic_load_n(&meter->context, __ATOMIC_RELAXED) != ENDING)
        lane_set_open(mine, lane, batch);
    spin_unlock(&mine->lanes[lane].lock);
    helper_start(mine);
    return CUDA_SUCCESS;
}

// An end that was recorded while other threads were amid a launch may come before theirs.
void meter_leave(struct pass *pass, CUresult result, bool alone) {
    struct batch *batch = pass->batch;
    if (!batch) return;
    struct process *mine = process();
    size_t lane = batch->place % LANES;
    uint32_t moves = __atomic_load_n(&batch->moves, __ATOMIC_RELAXED);
    bool recorded = !result && (pass->precise || alone) && !batch_is_gone(batch) && batch_record_end(batch);
    spin_lock(&mine->lanes[lane].lock);
    bool shared = mine->lanes[lane].open == batch;
    if (result) {
        batch->launches--;
        batch_owe(batch, -1u);
    } else {
        batch->recorded = recorded && batch->moves == moves && batch->inflight == 1;
    }
    __atomic_fetch_add(&batch->moves, 1, __ATOMIC_RELAXED);
    if (!shared || batch->launches >= LAUNCHES || pass->at - batch->opened >= AGE) batch->closing = true;
    bool last = batch->inflight == 1 && batch->closing;
    if (!last) batch->inflight--;
    if (last && shared) lane_set_open(mine, lane, NULL);
    spin_unlock(&mine->lanes[lane].lock);
    if (last) batch_finish(batch, pass->at);
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
        if (mine->lanes[i].open && mine->lanes[i].open->meter == meter) lane_set_open(mine, i, NULL);
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
        batch_owe(batch, -batch->launches);
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
