// SPDX-License-Identifier: Apache-2.0
//
// Simulated CUDA driver: a libcuda.so.1 that has the GPUs of the topology file GPUSIM_FILE, as the simulated NVML does.
// A kernel takes gridDimX microseconds of GPU time and computes nothing; device memory is counted, not backed.
// What no test of ours asks for answers CUDA_ERROR_NOT_SUPPORTED.

#ifndef SIMCUDA_H
#define SIMCUDA_H

#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "card.h"

#define API __attribute__((visibility("default")))

typedef enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    PRIMARY_CONTEXT_ACTIVE = 708,
    CONTEXT_IS_DESTROYED = 709,
    HOST_MEMORY_ALREADY_REGISTERED = 712,
    NOT_SUPPORTED = 801,
    STREAM_CAPTURE_UNSUPPORTED = 900,
    STREAM_CAPTURE_INVALIDATED = 901,
    ILLEGAL_STATE = 401,
    STREAM_CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
    OPERATING_SYSTEM = 304,
} CUresult;

typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct {
    unsigned char bytes[16];
} CUuuid;

enum { LOCATION_NONE, LOCATION_DEVICE, LOCATION_HOST, LOCATION_HOST_NUMA, LOCATION_HOST_NUMA_CURRENT, LOCATION_DOMAIN = 6 };
enum { PINNED = 1, MANAGED = 2, MAX_DEPTH = 32, QUEUE = 1024 };
enum { CONTEXT_BYTES = 256 << 20, GRANULE = 2 << 20, ALIGNMENT = 512 };

typedef struct {
    int type, id;  // id of LOCATION_DOMAIN: in its low byte the device, in the next the domain
} CUmemLocation;

struct device {
    char name[96], pci[16];
    CUuuid uuid;
    int major, minor;
    int64_t total, taken;  // taken: what the topology file gives away
    struct card *card;
    struct tenant *tenant;  // ours, from the first context on
    struct context *primary;
    unsigned primary_flags, retained;
    struct pool *default_pool, *pool, *default_managed, *managed;
    int64_t graph_used, graph_reserved, graph_used_high, graph_reserved_high;
};

typedef struct context {
    struct context *next;
    struct device *device;
    unsigned flags, attached;
    bool alive;
    struct stream *streams;
    int64_t legacy_tail, blocking_tail;
} *CUcontext;

typedef struct stream {
    struct stream *next;
    CUcontext context;
    bool alive, non_blocking, legacy;
    pthread_t owner;  // of a per-thread default stream
    bool per_thread;
    unsigned flags;
    int priority;
    int64_t tail;
    int64_t ends[QUEUE];  // of the latest launches
    uint64_t launched;
    struct graph *capture;
    int capture_mode;
    bool capture_broken, capture_given;
    int calls;  // host functions not yet done
    struct event *recorded;  // the latest event
} *CUstream;

typedef struct graph *CUgraph;

// The library's one lock. Everything here but card.h's shared state is guarded by it.
void lock_all(void);
void unlock_all(void);

// Whether calls can work at all: cuInit was called, in this process.
CUresult ready(void);
struct device *device_of(CUdevice ordinal);
struct device *device_at(const CUmemLocation *location);  // NULL: none
CUdevice ordinal_of(const struct device *device);
CUresult attribute_of(const struct device *device, int attribute, int *value);
CUresult current_context(CUcontext *context);
bool context_lives(CUcontext context);
CUstream find_stream(CUcontext context, CUstream handle, bool per_thread);
bool capture_forbids(void);

// Device memory of this process on a card. take fails with OUT_OF_MEMORY when the card is full.
CUresult take_memory(struct device *device, int64_t bytes);
void give_memory(struct device *device, int64_t bytes);
void forget_memory_of(CUcontext context);
void trim_pools(struct device *device);

void let_time_pass(struct device *device);
CUresult wait_for(struct device *device, int64_t progress);  // unlocks while it waits
void enqueue(CUstream stream, int64_t cost);
CUresult copy(CUstream stream, int64_t bytes, bool waits);  // waits: the caller is to see it done

CUresult graph_add_kernel(CUgraph graph, int64_t cost);
CUresult graph_add_alloc(CUgraph graph, int device, size_t bytes, CUdeviceptr *out);
CUgraph graph_new(void);
int64_t graph_address(int64_t bytes);

// A function that holds the lock for the rest of its scope, after the checks every call makes.
struct scope {
    CUresult error;
};
static inline struct scope enter(void) {
    lock_all();
    return (struct scope){ready()};
}
static inline void leave(struct scope *scope) {
    (void)scope;
    unlock_all();
}
#define ENTER                                                   \
    __attribute__((cleanup(leave))) struct scope scope = enter(); \
    if (scope.error != SUCCESS)                                 \
        return scope.error
#define ENTER_CONTEXT                                           \
    ENTER;                                                      \
    CUcontext context;                                          \
    if ((scope.error = current_context(&context)) != SUCCESS)   \
        return scope.error
#define NEED(pointer)         \
    if ((pointer) == 0)       \
        return INVALID_VALUE
#define TRY(call)                       \
    do {                                \
        CUresult tried = (call);        \
        if (tried != SUCCESS)           \
            return tried;               \
    } while (0)

// One body, two exports: the plain name, whose stream 0 is the legacy one, and _ptsz (_ptds, where it waits), whose
// stream 0 is the thread's.
#define FLAVOURS(name, ...) BOTH(name, _ptsz, __VA_ARGS__)
#define BOTH(name, suffix, parameters, ...)                               \
    API CUresult name parameters {                                        \
        enum { PER_THREAD = 0 };                                          \
        __VA_ARGS__                                                       \
    }                                                                     \
    API CUresult name##suffix parameters {                                \
        enum { PER_THREAD = 1 };                                          \
        __VA_ARGS__                                                       \
    }
#define ENTER_STREAM(handle)                                            \
    ENTER_CONTEXT;                                                      \
    CUstream stream = find_stream(context, handle, PER_THREAD);         \
    if (stream == NULL)                                                 \
        return INVALID_HANDLE

#endif
