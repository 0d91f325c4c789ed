// SPDX-License-Identifier: Apache-2.0
// Stream-ordered memory and the memory of graphs. Both are taken from the GPU in larger pieces and kept after a free,
// so that what is charged is what the driver says is reserved, looked at after each call that may change it.
#include <sched.h>

#include "shim.h"

#define POOLS 1024
#define PIECE (2ull << 20)
#define TRIES 1000 // to lock a pool

// ASLEEP: of a device whose context was ended; the driver is not asked about such a pool until the program uses it.
enum { NONE, POOL, GRAPHS, UNCHARGED, ASLEEP };

struct pool {
    uint64_t handle; // of GRAPHS: nothing
    uint64_t charged;
    CUdevice device;
    int32_t index;
    uint32_t kind, lock;
    uint32_t asking; // it was settled just before, and who locked it asks the account
};

static struct pools {
    uint32_t lock, used, graphs;
    struct pool pool[POOLS];
} *pools(void) {
    static void *memory;
    return wiped(&memory, sizeof(struct pools));
}

static uint32_t kind_of(const struct pool *pool) { return __atomic_load_n(&pool->kind, __ATOMIC_ACQUIRE); }

static struct pool *known(struct pools *all, uint32_t kind, uint64_t handle, CUdevice device) {
    uint32_t used = __atomic_load_n(&all->used, __ATOMIC_ACQUIRE);
    for (struct pool *pool = all->pool; pool < all->pool + used; pool++) {
        uint32_t is = kind_of(pool);
        if (is == kind || (kind == POOL && (is == UNCHARGED || is == ASLEEP)))
            if (pool->handle == handle && (kind == POOL || pool->device == device)) return pool;
    }
    return NULL;
}

static struct pool *learn(uint32_t kind, uint64_t handle, CUdevice device) {
    struct pools *all = pools();
    if (!all) return NULL;
    spin_lock(&all->lock);
    struct pool *pool = known(all, kind == GRAPHS ? GRAPHS : POOL, handle, device);
    for (uint32_t i = 0; !pool && i < POOLS; i++)
        if (kind_of(&all->pool[i]) == NONE) pool = &all->pool[i];
    if (pool && (kind_of(pool) != kind || pool->device != device)) { // new, or the handle of one that went unseen
        if (kind_of(pool) == POOL) account_release(pool->index, pool->charged);
        pool->handle = handle;
        pool->device = device;
        pool->index = kind == UNCHARGED ? NO_SUCH_DEVICE : device_index(device);
        pool->charged = 0;
        __atomic_store_n(&pool->kind, kind, __ATOMIC_RELEASE);
        if (pool == all->pool + all->used) __atomic_store_n(&all->used, all->used + 1, __ATOMIC_RELEASE);
        if (kind == GRAPHS) __atomic_fetch_add(&all->graphs, 1, __ATOMIC_RELEASE);
    }
    spin_unlock(&all->lock);
    if (!pool) say("more memory pools than can be remembered: one is refused");
    return pool;
}

// `unknown` where the driver does not tell, as after a fault of a kernel: the memory is held until the process ends.
static uint64_t attribute(const struct pool *pool, int of_pool, int of_graphs, uint64_t unknown) {
    uint64_t bytes = 0;
    CUresult result = kind_of(pool) == GRAPHS
                          ? REAL(cuDeviceGetGraphMemAttribute)(pool->device, of_graphs, &bytes)
                          : REAL(cuMemPoolGetAttribute)((CUmemoryPool)pool->handle, of_pool, &bytes);
    return result ? unknown : bytes;
}

static uint64_t reserved(const struct pool *pool, uint64_t unknown) {
    return attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, unknown);
}

static uint64_t taken(const struct pool *pool) {
    return attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, pool->charged);
}

// With the pool locked; `ahead` was charged for growth to come. True: it grew by more than that.
static bool settle(struct pool *pool, uint64_t ahead) {
    uint64_t charge = pool->charged + ahead, now = pool->index < 0 ? 0 : reserved(pool, charge);
    pool->charged = now;
    if (now > charge) account_add(pool->index, now - charge);
    if (now < charge) account_release(pool->index, charge - now);
    return now > charge;
}

void pool_settle(int i) {
    struct pool *pool = &pools()->pool[i];
    spin_lock(&pool->lock);
    if (kind_of(pool) == POOL) settle(pool, 0);
    spin_unlock(&pool->lock);
}

// Who locked it may have settled it before memory came back. Not waited for are one that asks the account, since this
// thread may hold one that it waits for, and one whose driver takes long.
static bool lock_soon(struct pool *pool) {
    for (int tries = 0; !spin_try(&pool->lock); tries++) {
        if (tries == TRIES || __atomic_load_n(&pool->asking, __ATOMIC_RELAXED)) return false;
        sched_yield();
    }
    return true;
}

