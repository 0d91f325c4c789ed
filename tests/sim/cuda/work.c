// SPDX-License-Identifier: Apache-2.0
//
// Work on the card: streams, events, kernels, capture and graphs.

#include "simcuda.h"

#include <sched.h>

enum { NON_BLOCKING = 1, DISABLE_TIMING = 2, CAPTURE_NONE = 0, CAPTURE_ACTIVE = 1, CAPTURE_BROKEN = 2 };
enum { MODE_GLOBAL, MODE_THREAD_LOCAL, MODE_RELAXED };
#define LEGACY ((CUstream)1)
#define THREAD ((CUstream)2)
enum { NS_PER_BLOCK = 1000, COPY_BYTES_PER_NS = 25, CALL_STEP_NS = 1000 };

typedef void *CUfunction;
typedef struct event {
    struct event *next;
    bool alive, recorded, captured, timed;
    CUcontext context;
    int64_t progress, recorded_at, happened;  // happened: its time, once it is over
} *CUevent;

enum node_kind { NODE_KERNEL = 0, NODE_MEMCPY = 1, NODE_HOST = 3, NODE_MEM_ALLOC = 10, NODE_MEM_FREE = 11 };
typedef void (*host_function)(void *data);
typedef struct node {
    struct node *next;
    int kind;
    int64_t cost, bytes;
    CUdeviceptr address;
    host_function function;
    void *data;
} *CUgraphNode;
struct graph {
    struct node *first, *last;
    int count;
};
typedef struct executable {
    struct node *nodes;  // a copy
    int count;
} *CUgraphExec;

static CUresult graph_add_copy(CUgraph graph, int64_t cost);
static CUresult graph_add_call(CUgraph graph, host_function function, void *data);

static CUevent events;
static int global_captures;
static bool captures_broken;  // all global ones, by a call that they forbid
static __thread int thread_mode = MODE_GLOBAL;

// ---------------------------------------------------------------- streams

static CUstream new_stream(CUcontext context, unsigned flags) {
    CUstream stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        abort();
    *stream = (struct stream){.next = context->streams, .context = context, .alive = true, .flags = flags};
    stream->non_blocking = (flags & NON_BLOCKING) != 0;
    return context->streams = stream;
}

CUstream find_stream(CUcontext context, CUstream handle, bool per_thread) {
    if (handle == NULL)
        handle = per_thread ? THREAD : LEGACY;
    CUstream stream = context->streams;
    if (handle == LEGACY || handle == THREAD) {
        while (stream != NULL && !(handle == LEGACY ? stream->legacy
                                                    : stream->per_thread && pthread_equal(stream->owner, pthread_self())))
            stream = stream->next;
        if (stream == NULL) {
            stream = new_stream(context, 0);
            stream->legacy = handle == LEGACY;
            stream->per_thread = handle == THREAD;
            stream->owner = pthread_self();
        }
        return stream;
    }
    while (stream != NULL && stream != handle)
        stream = stream->next;
    return stream != NULL && stream->alive ? stream : NULL;
}

static int64_t at_least(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// Where on the clock of our progress the next thing of this stream begins.
static int64_t start_of(CUstream stream) {
    CUcontext context = stream->context;
    let_time_pass(context->device);
    int64_t start = at_least(context->device->tenant->progress, stream->tail);
    if (stream->legacy)
        return at_least(start, context->blocking_tail);
    return stream->non_blocking ? start : at_least(start, context->legacy_tail);
}

static void put(CUstream stream, int64_t cost) {
    CUcontext context = stream->context;
    struct tenant *tenant = context->device->tenant;
    int64_t *last = &stream->ends[stream->launched++ % QUEUE];
    wait_for(context->device, *last);  // a full queue blocks who launches
    int64_t end = start_of(stream) + cost;
    *last = stream->tail = end;
    if (stream->legacy)
        context->legacy_tail = end;
    if (!stream->non_blocking)
        context->blocking_tail = at_least(context->blocking_tail, end);
    lock_card(context->device->card);
    tenant->target = at_least(tenant->target, end);
    unlock_card(context->device->card);
}

void enqueue(CUstream stream, int64_t cost) {
    put(stream, cost);
    stream->context->device->tenant->launches++;
}

static CUresult wait_stream(CUstream stream) {
    TRY(wait_for(stream->context->device, stream->legacy ? stream->context->blocking_tail : stream->tail));
    while (stream->calls > 0) {
        unlock_all();
        nanosleep(&(struct timespec){0, CALL_STEP_NS}, NULL);
        lock_all();
    }
    return SUCCESS;
}

static CUresult create_stream(CUstream *out, unsigned flags, int priority) {
    ENTER_CONTEXT;
    NEED(out);
    NEED((flags & ~NON_BLOCKING) == 0);
    *out = new_stream(context, flags);
    (*out)->priority = priority;
    return SUCCESS;
}

API CUresult cuStreamCreate(CUstream *out, unsigned flags) {
    return create_stream(out, flags, 0);
}

API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    ENTER_CONTEXT;
    if (least != NULL)
        *least = 0;
    if (greatest != NULL)
        *greatest = -5;
    return SUCCESS;
}

API CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
    return create_stream(out, flags, priority);
}

API CUresult cuStreamDestroy_v2(CUstream handle) {
    ENTER_CONTEXT;
    CUstream stream = find_stream(context, handle, false);
    if (stream == NULL || stream->legacy || stream->per_thread)
        return INVALID_HANDLE;
    stream->alive = false;
    return SUCCESS;
}

API CUresult cuStreamDestroy(CUstream handle) {
    return cuStreamDestroy_v2(handle);
}

static CUresult refuse_in_capture(CUstream stream) {
    if (stream->capture != NULL)
        stream->capture_broken = true;
    return stream->capture != NULL || capture_forbids() ? STREAM_CAPTURE_UNSUPPORTED : SUCCESS;
}

FLAVOURS(cuStreamSynchronize, (CUstream handle),
    ENTER_STREAM(handle);
    TRY(refuse_in_capture(stream));
    TRY(wait_stream(stream));
    trim_pools(context->device);
    return SUCCESS;
)

FLAVOURS(cuStreamQuery, (CUstream handle),
    ENTER_STREAM(handle);
    TRY(refuse_in_capture(stream));
    let_time_pass(context->device);
    int64_t tail = stream->legacy ? context->blocking_tail : stream->tail;
    return context->device->tenant->progress >= tail && stream->calls == 0 ? SUCCESS : NOT_READY;
)

static CUresult synchronize(CUcontext context) {
    if (capture_forbids())
        return STREAM_CAPTURE_UNSUPPORTED;
    int64_t tail = 0;
    for (CUstream stream = context->streams; stream != NULL; stream = stream->next)
        tail = at_least(tail, stream->tail);
    TRY(wait_for(context->device, tail));
    for (CUstream stream = context->streams; stream != NULL; stream = stream->next)
        TRY(wait_stream(stream));
    trim_pools(context->device);
    return SUCCESS;
}

API CUresult cuCtxSynchronize(void) {
    ENTER_CONTEXT;
    return synchronize(context);
}

API CUresult cuCtxSynchronize_v2(CUcontext wanted) {
    ENTER_CONTEXT;
    if (wanted != NULL && !context_lives(wanted))
        return INVALID_CONTEXT;
    return synchronize(wanted != NULL ? wanted : context);
}

// ---------------------------------------------------------------- events

static CUevent find_event(CUevent wanted) {
    CUevent event = events;
    while (event != NULL && event != wanted)
        event = event->next;
    return event != NULL && event->alive ? event : NULL;
}

API CUresult cuEventCreate(CUevent *out, unsigned flags) {
    ENTER_CONTEXT;
    NEED(out);
    CUevent event = calloc(1, sizeof *event);
    if (event == NULL)
        abort();
    *event = (struct event){.next = events, .alive = true, .context = context, .timed = (flags & DISABLE_TIMING) == 0};
    *out = events = event;
    return SUCCESS;
}

API CUresult cuEventDestroy_v2(CUevent event) {
    ENTER;
    if (find_event(event) == NULL)
        return INVALID_HANDLE;
    event->alive = false;
    return SUCCESS;
}

API CUresult cuEventDestroy(CUevent event) {
    return cuEventDestroy_v2(event);
}

