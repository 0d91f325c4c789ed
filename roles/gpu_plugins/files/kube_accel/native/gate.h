/* SPDX-License-Identifier: Apache-2.0
 *
 * The compute gate: budget.c keeps what GPU time the container has left, the meter (meter.h) measures what it uses,
 * launch.c stands before the driver's launches. */
#ifndef KUBE_ACCEL_GATE_H
#define KUBE_ACCEL_GATE_H
#include "shim.h"

#define MILLISECOND 1000000

/* budget.c */
extern uint32_t
    gated_devices; /* a bit for each device of the policy with a share to keep, as of the generation below */
extern uint32_t gated_generation;
void budget_look(uint64_t now);                /* read the policy again */
int64_t budget_left(int index, uint64_t now);  /* ns of GPU time, after adding what time brought; below zero: wait */
uint64_t budget_wait(int index, int64_t debt); /* ns until a debt is paid */
bool budget_contended(int index);              /* others are known to use the GPU too */
void budget_pay(int index, uint64_t from, uint64_t to,
                uint64_t now); /* for the GPU's time between these, but for what the container has paid of it already */
void budget_count(int index, uint32_t launches, uint64_t throttled);

/* Whether any launch could have to wait. What most programs run into is these loads and nothing else. */
static inline bool gate_on(void) {
    const uint32_t *generation = __atomic_load_n(&policy_changes, __ATOMIC_ACQUIRE);
    if (__builtin_expect(!generation, 0) && !(generation = policy_generation())) return false;
    if (__builtin_expect(
            __atomic_load_n(generation, __ATOMIC_RELAXED) != __atomic_load_n(&gated_generation, __ATOMIC_ACQUIRE), 0))
        budget_look(now_ns());
    return __builtin_expect(__atomic_load_n(&gated_devices, __ATOMIC_RELAXED) != 0, 0);
}

/* meter.c */
struct pass { /* one launch on its way */
    struct batch *batch;
    uint64_t at;
    bool precise;
};
CUresult meter_enter(struct pass *pass, CUstream stream,
                     bool per_thread); /* waits for budget; on success meter_leave() is due after the launch */
void meter_leave(struct pass *pass, CUresult result, bool alone); /* alone: long work, measured precisely */
void meter_capture(bool begins);

/* helper.c */
void sleep_ns(uint64_t ns);
#endif