static void settle_all(uint32_t least) {
    struct pools *all = pools();
    uint32_t used = all ? __atomic_load_n(&all->used, __ATOMIC_ACQUIRE) : 0;
    for (struct pool *pool = used ? all->pool : NULL; used--; pool++) {
        if (kind_of(pool) < least || kind_of(pool) > GRAPHS || !lock_soon(pool)) continue;
        if (kind_of(pool) == POOL || kind_of(pool) == GRAPHS) settle(pool, 0);
        spin_unlock(&pool->lock);
    }
}

void reserved_settle_all(void) { settle_all(POOL); }

void graph_settle(void) {
    struct pools *all = pools();
    if (all && __atomic_load_n(&all->graphs, __ATOMIC_ACQUIRE)) settle_all(GRAPHS);
}

static bool drowned(enum kind kind, uint64_t key, struct record *record, void *pool) {
    (void)key;
    return kind == POINTER && record->pool >= 0 && &pools()->pool[record->pool] == pool;
}

void pools_sleep(CUdevice device) {
    struct pools *all = pools();
    uint32_t used = all ? __atomic_load_n(&all->used, __ATOMIC_ACQUIRE) : 0;
    for (struct pool *pool = used ? all->pool : NULL; used--; pool++) {
        if (kind_of(pool) != POOL || pool->device != device) continue;
        spin_lock(&pool->lock);
        account_release(pool->index, pool->charged);
        pool->charged = 0;
        __atomic_store_n(&pool->kind, ASLEEP, __ATOMIC_RELEASE);
        table_each(drowned, pool);
        spin_unlock(&pool->lock);
    }
}

