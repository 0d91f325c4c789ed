/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of the meter share: batch.c keeps batches and ends them, settle.c pays for them, helper.c is the thread
 * that does both when the program does not, and meter.c stands before and after a launch. */
#ifndef KUBE_ACCEL_METER_H
#define KUBE_ACCEL_METER_H
#include "gate.h"

#define LANES   64
#define STREAMS 4096
#define PROBES  8 // places in which a stream may be found
#define METERS  64
#define BATCHES 512
#define DEPTH   (20 * MILLISECOND) // how far launches may run ahead of the GPU
#define SOON    50000 // ns between launches of a batch
#define TIGHT   5000 // ns in which no GPU goes idle
#define PRECISE 64 // batches for which a stream is measured precisely, at first too
#define LEGACY  ((CUstream)1)

struct batch {
    struct batch *next;
    struct meter *meter;
    CUstream stream;
    void *thread; // of a per-thread default stream: no other thread can name it
    CUevent start, end;
    uint64_t opened, last;
    uint64_t ended_at;
    uint64_t idle; // ns before the end in which the stream went idle; when is not known
    uint64_t pauses; // ns between launches in which it may have been idle
    uint32_t launches, place;
    uint32_t inflight; // threads that have it in hand; from 0 on it is open, pending or free
    uint32_t moves; // how often a thread took it in hand or let go
    bool closing;
    bool recorded; // the end, after the last launch
    bool gone; // its context ended meanwhile: the thread that has it in hand gives it up
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

struct stream { // in the place of its hash, or soon after it
    uint64_t key; // 0: none has the place yet
    uint32_t queued; // launches not yet paid for
    uint8_t steady; // batches since the GPU may last have been idle within one, as far as PRECISE
};

struct process { // not inherited by a forked child
    struct {
        uint32_t lock;
        struct batch *open;
    } lanes[LANES];
    struct stream streams[STREAMS];
    uint64_t sampled, random; // up to when precise measurements are used up
    struct meter meters[METERS];
    struct batch batches[BATCHES];
    uint32_t lock, harvesting, helper, capturing, captures;
    uint32_t leaving; // the process ends, and the driver with it
};

/* batch.c */
struct process *process(void); /* NULL: no memory */
bool enter_context(CUcontext context); /* makes it current for what follows; leave_context() takes what this answers */
void leave_context(bool entered);
bool in_capture(CUstream stream);
struct batch *batch_spare(struct process *mine, struct meter *meter); /* NULL: all are in use */
struct batch *batch_pop_free(struct meter *meter); /* one that its context has no use for now; NULL: none */
void batch_put_back(struct batch *batch);
void batch_owe(struct batch *batch, uint32_t launches);
bool batch_is_gone(const struct batch *batch);
bool batch_record_end(struct batch *batch);
/* The last launch of the batch was made: the event after it. The caller is the only one that has the batch. */
void batch_finish(struct batch *batch, uint64_t now);
/* With the lane's lock held; other threads look without it whether there is anything. */
void lane_set_open(struct process *mine, size_t lane, struct batch *batch);
/* Ends what is open in the lane, unless a thread has it in hand, which then does so. True: none is open any more. */
bool lane_flush(struct process *mine, size_t lane, uint64_t now);
void lanes_flush(struct process *mine, uint64_t now);

/* settle.c */
bool harvest_begin(struct process *mine); /* one thread at a time, and none any more when the process ends */
void harvest(struct process *mine); /* pays for what the GPU has done */
/* A batch to open; NULL: none came free in time. */
struct batch *batch_take(struct process *mine, struct meter *meter, uint64_t *now);

/* helper.c */
void helper_start(struct process *mine);
#endif
