// SPDX-License-Identifier: Apache-2.0
// Batches are paid for here: the time between their events, for what it is likely to be worth, goes from the budget.
#include "meter.h"

#define CERTAIN 32 // part of a batch that may have been idle and does not matter
#define REBASE  (4000ll * MILLISECOND) // cuEventElapsedTime answers a float
#define DRIFT   80000 // ns our clock may lose to the GPU's meanwhile

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

// What the batch's launches took of the time between its events; also settles how its stream is measured from now on.
static uint64_t likely(struct meter *meter, const struct batch *batch, uint64_t start, uint64_t took) {
    uint8_t *steady = &process()->streams[batch->place].steady, so_far = __atomic_load_n(steady, __ATOMIC_RELAXED);
    uint64_t average = __atomic_load_n(&meter->average, __ATOMIC_RELAXED), end = start + took;
    uint64_t open = batch->last > start ? batch->last - start : 0, each = took / batch->launches;
    uint64_t idle = batch->idle + (batch->pauses < open ? batch->pauses : open); // but what the GPU was behind by
    if (idle * CERTAIN > took || batch->ended_at > end + TIGHT) so_far = 0;
    else if (so_far < PRECISE) so_far++;
    __atomic_store_n(steady, so_far, __ATOMIC_RELAXED);
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
    batch_put_back(batch);
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

bool harvest_begin(struct process *mine) {
    if (!spin_try(&mine->harvesting)) return false;
    if (!__atomic_load_n(&mine->leaving, __ATOMIC_SEQ_CST)) return true;
    spin_unlock(&mine->harvesting);
    return false;
}

// Another thread may have a capture in which the driver forbids to ask for events, unless this thread says it knows
// what it does.
void harvest(struct process *mine) {
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (!harvest_begin(mine)) return;
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

// A batch that another context has no use for now. Its events are that context's, which must not end meanwhile.
static struct batch *others_spare(struct process *mine, struct meter *meter) {
    struct batch *batch = NULL;
    if (!spin_try(&mine->harvesting)) return NULL;
    for (int i = 0; i < METERS && !batch; i++)
        if (__atomic_load_n(&mine->meters[i].context, __ATOMIC_ACQUIRE)) batch = batch_pop_free(&mine->meters[i]);
    if (batch && batch->start) REAL(cuEventDestroy_v2)(batch->start);
    if (batch && batch->end) REAL(cuEventDestroy_v2)(batch->end);
    if (batch) *batch = (struct batch){.meter = meter, .inflight = 1};
    spin_unlock(&mine->harvesting);
    return batch;
}

// Where all batches are on the GPU, waits for one, but no longer than twice what is queued takes: a kernel that runs
// may be waiting for this launch.
struct batch *batch_take(struct process *mine, struct meter *meter, uint64_t *now) {
    struct batch *batch = batch_spare(mine, meter);
    uint64_t entered = *now, queued = __atomic_load_n(&meter->average, __ATOMIC_RELAXED) *
                                      __atomic_load_n(&meter->outstanding, __ATOMIC_RELAXED);
    uint64_t most = 2 * (queued < DEPTH ? DEPTH : queued), some = queued / 4 < MILLISECOND ? queued / 4 : MILLISECOND;
    while (!batch) {
        harvest(mine);
        if ((batch = batch_spare(mine, meter)) || (batch = others_spare(mine, meter)) || *now - entered >= most) break;
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
    batch_put_back(batch);
    return NULL;
}