// Whether it is over, and if so when that was.
static CUresult settle(CUevent event) {
    if (find_event(event) == NULL)
        return INVALID_HANDLE;
    if (event->captured)
        return CAPTURED_EVENT;
    struct device *device = event->context->device;
    if (!event->recorded || event->happened != 0)
        return SUCCESS;
    lock_card(device->card);
    advance_card(device->card, monotonic_ns());
    bool over = device->tenant->progress >= event->progress;
    if (over)
        event->happened = at_least(event->recorded_at, time_of(device->tenant, event->progress));
    unlock_card(device->card);
    return over ? SUCCESS : NOT_READY;
}

static CUresult record(CUevent event, CUstream stream) {
    if (find_event(event) == NULL || event->context != stream->context)
        return INVALID_HANDLE;
    struct tenant *tenant = stream->context->device->tenant;
    event->captured = stream->capture != NULL;
    if (event->captured) {
        tenant->captured_records++;
        return SUCCESS;
    }
    if (stream->legacy && global_captures > 0)
        return STREAM_CAPTURE_IMPLICIT;
    if (stream->recorded != NULL && stream->recorded != event)
        settle(stream->recorded);  // while it is still known when that was
    stream->recorded = event;
    event->progress = start_of(stream);
    event->recorded_at = stream->context->device->card->now;
    event->happened = 0;
    event->recorded = true;
    tenant->records++;
    return SUCCESS;
}

FLAVOURS(cuEventRecord, (CUevent event, CUstream handle),
    ENTER_STREAM(handle);
    return record(event, stream);
)

FLAVOURS(cuEventRecordWithFlags, (CUevent event, CUstream handle, unsigned flags),
    ENTER_STREAM(handle);
    NEED(flags == 0);
    return record(event, stream);
)

API CUresult cuEventQuery(CUevent event) {
    ENTER;
    return capture_forbids() ? STREAM_CAPTURE_UNSUPPORTED : settle(event);
}

API CUresult cuEventSynchronize(CUevent event) {
    ENTER;
    if (capture_forbids())
        return STREAM_CAPTURE_UNSUPPORTED;
    CUresult result = settle(event);
    if (result == NOT_READY && (result = wait_for(event->context->device, event->progress)) == SUCCESS)
        result = settle(event);
    return result;
}

API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    ENTER;
    NEED(milliseconds);
    TRY(settle(start));
    TRY(settle(end));
    if (!start->recorded || !end->recorded || !start->timed || !end->timed)
        return INVALID_HANDLE;
    *milliseconds = (float)((double)(end->happened - start->happened) / 1e6);
    return SUCCESS;
}

API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    return cuEventElapsedTime_v2(milliseconds, start, end);
}

FLAVOURS(cuStreamWaitEvent, (CUstream handle, CUevent event, unsigned flags),
    ENTER_STREAM(handle);
    NEED(flags == 0);
    if (find_event(event) == NULL)
        return INVALID_HANDLE;
    if (event->recorded)
        stream->tail = at_least(stream->tail, event->progress);
    return SUCCESS;
)

// ---------------------------------------------------------------- kernels

API CUresult cuModuleLoadData(void **out, const void *image) {
    ENTER_CONTEXT;
    NEED(out);
    if (image == NULL)
        return INVALID_IMAGE;
    *out = &events;
    return SUCCESS;
}

API CUresult cuModuleUnload(void *module) {
    ENTER;
    NEED(module);
    return SUCCESS;
}

API CUresult cuModuleGetFunction(CUfunction *out, void *module, const char *name) {
    ENTER;
    NEED(out);
    NEED(module);
    NEED(name);
    *out = &events;
    return SUCCESS;
}

static CUresult run(CUstream stream, CUfunction function, int64_t blocks) {
    if (function == NULL)
        return INVALID_HANDLE;
    NEED(blocks > 0);
    if (stream->capture != NULL)
        return graph_add_kernel(stream->capture, blocks * NS_PER_BLOCK);
    if (stream->legacy && global_captures > 0)
        return STREAM_CAPTURE_IMPLICIT;
    enqueue(stream, blocks * NS_PER_BLOCK);
    return SUCCESS;
}

#define SHAPE unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define UNUSED_SHAPE (void)y, (void)z, (void)bx, (void)by, (void)bz, (void)shared

FLAVOURS(cuLaunchKernel, (CUfunction function, SHAPE, CUstream handle, void **parameters, void **extra),
    ENTER_STREAM(handle);
    UNUSED_SHAPE, (void)parameters, (void)extra;
    return run(stream, function, x);
)

