/* SPDX-License-Identifier: Apache-2.0
 *
 * The two files between the node's daemon and the interposer in a container. Little-endian, fixed layout; a layout once
 * released never changes. Device i of the state is device i of the policy, and stays so while the container lives.
 *
 * policy: the daemon's, read-only in the container, changed in place (never truncated, never replaced). The writer
 * makes `generation` odd, writes, makes it even again; a daemon that starts and finds it odd writes the whole file
 * anew. state:  the processes' account, made full size and zero (but for the header) by the daemon. Everything in it is
 * the tenant's word: the daemon reads it with pread (a mapping would take SIGBUS from a file cut short) and clamps what
 * it reads. */
#ifndef KUBE_ACCEL_ABI_H
#define KUBE_ACCEL_ABI_H
#include <stddef.h>
#include <stdint.h>

#define KA_POLICY_PATH      "/etc/kube-accel/policy"
#define KA_STATE_PATH       "/run/kube-accel/state"
#define KA_DRIVER_DIRECTORY "/usr/lib/kube-accel/driver" /* libcuda.so.1, libnvidia-ml.so.1: the driver's own */

#define KA_POLICY_MAGIC "KAPOLICY"
#define KA_STATE_MAGIC  "KASTATE" /* with its NUL: eight bytes */
#define KA_LAYOUT       1u
#define KA_DEVICES      16
#define KA_SLOTS        1024
#define KA_UNKNOWN64    UINT64_MAX
#define KA_UNKNOWN32    UINT32_MAX

struct ka_policy_device {
    uint8_t uuid[16];                  /* as cuDeviceGetUuid gives it: the UUID's text from left to right */
    uint64_t memory_limit_bytes;       /* 0: none */
    uint64_t context_overhead_bytes;   /* charged once a process and device */
    uint32_t core_percent;             /* hard share of GPU time; 0 or from 100 on: no gate */
    uint32_t core_soft_percent;        /* share while nobody else uses the GPU; 0: as core_percent */
    uint64_t
        feedback_uncounted_bytes; /* memory of this container that NVML sees and used_bytes does not; KA_UNKNOWN64 */
    uint32_t feedback_busy_permille;   /* GPU time of this container; KA_UNKNOWN32 */
    uint32_t feedback_others_permille; /* GPU time of all others; KA_UNKNOWN32 */
    uint64_t reserved;
};

struct ka_policy {
    char magic[8];
    uint32_t layout;
    uint32_t size; /* of the file */
    uint32_t generation;
    uint32_t flags;
    uint32_t device_count; /* 1 to KA_DEVICES */
    uint32_t reserved;
    uint64_t feedback_at_ns; /* CLOCK_MONOTONIC of the host; feedback counts for two seconds */
    uint64_t reserved2[3];
    struct ka_policy_device device[KA_DEVICES];
};

struct ka_state_device {
    uint64_t used_bytes;    /* the sum of the slots' charges */
    uint64_t changes; /* counts charges and releases, so that a reader of all slots can tell that none came between */
    uint64_t denied_limit; /* allocations refused: over the limit */
    uint64_t denied_device; /* allocations the driver refused: the GPU itself is full */
    uint64_t held_bytes; /* the most that it had at once, with what NVML alone sees: a container may have that again */
    uint64_t reserved[3];
    int64_t budget_ns; /* from here on the compute gate's */
    uint64_t refilled_at_ns; /* CLOCK_MONOTONIC */
    uint64_t busy_ns; /* GPU time charged */
    uint64_t launches;
    uint64_t throttled_ns; /* time threads were made to wait */
    uint64_t gate[11];
};

#define KA_SLOT_LIVE 1u

struct ka_slot { /* one a process */
    uint32_t flags;
    uint32_t pid; /* in its own PID namespace */
    uint64_t start_time; /* /proc/<pid>/stat, field 22 */
    uint64_t stack; /* field 28: another one after exec */
    uint32_t busy; /* threads between a change of used_bytes and of charged_bytes */
    uint32_t reserved;
    uint64_t reserved2[4];
    uint64_t charged_bytes[KA_DEVICES];
};

struct ka_state {
    char magic[8];
    uint32_t layout;
    uint32_t size;
    uint32_t device_count;
    uint32_t slot_count; /* KA_SLOTS */
    uint32_t slots_high; /* slots from here on were never used */
    uint32_t reserved;
    uint64_t denied_policy; /* allocations refused: no usable policy, or a device it does not name */
    uint64_t reserved2[3];
    struct ka_state_device device[KA_DEVICES];
    struct ka_slot slot[KA_SLOTS]; /* its process holds a lock (fcntl F_SETLK) on the slot's first byte in the file */
};

_Static_assert(sizeof(struct ka_policy_device) == 64, "layout 1");
_Static_assert(offsetof(struct ka_policy, device) == 64 && sizeof(struct ka_policy) == 1088, "layout 1");
_Static_assert(offsetof(struct ka_state_device, budget_ns) == 64 && sizeof(struct ka_state_device) == 192, "layout 1");
_Static_assert(offsetof(struct ka_slot, charged_bytes) == 64 && sizeof(struct ka_slot) == 192, "layout 1");
_Static_assert(offsetof(struct ka_state, device) == 64, "layout 1");
_Static_assert(offsetof(struct ka_state, slot) == 64 + 16 * 192 &&
                   sizeof(struct ka_state) == 64 + 16 * 192 + 1024 * 192,
               "layout 1");
#endif
