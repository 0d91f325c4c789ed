// SPDX-License-Identifier: Apache-2.0
// Batches of launches: where they are kept, how one ends, and the lanes in which those that are open stand.
#include "meter.h"

struct process *process(void) {
    static void *memory;
    return wiped(&memory, sizeof(struct process));
}

// A bit for each lane with an open batch; a forked child finds those of its parent, and none behind them.
uint64_t open_lanes;
_Static_assert(LANES == 64, "bits");

bool enter_context(CUcontext context) {
    CUcontext current = NULL;
    return (REAL(cuCtxGetCurrent)(&current) || current != context) && !REAL(cuCtxPushCurrent_v2)(context);
}

void leave_context(bool entered) {
    CUcontext context;
    if (entered) REAL(cuCtxPopCurrent_v2)(&context);
}

bool in_capture(CUstream stream) {
    int status = 0;
    return REAL(cuStreamIsCapturing)(stream, &status) || status;
}

void batch_owe(struct batch *batch, uint32_t launches) {
    struct meter *meter = batch->meter;
    if (!__atomic_fetch_add(&meter->outstanding, launches, __ATOMIC_RELAXED))
        __atomic_store_n(&meter->since, batch->opened, __ATOMIC_RELAXED);
    __atomic_fetch_add(&process()->streams[batch->place].queued, launches, __ATOMIC_RELAXED);
}

void batch_put_back(struct batch *batch) {
    struct meter *meter = batch->meter;
    batch_owe(batch, -batch->launches);
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

bool batch_is_gone(const struct batch *batch) { return __atomic_load_n(&batch->gone, __ATOMIC_RELAXED); }

bool batch_record_end(struct batch *batch) {
    bool entered = enter_context(batch->meter->context);
    bool recorded = !in_capture(batch->stream) && !REAL(cuEventRecord)(batch->end, batch->stream);
    leave_context(entered);
    return recorded;
}

void batch_finish(struct batch *batch, uint64_t now) {
    struct meter *meter = batch->meter;
    if (batch_is_gone(batch)) return batch_put_back(batch);
    if (!batch->recorded && !batch->thread) {
        uint64_t late = now > batch->last ? now - batch->last : 0;
        bool entered = enter_context(meter->context), idle = late > TIGHT && gone_idle(batch->stream);
        batch->recorded = batch_record_end(batch);
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
    if (!good) batch_put_back(batch);
}

struct batch *batch_pop_free(struct meter *meter) {
    spin_lock(&meter->lock);
    struct batch *batch = meter->free;
    if (batch) {
        meter->free = batch->next;
        batch->inflight = 1;
    }
    spin_unlock(&meter->lock);
    return batch;
}

struct batch *batch_spare(struct process *mine, struct meter *meter) {
    struct batch *batch = batch_pop_free(meter);
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

void lane_set_open(struct process *mine, size_t lane, struct batch *batch) {
    __atomic_store_n(&mine->lanes[lane].open, batch, __ATOMIC_RELAXED);
    if (batch) __atomic_fetch_or(&open_lanes, 1ull << lane, __ATOMIC_RELAXED);
    else __atomic_fetch_and(&open_lanes, ~(1ull << lane), __ATOMIC_RELAXED);
}

// A recording on the legacy stream would break a capture of another one: its batch is left while there is any, and none
// may begin meanwhile.
bool lane_flush(struct process *mine, size_t lane, uint64_t now) {
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
        lane_set_open(mine, lane, NULL);
    }
    spin_unlock(&mine->lanes[lane].lock);
    if (batch) batch_finish(batch, now);
    if (legacy) spin_unlock(&mine->capturing);
    return true;
}

void lanes_flush(struct process *mine, uint64_t now) {
    for (uint64_t open = __atomic_load_n(&open_lanes, __ATOMIC_RELAXED); open; open &= open - 1)
        lane_flush(mine, (size_t)__builtin_ctzll(open), now);
}

void meter_told(void) {
    struct process *mine = process();
    if (mine) lanes_flush(mine, now_ns());
}