FLAVOURS(cuLaunchCooperativeKernel, (CUfunction function, SHAPE, CUstream handle, void **parameters),
    ENTER_STREAM(handle);
    UNUSED_SHAPE, (void)parameters;
    return run(stream, function, x);
)

typedef struct {
    unsigned x, y, z, bx, by, bz, shared;
    CUstream stream;
    void *attributes;
    unsigned attribute_count;
} CUlaunchConfig;

FLAVOURS(cuLaunchKernelEx, (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra),
    NEED(config);
    ENTER_STREAM(config->stream);
    (void)parameters, (void)extra;
    return run(stream, function, config->x);
)

typedef struct {
    CUfunction function;
    unsigned x, y, z, bx, by, bz, shared;
    CUstream stream;
    void **parameters;
} CUDA_LAUNCH_PARAMS;

API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned count, unsigned flags) {
    ENTER;
    (void)flags;
    NEED(launches);
    for (unsigned i = 0; i < count; i++) {
        CUstream stream = launches[i].stream;
        if (stream == NULL || !context_lives(stream->context))
            return INVALID_HANDLE;
        TRY(run(stream, launches[i].function, launches[i].x));
    }
    return SUCCESS;
}

static CUresult launch_grid(CUfunction function, int width, CUstream handle) {
    ENTER_CONTEXT;
    CUstream stream = find_stream(context, handle, false);
    return stream == NULL ? INVALID_HANDLE : run(stream, function, width);
}

API CUresult cuLaunch(CUfunction function) {
    return launch_grid(function, 1, NULL);
}

API CUresult cuLaunchGrid(CUfunction function, int width, int height) {
    (void)height;
    return launch_grid(function, width, NULL);
}

API CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream handle) {
    (void)height;
    return launch_grid(function, width, handle);
}

// ---------------------------------------------------------------- copies and host functions

// What is copied is not there to be copied: it takes time, and who must see it done waits.
CUresult copy(CUstream stream, int64_t bytes, bool waits) {
    if (waits)
        TRY(refuse_in_capture(stream));
    if (stream->capture != NULL)
        return graph_add_copy(stream->capture, bytes / COPY_BYTES_PER_NS);
    if (stream->legacy && global_captures > 0)
        return STREAM_CAPTURE_IMPLICIT;
    put(stream, bytes / COPY_BYTES_PER_NS);
    return waits ? wait_stream(stream) : SUCCESS;
}

struct call {
    CUstream stream;
    int64_t at;
    host_function function;
    void (*callback)(CUstream stream, int result, void *data);
    void *data;
};

static void *make_call(void *argument) {
    struct call call = *(struct call *)argument;
    free(argument);
    lock_all();
    wait_for(call.stream->context->device, call.at);
    unlock_all();
    if (call.callback != NULL)
        call.callback(call.stream, SUCCESS, call.data);
    else
        call.function(call.data);
    lock_all();
    call.stream->calls--;
    unlock_all();
    return NULL;
}

static CUresult call_later(struct call wanted) {
    pthread_t thread;
    struct call *call = malloc(sizeof *call);
    if (call == NULL)
        abort();
    put(wanted.stream, 0);
    *call = wanted;
    call->at = wanted.stream->tail;
    wanted.stream->calls++;
    if (pthread_create(&thread, NULL, make_call, call) != 0)
        abort();
    pthread_detach(thread);
    return SUCCESS;
}

static CUresult call_on(CUstream stream, host_function function, void *data) {
    NEED(function);
    if (stream->capture != NULL)
        return graph_add_call(stream->capture, function, data);
    return call_later((struct call){.stream = stream, .function = function, .data = data});
}

FLAVOURS(cuLaunchHostFunc, (CUstream handle, host_function function, void *data),
    ENTER_STREAM(handle);
    return call_on(stream, function, data);
)

FLAVOURS(cuLaunchHostFunc_v2, (CUstream handle, host_function function, void *data, unsigned mode),
    ENTER_STREAM(handle);
    (void)mode;
    return call_on(stream, function, data);
)

FLAVOURS(cuStreamAddCallback,
         (CUstream handle, void (*callback)(CUstream, int, void *), void *data, unsigned flags),
    ENTER_STREAM(handle);
    NEED(callback);
    NEED(flags == 0);
    TRY(refuse_in_capture(stream));
    return call_later((struct call){.stream = stream, .callback = callback, .data = data});
)