static void wake(struct pool *pool) {
    uint32_t asleep = ASLEEP;
    __atomic_compare_exchange_n(&pool->kind, &asleep, POOL, false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

// Nothing is taken before the graph runs: asked whether it would fit.
static CUresult graph_would_take(CUdevice device, uint64_t bytes) {
    struct charge charge;
    CUresult result = charge_device(&charge, device, bytes);
    if (result || charge.index < 0) return result;
    account_release(charge.index, charge.bytes);
    return learn(GRAPHS, 0, device) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

// A stream's device, which need not be the calling thread's.
static CUresult device_of(CUstream stream, CUdevice *device) {
    CUcontext context;
    if ((uintptr_t)stream <= (uintptr_t)CU_STREAM_PER_THREAD) return current_device(device);
    if (!REAL(cuStreamGetDevice)(stream, device)) return CUDA_SUCCESS; // from CUDA 12.8 on
    if (REAL(cuStreamGetCtx)(stream, &context) || REAL(cuCtxPushCurrent_v2)(context)) return current_device(device);
    CUresult result = current_device(device);
    REAL(cuCtxPopCurrent_v2)(&context);
    return result;
}

// NULL: the program was not given it by any function that the shim knows, so that nobody would be charged.
static struct pool *pool_of(CUmemoryPool handle) {
    struct pools *all = pools();
    return all ? known(all, POOL, (uintptr_t)handle, 0) : NULL;
}

// A pool that the driver gave out, of this device or ON_HOST. One that is known stays what it is.
static CUresult given(CUmemoryPool handle, CUdevice device) {
    if (pool_of(handle)) return CUDA_SUCCESS;
    bool charged = device != ON_HOST;
    return learn(charged ? POOL : UNCHARGED, (uintptr_t)handle, charged ? device : 0) ? CUDA_SUCCESS
                                                                                      : CUDA_ERROR_OUT_OF_MEMORY;
}

struct growth {
    struct pool *pool; // locked; NULL: nothing to charge
    uint64_t ahead;
};

// Beyond what it has, of a pool just settled.
static uint64_t growth_of(const struct pool *pool, uint64_t bytes) {
    uint64_t used = taken(pool), left = pool->charged > used ? pool->charged - used : 0;
    return bytes <= left                       ? 0
           : bytes - left > UINT64_MAX - PIECE ? UINT64_MAX
                                               : (bytes - left + PIECE - 1) / PIECE * PIECE;
}

static CUresult ask(struct pool *pool, uint64_t bytes) {
    __atomic_store_n(&pool->asking, 1, __ATOMIC_RELAXED);
    CUresult result = account_reserve(pool->index, bytes);
    __atomic_store_n(&pool->asking, 0, __ATOMIC_RELAXED);
    return result;
}

// One call at a time: what a pool has left may be enough for each of two, and not for both.
static CUresult before(struct growth *growth, CUmemoryPool handle, uint64_t bytes) {
    struct pool *pool = pool_of(handle);
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    if (pool->index == NOT_IN_POLICY) return account_denied_by_policy();
    if (pool->index < 0) return CUDA_SUCCESS;
    wake(pool);
    if (!policy_devices()) return account_denied_by_policy();
    spin_lock(&pool->lock);
    settle(pool, 0);
    growth->ahead = growth_of(pool, bytes);
    CUresult result = growth->ahead ? ask(pool, growth->ahead) : CUDA_SUCCESS;
    if (result) spin_unlock(&pool->lock);
    else growth->pool = pool;
    return result;
}

static CUresult after(struct growth *growth, CUresult result, CUdeviceptr pointer, uint64_t bytes, CUstream stream) {
    struct pool *pool = growth->pool;
    if (!pool) return result;
    int16_t number = (int16_t)(pool - pools()->pool);
    bool more = settle(pool, growth->ahead), beyond = !result && more && ask(pool, 0);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) account_denied_by_device(pool->index);
    if (!result && !beyond)
        table_put(POINTER, pointer, (struct record){.bytes = bytes, .index = (int16_t)pool->index, .pool = number});
    spin_unlock(&pool->lock);
    if (!beyond) return result;
    REAL(cuMemFreeAsync)(pointer, stream); // it took a larger piece than was left
    REAL(cuStreamSynchronize)(stream);
    REAL(cuMemPoolTrimTo)((CUmemoryPool)pool->handle, 0);
    pool_settle(number);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static bool capturing(CUresult (*ask)(CUstream, int *), CUstream stream) {
    int status = 0;
    return !ask(stream, &status) && status != 0;
}

static CUresult before_in(struct growth *growth, CUmemoryPool handle, uint64_t bytes, CUstream stream, bool captured) {
    CUdevice device;
    if (captured || !handle) {
        if (device_of(stream, &device)) return CUDA_SUCCESS; // the driver is to say what is wrong
        if (captured) return graph_would_take(device, bytes);
        if (REAL(cuDeviceGetMemPool)(&handle, device)) return CUDA_SUCCESS;
        CUresult result = given(handle, device);
        if (result) return result;
    }
    return before(growth, handle, bytes);
}

#define TAKE(pool, bytes, stream, is_capturing, call)                                                 \
    struct growth growth = {0};                                                                       \
    CUresult result = before_in(&growth, pool, bytes, stream, capturing(REAL(is_capturing), stream)); \
    if (result) return result;                                                                        \
    result = call;                                                                                    \
    return after(&growth, result, result ? 0 : *pointer, bytes, stream)

HOOK(cuMemAllocAsync)(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    TAKE(NULL, bytes, stream, cuStreamIsCapturing, REAL(cuMemAllocAsync)(pointer, bytes, stream));
}

HOOK(cuMemAllocAsync_ptsz)(CUdeviceptr *pointer, size_t bytes, CUstream stream) {
    TAKE(NULL, bytes, stream, cuStreamIsCapturing_ptsz, REAL(cuMemAllocAsync_ptsz)(pointer, bytes, stream));
}

HOOK(cuMemAllocFromPoolAsync)(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    TAKE(pool, bytes, stream, cuStreamIsCapturing, REAL(cuMemAllocFromPoolAsync)(pointer, bytes, pool, stream));
}

HOOK(cuMemAllocFromPoolAsync_ptsz)(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream) {
    TAKE(pool, bytes, stream, cuStreamIsCapturing_ptsz,
         REAL(cuMemAllocFromPoolAsync_ptsz)(pointer, bytes, pool, stream));
}

HOOK(cuMemPoolCreate)(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    CUdevice device;
    if (!properties) return REAL(cuMemPoolCreate)(pool, properties);
    if (properties->handle_types & ~CU_MEM_HANDLE_TYPES || properties->usage & ~CU_MEM_POOL_CREATE_USAGES)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = place_of_memory(&properties->location, properties->type, &device);
    if (result || (result = REAL(cuMemPoolCreate)(pool, properties))) return result;
    if (learn(device != ON_HOST ? POOL : UNCHARGED, (uintptr_t)*pool, device != ON_HOST ? device : 0)) return result;
    REAL(cuMemPoolDestroy)(*pool);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

HOOK(cuDeviceGetMemPool)(CUmemoryPool *pool, CUdevice device) {
    CUresult result = REAL(cuDeviceGetMemPool)(pool, device);
    return result ? result : given(*pool, device);
}

HOOK(cuDeviceGetDefaultMemPool)(CUmemoryPool *pool, CUdevice device) {
    CUresult result = REAL(cuDeviceGetDefaultMemPool)(pool, device);
    return result ? result : given(*pool, device);
}

#define GIVEN(call)                                                                       \
    CUdevice device;                                                                      \
    CUresult result = location ? place_of_memory(location, type, &device) : CUDA_SUCCESS; \
    if (!result) result = call;                                                           \
    return result ? result : given(*pool, device)

HOOK(cuMemGetMemPool)(CUmemoryPool *pool, CUmemLocation *location, int type) {
    GIVEN(REAL(cuMemGetMemPool)(pool, location, type));
}

HOOK(cuMemGetDefaultMemPool)(CUmemoryPool *pool, CUmemLocation *location, int type) {
    GIVEN(REAL(cuMemGetDefaultMemPool)(pool, location, type));
}

// Its memory is charged to who exported it.
HOOK(cuMemPoolImportFromShareableHandle)(CUmemoryPool *pool, void *handle, int type, unsigned long long flags) {
    CUresult result = REAL(cuMemPoolImportFromShareableHandle)(pool, handle, type, flags);
    return result ? result : given(*pool, ON_HOST);
}

// Pointers of a pool that is no more stand for themselves.
static bool orphan(enum kind kind, uint64_t key, struct record *record, void *pool) {
    (void)key;
    if (kind == POINTER && record->pool >= 0 && &pools()->pool[record->pool] == pool) {
        record->pool = -1;
        account_add(record->index, record->bytes);
    }
    return false;
}

HOOK(cuMemPoolDestroy)(CUmemoryPool handle) {
    struct pools *all = pools();
    struct pool *pool = all ? known(all, POOL, (uintptr_t)handle, 0) : NULL;
    tells();
    if (!pool) return REAL(cuMemPoolDestroy)(handle);
    wake(pool);
    spin_lock(&pool->lock);
    CUresult result = REAL(cuMemPoolDestroy)(handle);
    if (!result) {
        table_each(orphan, pool);
        account_release(pool->index, pool->charged);
        __atomic_store_n(&pool->kind, NONE, __ATOMIC_RELEASE);
    }
    spin_unlock(&pool->lock);
    return result;
}

static CUresult settled(CUresult result) {
    reserved_settle_all();
    return result;
}

HOOK(cuMemPoolTrimTo)(CUmemoryPool pool, size_t keep) {
    tells();
    return settled(REAL(cuMemPoolTrimTo)(pool, keep));
}

HOOK(cuMemPoolSetAttribute)(CUmemoryPool pool, int attribute, void *value) {
    return settled(REAL(cuMemPoolSetAttribute)(pool, attribute, value));
}

HOOK(cuDeviceGraphMemTrim)(CUdevice device) {
    tells();
    return settled(REAL(cuDeviceGraphMemTrim)(device));
}

HOOK(cuGraphUpload)(CUgraphExec graph, CUstream stream) {
    tells();
    return settled(REAL(cuGraphUpload)(graph, stream));
}

HOOK(cuGraphUpload_ptsz)(CUgraphExec graph, CUstream stream) {
    tells();
    return settled(REAL(cuGraphUpload_ptsz)(graph, stream));
}

HOOK(cuGraphInstantiateWithParams)(CUgraphExec *graph, CUgraph of, void *parameters) {
    return settled(REAL(cuGraphInstantiateWithParams)(graph, of, parameters));
}

HOOK(cuGraphInstantiateWithParams_ptsz)(CUgraphExec *graph, CUgraph of, void *parameters) {
    return settled(REAL(cuGraphInstantiateWithParams_ptsz)(graph, of, parameters));
}

static CUresult node_would_take(const CUDA_MEM_ALLOC_NODE_PARAMS *node) {
    CUdevice device;
    if (node->properties.handle_types & ~CU_MEM_HANDLE_TYPES || node->properties.usage & ~CU_MEM_POOL_CREATE_USAGES)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = place_of_memory(&node->properties.location, node->properties.type, &device);
    return result || device == ON_HOST ? result : graph_would_take(device, node->bytes);
}

HOOK(cuGraphAddMemAllocNode)(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                             CUDA_MEM_ALLOC_NODE_PARAMS *parameters) {
    CUresult result = parameters ? node_would_take(parameters) : CUDA_SUCCESS;
    return result ? result : REAL(cuGraphAddMemAllocNode)(node, graph, after, count, parameters);
}

static CUresult any_node_would_take(const CUgraphNodeParams *parameters) {
    if (!parameters || parameters->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return CUDA_SUCCESS;
    return node_would_take(&parameters->allocation);
}

HOOK(cuGraphAddNode)(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                     CUgraphNodeParams *parameters) {
    CUresult result = any_node_would_take(parameters);
    return result ? result : REAL(cuGraphAddNode)(node, graph, after, count, parameters);
}

HOOK(cuGraphAddNode_v2)(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count,
                        CUgraphNodeParams *parameters) {
    CUresult result = any_node_would_take(parameters);
    return result ? result : REAL(cuGraphAddNode_v2)(node, graph, after, edges, count, parameters);
}

HOOK(cuGraphAddNode_v3)(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count,
                        CUgraphNodeParams *parameters) {
    CUresult result = any_node_would_take(parameters);
    return result ? result : REAL(cuGraphAddNode_v3)(node, graph, after, edges, count, parameters);
}
