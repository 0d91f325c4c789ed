/* SPDX-License-Identifier: Apache-2.0
 *
 * What the shim's files offer each other. Process memory that a forked child must not inherit is in wiped(). */
#ifndef KUBE_ACCEL_SHIM_H
#define KUBE_ACCEL_SHIM_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi.h"
#include "driver.h"
#include "slots.h" /* generated: SLOT_<name> of every export */

/* A wrapper, `HOOK(cuMemFree_v2)(CUdeviceptr pointer) {...}`: the generator finds it at the start of a line. */
#define HOOK(name) __attribute__((visibility("default"))) CUresult name

/* resolve.c: REAL(f)(...) calls the driver's own. One that this driver lacks answers CUDA_ERROR_NOT_SUPPORTED. */
extern void *slots[];
extern void *const wrappers[]; // by slot, what is exported in the function's place; NULL: a jump
#define REAL(name) ((__typeof__(&name))__atomic_load_n(&slots[SLOT_##name], __ATOMIC_RELAXED))
#define HAS(name)  (real_at(SLOT_##name) != NULL)
extern const char *const names[]; // by slot
void *real_at(int slot);                     /* NULL: this driver lacks it */
const char *export_at(const void *address); /* the name of the export that is there; NULL: none is */
/* Of libc or the driver, by the newest version: so is called what libc has only by versions after GLIBC_2.2.5. */
void *real_symbol(const char *name);

/* process.c */
/* The zeroed memory at *place, made at the first call; zero again in a forked child, at the same address. NULL: none,
 * and say() told why. */
void *wiped(void **place, size_t bytes);
/* One line on stderr, the first time that this format is used. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
uint64_t now_ns(void);         /* CLOCK_MONOTONIC */
bool spin_try(uint32_t *lock); /* for short sections within the process */
void spin_lock(uint32_t *lock);
void spin_unlock(uint32_t *lock);

/* policy.c */
/* A consistent copy for a device; stale feedback comes as unknown. False: no usable policy, and say() told why. */
bool policy_read(int index, struct ka_policy_device *device);
int policy_index(const uint8_t uuid[16]); /* -1: not in the policy */
extern const uint32_t *policy_changes;    /* where policy_generation() is, or NULL as long as nobody asked for it */
const uint32_t *policy_generation(void); /* changes whenever the policy or its feedback does; NULL: no usable policy */
int policy_devices(void); /* 0: no usable policy */
/* The fixed path, or $variable where nothing is at KA_POLICY_PATH. */
const char *policy_path(const char *fixed, const char *variable);

/* state.c */
struct ka_state *state_map(void); /* the mapped account; NULL: none, and say() told why */
struct ka_slot *state_slot(void); /* this process's place in it, taken at the first call; NULL as above */
void state_sweep(void); /* release what dead processes were charged */

/* account.c: bytes of this process on a policy device. An index below 0 is charged nothing. */
CUresult account_reserve(int index, uint64_t bytes); /* CUDA_SUCCESS, or CUDA_ERROR_OUT_OF_MEMORY, counted by reason */
void account_add(int index, uint64_t bytes); /* whatever the limit says: memory that is taken already */
void account_release(int index, uint64_t bytes);
void account_drop(struct ka_state_device *device, uint64_t bytes); /* used_bytes only */
CUresult account_denied_by_policy(void);
void account_denied_by_device(int index);
bool account_view(int index, uint64_t *limit, uint64_t *used); /* limit 0: none. False: no usable policy or account */

/* table.c: what the program holds, by handle. */
enum kind { POINTER = 1, ARRAY, MIPMAP, HANDLE, MAPPING, CONTEXT };
struct record {
    uint64_t bytes; /* charged, or of a pool's pointer asked for */
    uint64_t owner; /* the context that takes it along when it is destroyed; of a MAPPING the HANDLE */
    uint32_t holders; /* of a HANDLE: references and mappings; of a CONTEXT: attachments */
    int16_t index; /* the policy's device */
    int16_t pool; /* the pool whose charge has it, -1: none */
};
bool table_put(enum kind kind, uint64_t key, struct record record); /* false: no memory */
bool table_take(enum kind kind, uint64_t key, struct record *record);
bool table_has(enum kind kind, uint64_t key, struct record *record);
/* Holders after the change, -1: unknown. At 0 it is taken, as `last`. */
int table_hold(enum kind kind, uint64_t key, int more, struct record *last);
void table_each(bool (*drop)(enum kind kind, uint64_t key, struct record *record, void *argument), void *argument);

/* charge.c */
#define ON_HOST -1
/* The device whose memory it is, or ON_HOST. What is not known is refused: it could be a GPU's and charged to nobody. */
CUresult place_of_memory(const CUmemLocation *location, int type, CUdevice *device);
/* One charge for one handle, reserved before the driver is asked, then recorded or given back. */
struct charge {
    int index;
    uint64_t bytes;
};
CUresult charge_current(struct charge *charge, uint64_t bytes); /* without a context the driver is to say so */
CUresult charge_device(struct charge *charge, CUdevice device, uint64_t bytes);
/* Both pass on the driver's result; no record: it was not known. */
CUresult charged(struct charge *charge, CUresult result, enum kind kind, uint64_t key);
CUresult released(CUresult result, enum kind kind, uint64_t key, const struct record *record);

/* device.c */
#define NOT_IN_POLICY  -1
#define NO_SUCH_DEVICE -2 /* says the driver */
int device_index(CUdevice device);
CUresult current_device(CUdevice *device); /* of the calling thread's context; the driver's error where it has none */

/* pools.c */
void reserved_settle_all(void); /* bring the charges of pools and graph memory up to date, before saying no */
void graph_settle(void); /* after a graph was launched: charge what graph memory has grown by */
void pool_settle(int pool);
void pools_sleep(CUdevice device); /* its primary context has ended, and the pools may have with it */

/* batch.c: ends what is being measured, before the program can learn that its work is done, or gives the stream other
 * work. What names/cuda.txt marks with `tells` does so; a wrapper of such a function calls tells(). */
extern uint64_t open_lanes;
void meter_told(void);
static inline void tells(void) {
    if (__builtin_expect(__atomic_load_n(&open_lanes, __ATOMIC_RELAXED) != 0, 0)) meter_told();
}

/* meter.c: around a call that may destroy a context, whose events must not be asked for meanwhile */
void gate_destroying(void);
void gate_destroyed(CUcontext context); /* NULL: it did not */
#endif