// ---------------------------------------------------------------- graphs

static CUgraphNode add_node(CUgraph graph, int kind) {
    CUgraphNode node = calloc(1, sizeof *node);
    if (node == NULL)
        abort();
    node->kind = kind;
    if (graph->last != NULL)
        graph->last->next = node;
    else
        graph->first = node;
    graph->last = node;
    graph->count++;
    return node;
}

CUgraph graph_new(void) {
    CUgraph graph = calloc(1, sizeof *graph);
    if (graph == NULL)
        abort();
    return graph;
}

CUresult graph_add_kernel(CUgraph graph, int64_t cost) {
    add_node(graph, NODE_KERNEL)->cost = cost;
    return SUCCESS;
}

static CUresult graph_add_copy(CUgraph graph, int64_t cost) {
    add_node(graph, NODE_MEMCPY)->cost = cost;
    return SUCCESS;
}

static CUresult graph_add_call(CUgraph graph, host_function function, void *data) {
    CUgraphNode node = add_node(graph, NODE_HOST);
    node->function = function;
    node->data = data;
    return SUCCESS;
}

API CUresult cuGraphCreate(CUgraph *out, unsigned flags) {
    ENTER;
    NEED(out);
    NEED(flags == 0);
    *out = graph_new();
    return SUCCESS;
}

API CUresult cuGraphDestroy(CUgraph graph) {
    ENTER;
    NEED(graph);
    for (struct node *node = graph->first, *next; node != NULL; node = next) {
        next = node->next;
        free(node);
    }
    free(graph);
    return SUCCESS;
}

API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    ENTER;
    NEED(graph);
    NEED(count);
    size_t room = nodes != NULL ? *count : 0, at = 0;
    for (CUgraphNode node = graph->first; node != NULL && at < room; node = node->next)
        nodes[at++] = node;
    *count = nodes != NULL ? at : (size_t)graph->count;
    return SUCCESS;
}

typedef struct {
    CUfunction function;
    unsigned x, y, z, bx, by, bz, shared;
    void **parameters, **extra;
    void *kernel;
    CUcontext context;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct {
    int allocation, handles;
    CUmemLocation location;
    void *security;
    size_t limit;
    unsigned short usage;
    unsigned char reserved[54];
    const void *accesses;
    size_t access_count, bytes;
    CUdeviceptr address;
} CUDA_MEM_ALLOC_NODE_PARAMS;

typedef struct {
    int type, reserved[3];
    union {
        long long size[29];
        CUDA_KERNEL_NODE_PARAMS kernel;
        CUDA_MEM_ALLOC_NODE_PARAMS allocation;
        CUdeviceptr address;
    };
    long long more;
} CUgraphNodeParams;
_Static_assert(sizeof(CUgraphNodeParams) == 256, "CUgraphNodeParams as cuda.h has it");

static CUresult add_kernel_node(CUgraphNode *out, CUgraph graph, const CUDA_KERNEL_NODE_PARAMS *kernel) {
    NEED(out);
    NEED(graph);
    NEED(kernel);
    NEED(kernel->x);
    *out = add_node(graph, NODE_KERNEL);
    (*out)->cost = kernel->x * INT64_C(1000);
    return SUCCESS;
}

static CUresult add_alloc_node(CUgraphNode *out, CUgraph graph, CUDA_MEM_ALLOC_NODE_PARAMS *allocation) {
    NEED(out);
    NEED(graph);
    NEED(allocation);
    NEED(allocation->bytes > 0 && allocation->allocation == PINNED);
    NEED(device_at(&allocation->location));
    *out = add_node(graph, NODE_MEM_ALLOC);
    (*out)->bytes = (int64_t)((allocation->bytes + GRANULE - 1) / GRANULE * GRANULE);
    allocation->address = (*out)->address = (CUdeviceptr)graph_address((*out)->bytes);
    return SUCCESS;
}

static CUresult add_free_node(CUgraphNode *out, CUgraph graph, CUdeviceptr address) {
    NEED(out);
    NEED(graph);
    for (CUgraphNode node = graph->first; node != NULL; node = node->next)
        if (node->kind == NODE_MEM_ALLOC && node->address == address) {
            *out = add_node(graph, NODE_MEM_FREE);
            (*out)->bytes = node->bytes;
            return SUCCESS;
        }
    return INVALID_VALUE;
}

CUresult graph_add_alloc(CUgraph graph, int device, size_t bytes, CUdeviceptr *out) {
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS allocation = {.allocation = PINNED, .location = {LOCATION_DEVICE, device}, .bytes = bytes};
    NEED(out);
    TRY(add_alloc_node(&node, graph, &allocation));
    *out = node->address;
    return SUCCESS;
}

#define AFTER const CUgraphNode *after, size_t after_count

API CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph, AFTER, const CUDA_KERNEL_NODE_PARAMS *kernel) {
    ENTER;
    (void)after, (void)after_count;
    return add_kernel_node(out, graph, kernel);
}

