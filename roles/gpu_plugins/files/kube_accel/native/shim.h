/* SPDX-License-Identifier: Apache-2.0
 *
 * What the shim's files offer each other. No file keeps process memory that a forked child must not inherit anywhere but in wiped(). */
#ifndef KUBE_ACCEL_SHIM_H
#define KUBE_ACCEL_SHIM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi.h"
#include "driver.h"
#include "slots.h" /* generated: SLOT_<name> of every export */

#define EXPORT __attribute__((visibility("default")))

/* A wrapper: `HOOK(cuMemFree_v2)(CUdeviceptr pointer) {...}`; the generator finds them by this word at the start of a line. */
#define HOOK(name) EXPORT CUresult name

/* resolve.c: the real driver. REAL(f)(...) calls it; a function this driver lacks answers CUDA_ERROR_NOT_SUPPORTED. */
extern void *slots[];
#define REAL(name) ((__typeof__(&name))__atomic_load_n(&slots[SLOT_##name], __ATOMIC_RELAXED))
#define HAS(name) real_has(SLOT_##name)
bool real_has(int slot);
void *real_symbol(const char *name); /* also libc's, by their newest version: what needs one after GLIBC_2.2.5 is called so */

/* process.c */
void *wiped(size_t bytes);     /* zeroed memory, zero again in a forked child at the same address; NULL: none */
void say(const char *format, ...) __attribute__((format(printf, 1, 2))); /* one line on stderr, the first time that format is used */
uint64_t now_ns(void);         /* CLOCK_MONOTONIC */
bool spin_try(uint32_t *lock); /* for short sections within the process */
void spin_lock(uint32_t *lock);
void spin_unlock(uint32_t *lock);

/* policy.c: a consistent copy of device `index`; feedback that is stale comes as unknown. False: there is no usable policy, and say() told why. */
bool policy_read(int index, struct ka_policy_device *device);
int policy_index(const uint8_t uuid[16]); /* -1: not in the policy */
int policy_devices(void);                 /* 0: no usable policy */
const char *policy_path(const char *fixed, const char *variable); /* the fixed path, or $variable where nothing is at KA_POLICY_PATH */

/* state.c: the mapped account, with a slot for this process where `attach`; NULL: none, and say() told why. */
struct ka_state *state_map(void);
struct ka_slot *state_slot(void);

/* account.c: bytes of this process on policy device `index`. */
CUresult account_reserve(int index, uint64_t bytes); /* CUDA_SUCCESS, or CUDA_ERROR_OUT_OF_MEMORY, counted by reason */
void account_add(int index, uint64_t bytes);         /* whatever the limit says: memory that is already taken */
void account_release(int index, uint64_t bytes);
void account_denied_by_device(int index);
uint64_t account_used(int index);                    /* with what the feedback adds */

/* device.c */
int device_index(CUdevice device);          /* the policy's, -1: not in it */
CUresult current_device(CUdevice *device);  /* of the calling thread's context; the driver's error where it has none */

/* pools.c */
void reserved_settle_all(void);             /* bring the charges of pools and graph memory up to date, before saying no */
void graph_settle(void);                    /* after a graph launch or trim: charge what the current device's graph memory has taken */

/* launch.c, the compute gate */
void gate_context_gone(CUcontext context);  /* before a context is destroyed: drop what belongs to it */
#endif