API CUresult cuGraphAddKernelNode(CUgraphNode *out, CUgraph graph, AFTER, const CUDA_KERNEL_NODE_PARAMS *kernel) {
    return cuGraphAddKernelNode_v2(out, graph, after, after_count, kernel);
}

API CUresult cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, AFTER, CUDA_MEM_ALLOC_NODE_PARAMS *allocation) {
    ENTER;
    (void)after, (void)after_count;
    return add_alloc_node(out, graph, allocation);
}

API CUresult cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph graph, AFTER, CUdeviceptr address) {
    ENTER;
    (void)after, (void)after_count;
    return add_free_node(out, graph, address);
}

API CUresult cuGraphAddNode(CUgraphNode *out, CUgraph graph, AFTER, CUgraphNodeParams *node) {
    ENTER;
    (void)after, (void)after_count;
    NEED(node);
    switch (node->type) {
    case NODE_KERNEL: return add_kernel_node(out, graph, &node->kernel);
    case NODE_MEM_ALLOC: return add_alloc_node(out, graph, &node->allocation);
    case NODE_MEM_FREE: return add_free_node(out, graph, node->address);
    default: return NOT_SUPPORTED;
    }
}

API CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, const void *edges,
                               size_t after_count, CUgraphNodeParams *node) {
    (void)edges;
    return cuGraphAddNode(out, graph, after, after_count, node);
}

API CUresult cuGraphAddNode_v3(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, const void *edges,
                               size_t after_count, CUgraphNodeParams *node) {
    return cuGraphAddNode_v2(out, graph, after, edges, after_count, node);
}

static CUresult instantiate(CUgraphExec *out, CUgraph graph) {
    ENTER;
    NEED(out);
    NEED(graph);
    CUgraphExec executable = calloc(1, sizeof *executable);
    struct node *nodes = calloc((size_t)graph->count + 1, sizeof *nodes);
    if (executable == NULL || nodes == NULL)
        abort();
    *executable = (struct executable){nodes, 0};
    for (CUgraphNode node = graph->first; node != NULL; node = node->next)
        nodes[executable->count++] = *node;
    *out = executable;
    return SUCCESS;
}

API CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *bad, char *log, size_t size) {
    (void)bad, (void)log, (void)size;
    return instantiate(out, graph);
}

API CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *bad, char *log, size_t size) {
    (void)bad, (void)log, (void)size;
    return instantiate(out, graph);
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
    (void)flags;
    return instantiate(out, graph);
}

FLAVOURS(cuGraphInstantiateWithParams, (CUgraphExec *out, CUgraph graph, void *parameters),
    (void)parameters, (void)PER_THREAD;
    return instantiate(out, graph);
)

API CUresult cuGraphExecDestroy(CUgraphExec executable) {
    ENTER;
    NEED(executable);
    free(executable->nodes);
    free(executable);
    return SUCCESS;
}

FLAVOURS(cuGraphUpload, (CUgraphExec executable, CUstream handle),
    ENTER_STREAM(handle);
    (void)stream;
    NEED(executable);
    return SUCCESS;
)

static CUresult set_graph_memory(struct device *device, int64_t used) {
    if (used > device->graph_reserved) {
        TRY(take_memory(device, used - device->graph_reserved));
        device->graph_reserved = used;
    }
    device->graph_used = used;
    device->graph_used_high = at_least(device->graph_used_high, used);
    device->graph_reserved_high = at_least(device->graph_reserved_high, device->graph_reserved);
    return SUCCESS;
}

FLAVOURS(cuGraphLaunch, (CUgraphExec executable, CUstream handle),
    ENTER_STREAM(handle);
    NEED(executable);
    if (stream->legacy && global_captures > 0)
        return STREAM_CAPTURE_IMPLICIT;
    int64_t cost = 0;
    for (int i = 0; i < executable->count; i++) {
        struct node *node = &executable->nodes[i];
        cost += node->cost;
        if (node->kind == NODE_HOST && stream->capture == NULL) {
            put(stream, cost);
            cost = 0;
            call_later((struct call){.stream = stream, .function = node->function, .data = node->data});
        }
        if (node->kind == NODE_MEM_ALLOC)
            TRY(set_graph_memory(context->device, context->device->graph_used + node->bytes));
        else if (node->kind == NODE_MEM_FREE)
            TRY(set_graph_memory(context->device, context->device->graph_used - node->bytes));
    }
    if (stream->capture != NULL)
        return graph_add_kernel(stream->capture, cost);
    enqueue(stream, cost);
    return SUCCESS;
)

API CUresult cuDeviceGraphMemTrim(CUdevice ordinal) {
    ENTER;
    struct device *device = device_of(ordinal);
    if (device == NULL)
        return INVALID_DEVICE;
    if (device->graph_reserved > device->graph_used)
        give_memory(device, device->graph_reserved - device->graph_used);
    device->graph_reserved = device->graph_used;
    return SUCCESS;
}

API CUresult cuDeviceGetGraphMemAttribute(CUdevice ordinal, int attribute, void *value) {
    ENTER;
    struct device *device = device_of(ordinal);
    if (device == NULL)
        return INVALID_DEVICE;
    NEED(value);
    NEED(attribute >= 0 && attribute <= 3);
    const int64_t values[] = {device->graph_used, device->graph_used_high, device->graph_reserved, device->graph_reserved_high};
    *(uint64_t *)value = (uint64_t)values[attribute];
    return SUCCESS;
}

// ---------------------------------------------------------------- capture

bool capture_forbids(void) {
    bool forbids = global_captures > 0 && thread_mode != MODE_RELAXED;
    captures_broken |= forbids;
    return forbids;
}

API CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    TRY(ready());
    NEED(mode);
    NEED(*mode >= MODE_GLOBAL && *mode <= MODE_RELAXED);
    int old = thread_mode;
    thread_mode = *mode;
    *mode = old;
    return SUCCESS;
}

static CUresult begin(CUstream stream, CUgraph graph, int mode) {
    if (stream->capture != NULL)
        return ILLEGAL_STATE;
    if (stream->legacy)
        return STREAM_CAPTURE_UNSUPPORTED;
    stream->capture = graph != NULL ? graph : graph_new();
    stream->capture_mode = mode;
    stream->capture_broken = false;
    global_captures += mode == MODE_GLOBAL;
    return SUCCESS;
}

FLAVOURS(cuStreamBeginCapture, (CUstream handle),
    ENTER_STREAM(handle);
    return begin(stream, NULL, MODE_GLOBAL);
)

FLAVOURS(cuStreamBeginCapture_v2, (CUstream handle, int mode),
    ENTER_STREAM(handle);
    return begin(stream, NULL, mode);
)

FLAVOURS(cuStreamBeginCaptureToGraph,
         (CUstream handle, CUgraph graph, const CUgraphNode *after, const void *edges, size_t after_count, int mode),
    ENTER_STREAM(handle);
    (void)after, (void)edges, (void)after_count;
    NEED(graph);
    return begin(stream, graph, mode);
)

FLAVOURS(cuStreamEndCapture, (CUstream handle, CUgraph *out),
    ENTER_STREAM(handle);
    NEED(out);
    if (stream->capture == NULL)
        return ILLEGAL_STATE;
    if (stream->capture_mode == MODE_GLOBAL) {
        stream->capture_broken |= captures_broken;
        captures_broken = --global_captures > 0 && captures_broken;
    }
    *out = stream->capture_broken ? NULL : stream->capture;
    stream->capture = NULL;
    return stream->capture_broken ? STREAM_CAPTURE_INVALIDATED : SUCCESS;
)

FLAVOURS(cuStreamIsCapturing, (CUstream handle, int *status),
    ENTER_STREAM(handle);
    NEED(status);
    *status = stream->capture == NULL ? CAPTURE_NONE : stream->capture_broken ? CAPTURE_BROKEN : CAPTURE_ACTIVE;
    return SUCCESS;
)
