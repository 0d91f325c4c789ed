// SPDX-License-Identifier: Apache-2.0
//
// Device memory: plain, pitched and managed, arrays, stream-ordered pools, virtual memory management, IPC.

#include "simcuda.h"

#include <stdio.h>

enum kind { PLAIN, POOLED, ARRAY, MIPMAPS, RESERVED_ADDRESS, MAPPED, IMPORTED, GRAPH };
enum { BUCKETS = 1 << 16 };

struct block {
    struct block *next;
    uint64_t address;
    int64_t bytes, charged;
    enum kind kind;
    struct device *device;
    CUcontext context;  // NULL: outlives every context
    struct pool *pool;
    struct handle *handle;
};

typedef struct pool {
    struct pool *next;
    bool alive, made_here, on_device;
    struct device *device;
    int64_t used, used_high, reserved, reserved_high;
    uint64_t threshold;
} *CUmemoryPool;

static struct block *blocks[BUCKETS];
static uint64_t next_address = UINT64_C(0x7f0000000000), next_small_address = 1 << 20;
static struct pool *pools;

static int64_t round_up(int64_t bytes, int64_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

static struct block **place_of(uint64_t address) {
    struct block **place = &blocks[(address / ALIGNMENT * UINT64_C(0x9e3779b97f4a7c15)) >> 48];
    while (*place != NULL && (*place)->address != address)
        place = &(*place)->next;
    return place;
}

static struct block *find_block(uint64_t address) {
    return *place_of(address);
}

static uint64_t new_address(int64_t bytes) {
    uint64_t address = next_address;
    next_address += (uint64_t)round_up(bytes > 0 ? bytes : 1, GRANULE);
    return address;
}

static struct block *add_block(uint64_t address, int64_t bytes, enum kind kind) {
    struct block *block = calloc(1, sizeof *block);
    if (block == NULL)
        abort();
    *block = (struct block){.address = address, .bytes = bytes, .kind = kind};
    *place_of(address) = block;
    return block;
}

static void drop_block(struct block *block) {
    *place_of(block->address) = block->next;
    free(block);
}

int64_t graph_address(int64_t bytes) {
    uint64_t address = new_address(bytes);
    add_block(address, bytes, GRAPH);
    return (int64_t)address;
}

// Charges the card and makes a block; sizes of 0 and beyond any card are the caller's mistake.
static CUresult allocate(CUcontext context, uint64_t bytes, enum kind kind, uint64_t address, uint64_t *out) {
    if (bytes == 0)
        return INVALID_VALUE;
    if (bytes > (uint64_t)INT64_MAX / 2)
        return OUT_OF_MEMORY;
    const int64_t charged = round_up((int64_t)bytes, ALIGNMENT);
    TRY(take_memory(context->device, charged));
    struct block *block = add_block(address != 0 ? address : new_address(charged), (int64_t)bytes, kind);
    block->charged = charged;
    block->device = context->device;
    block->context = context;
    *out = block->address;
    return SUCCESS;
}

void forget_memory_of(CUcontext context) {
    for (int i = 0; i < BUCKETS; i++)
        for (struct block *block = blocks[i], *next; block != NULL; block = next) {
            next = block->next;
            if (block->context != context)
                continue;
            give_memory(block->device, block->charged);
            drop_block(block);
        }
}

// ---------------------------------------------------------------- plain

API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
    ENTER_CONTEXT;
    NEED(out);
    if (capture_forbids())
        return STREAM_CAPTURE_UNSUPPORTED;
    return allocate(context, bytes, PLAIN, 0, out);
}

API CUresult cuMemAlloc(uint32_t *out, unsigned bytes) {
    ENTER_CONTEXT;
    NEED(out);
    uint64_t address = next_small_address, given;
    next_small_address += (uint64_t)round_up(bytes, ALIGNMENT);
    TRY(allocate(context, bytes, PLAIN, address, &given));
    *out = (uint32_t)given;
    return SUCCESS;
}

static bool good_element(unsigned bytes) {
    return bytes == 4 || bytes == 8 || bytes == 16;
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element) {
    ENTER_CONTEXT;
    NEED(out);
    NEED(pitch);
    NEED(good_element(element));
    *pitch = (size_t)round_up((int64_t)width, ALIGNMENT);
    return allocate(context, *pitch * height, PLAIN, 0, out);
}

API CUresult cuMemAllocPitch(uint32_t *out, unsigned *pitch, unsigned width, unsigned height, unsigned element) {
    ENTER_CONTEXT;
    NEED(out);
    NEED(pitch);
    NEED(good_element(element));
    *pitch = (unsigned)round_up(width, ALIGNMENT);
    uint64_t address = next_small_address, given;
    next_small_address += (uint64_t)*pitch * height;
    TRY(allocate(context, (uint64_t)*pitch * height, PLAIN, address, &given));
    *out = (uint32_t)given;
    return SUCCESS;
}

API CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags) {
    ENTER_CONTEXT;
    NEED(out);
    NEED(flags == 1 || flags == 2);
    return allocate(context, bytes, PLAIN, 0, out);
}

static void release_from_pool(struct block *block) {
    block->pool->used -= block->charged;
    drop_block(block);
}

// Until all this process has on the device is done: it could use what is to be freed.
static void wait_for_all(struct device *device) {
    wait_for(device, device->tenant->target);
}

API CUresult cuMemFree_v2(CUdeviceptr address) {
    ENTER_CONTEXT;
    if (address == 0)
        return SUCCESS;
    struct block *block = find_block(address);
    if (block != NULL && block->kind == PLAIN)
        wait_for_all(block->device);
    block = find_block(address);
    if (block == NULL || (block->kind != PLAIN && block->kind != POOLED))
        return INVALID_VALUE;
    if (block->kind == POOLED) {
        release_from_pool(block);
        return SUCCESS;
    }
    give_memory(block->device, block->charged);
    drop_block(block);
    return SUCCESS;
}

API CUresult cuMemFree(uint32_t address) {
    return cuMemFree_v2(address);
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address) {
    ENTER_CONTEXT;
    struct block *block = find_block(address);
    if (block == NULL)
        return NOT_FOUND;
    if (base != NULL)
        *base = block->address;
    if (bytes != NULL)
        *bytes = (size_t)block->bytes;
    return SUCCESS;
}

// ---------------------------------------------------------------- arrays

typedef struct {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
} CUDA_ARRAY3D_DESCRIPTOR;
typedef struct {
    unsigned width, height, depth;
    int format;
    unsigned channels, flags;
} CUDA_ARRAY3D_DESCRIPTOR_v1;
typedef struct {
    size_t width, height;
    int format;
    unsigned channels;
} CUDA_ARRAY_DESCRIPTOR;
typedef struct {
    unsigned width, height;
    int format;
    unsigned channels;
} CUDA_ARRAY_DESCRIPTOR_v1;
enum { SPARSE = 0x40, DEFERRED_MAPPING = 0x80 };

// Of a texel. Planes of colors that are sampled at every other texel count by half, in both directions by a quarter.
static int64_t texel_bits(int format, unsigned channels) {
    switch (format) {
    case 0x01: case 0x08: return 8 * channels;
    case 0x02: case 0x09: case 0x10: return 16 * channels;
    case 0x03: case 0x0a: case 0x20: return 32 * channels;
    case 0x91: case 0x92: case 0x97: case 0x98: return 4;  // BC1, BC4
    case 0x93: case 0x94: case 0x95: case 0x96: case 0x99: case 0x9a: case 0x9b: case 0x9c: case 0x9d: case 0x9e: return 8;
    case 0xb0: case 0x53: case 0x59: return 8 + 2 * 8 / 4;  // 4:2:0
    case 0x9f: case 0xa1: case 0x54: case 0x5a: return 16 + 2 * 16 / 4;
    case 0xa2: case 0x55: case 0x5b: case 0xa5: case 0x51: return 8 + 2 * 8 / 2;  // 4:2:2
    case 0xa3: case 0xa4: case 0x56: case 0x5c: case 0xa6: case 0xa7: return 16 + 2 * 16 / 2;
    case 0xb2: case 0xb4: case 0x57: case 0x5d: return 3 * 8;  // 4:4:4
    case 0xb3: case 0xb5: case 0x58: case 0x5e: return 3 * 16;
    case 0xa8: case 0x52: case 0x50: case 0xa9: return 32;
    case 0xb1: return 64;
    case 0xc0: case 0xc6: return 8;  // normalized
    case 0xc1: case 0xc7: case 0xc3: case 0xc9: return 16;
    case 0xc2: case 0xc8: case 0xc4: case 0xca: return 32;
    case 0xc5: case 0xcb: return 64;
    default: return 0;
    }
}

static CUresult create_array(void **out, const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels) {
    ENTER_CONTEXT;
    NEED(out);
    NEED(array->width);
    NEED(texel_bits(array->format, 1));
    NEED(array->channels >= 1 && array->channels <= 4);
    int64_t bytes = 0;
    for (unsigned level = 0; level < levels; level++) {
        size_t sides[3] = {array->width >> level, array->height >> level, array->depth >> level};
        int64_t texels = 1;
        for (int i = 0; i < 3; i++)
            texels *= sides[i] > 0 ? (int64_t)sides[i] : 1;
        bytes += texels * texel_bits(array->format, array->channels) / 8;
    }
    uint64_t address = 0;
    if ((array->flags & (SPARSE | DEFERRED_MAPPING)) != 0)
        address = add_block(new_address(1), bytes, levels > 1 ? MIPMAPS : ARRAY)->address;
    else
        TRY(allocate(context, (uint64_t)bytes, levels > 1 ? MIPMAPS : ARRAY, 0, &address));
    *out = (void *)address;
    return SUCCESS;
}

API CUresult cuArray3DCreate_v2(void **out, const CUDA_ARRAY3D_DESCRIPTOR *array) {
    NEED(array);
    return create_array(out, array, 1);
}

API CUresult cuArray3DCreate(void **out, const CUDA_ARRAY3D_DESCRIPTOR_v1 *array) {
    NEED(array);
    return create_array(out, &(CUDA_ARRAY3D_DESCRIPTOR){array->width, array->height, array->depth, array->format,
                                                        array->channels, array->flags}, 1);
}

API CUresult cuArrayCreate_v2(void **out, const CUDA_ARRAY_DESCRIPTOR *array) {
    NEED(array);
    return create_array(out, &(CUDA_ARRAY3D_DESCRIPTOR){array->width, array->height, 0, array->format, array->channels, 0}, 1);
}

API CUresult cuArrayCreate(void **out, const CUDA_ARRAY_DESCRIPTOR_v1 *array) {
    NEED(array);
    return create_array(out, &(CUDA_ARRAY3D_DESCRIPTOR){array->width, array->height, 0, array->format, array->channels, 0}, 1);
}

API CUresult cuMipmappedArrayCreate(void **out, const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels) {
    NEED(array);
    NEED(levels > 0 && levels < 32);
    return create_array(out, array, levels);
}

API CUresult cuArrayDestroy(void *array) {
    ENTER_CONTEXT;
    wait_for_all(context->device);
    struct block *block = find_block((uint64_t)array);
    if (block == NULL || (block->kind != ARRAY && block->kind != MIPMAPS))
        return INVALID_HANDLE;
    if (block->charged > 0)
        give_memory(block->device, block->charged);
    drop_block(block);
    return SUCCESS;
}

API CUresult cuMipmappedArrayDestroy(void *array) {
    return cuArrayDestroy(array);
}

// ---------------------------------------------------------------- pools

typedef struct {
    int allocation, handles;
    CUmemLocation location;
    void *security;
    size_t limit;
    unsigned short usage;
    unsigned char reserved[54];
} CUmemPoolProps;
_Static_assert(sizeof(CUmemPoolProps) == 88, "CUmemPoolProps as cuda.h has it");
enum { RELEASE_THRESHOLD = 4, RESERVED_CURRENT = 5, RESERVED_HIGH = 6, USED_CURRENT = 7, USED_HIGH = 8 };

static CUmemoryPool new_pool(struct device *device, bool on_device) {
    CUmemoryPool pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        abort();
    *pool = (struct pool){.next = pools, .alive = true, .device = device, .on_device = on_device};
    return pools = pool;
}

static CUmemoryPool default_pool(struct device *device) {
    if (device->default_pool == NULL)
        device->default_pool = device->pool = new_pool(device, true);
    return device->default_pool;
}

// NULL device: that without a preferred place, which has its memory on the first device.
static CUmemoryPool default_managed(struct device *device) {
    device = device != NULL ? device : device_of(0);
    if (device->default_managed == NULL)
        device->default_managed = device->managed = new_pool(device, true);
    return device->default_managed;
}

static CUmemoryPool host_pool;

static bool pool_lives(CUmemoryPool wanted) {
    CUmemoryPool pool = pools;
    while (pool != NULL && pool != wanted)
        pool = pool->next;
    return pool != NULL && pool->alive;
}

static CUresult reserve(CUmemoryPool pool, int64_t bytes) {
    int64_t wanted = round_up(bytes, GRANULE);
    if (pool->on_device && wanted > pool->reserved)
        TRY(take_memory(pool->device, wanted - pool->reserved));
    else if (pool->on_device && wanted < pool->reserved)
        give_memory(pool->device, pool->reserved - wanted);
    pool->reserved = wanted;
    pool->reserved_high = wanted > pool->reserved_high ? wanted : pool->reserved_high;
    return SUCCESS;
}

void trim_pools(struct device *device) {
    for (CUmemoryPool pool = pools; pool != NULL; pool = pool->next) {
        int64_t keep = pool->threshold > (uint64_t)pool->reserved ? pool->reserved : (int64_t)pool->threshold;
        if (pool->alive && pool->device == device && pool->used < pool->reserved && keep < pool->reserved)
            reserve(pool, keep > pool->used ? keep : pool->used);
    }
}

static CUresult pool_allocate(CUdeviceptr *out, size_t bytes, CUmemoryPool pool) {
    NEED(out);
    NEED(bytes);
    if (!pool_lives(pool))
        return INVALID_HANDLE;
    if (bytes > INT64_MAX / 2)
        return OUT_OF_MEMORY;
    int64_t charged = round_up((int64_t)bytes, ALIGNMENT);
    if (pool->used + charged > pool->reserved)
        TRY(reserve(pool, pool->used + charged));
    pool->used += charged;
    pool->used_high = pool->used > pool->used_high ? pool->used : pool->used_high;
    struct block *block = add_block(new_address(charged), (int64_t)bytes, POOLED);
    block->charged = charged;
    block->pool = pool;
    *out = block->address;
    return SUCCESS;
}

FLAVOURS(cuMemAllocFromPoolAsync, (CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream handle),
    ENTER_STREAM(handle);
    (void)stream;
    return pool_allocate(out, bytes, pool);
)

FLAVOURS(cuMemAllocAsync, (CUdeviceptr *out, size_t bytes, CUstream handle),
    ENTER_STREAM(handle);
    if (stream->capture != NULL)
        return graph_add_alloc(stream->capture, ordinal_of(stream->context->device), bytes, out);
    default_pool(stream->context->device);
    return pool_allocate(out, bytes, stream->context->device->pool);
)

FLAVOURS(cuMemFreeAsync, (CUdeviceptr address, CUstream handle),
    ENTER_STREAM(handle);
    (void)stream;
    struct block *block = find_block(address);
    if (block == NULL || (block->kind != POOLED && block->kind != PLAIN))
        return INVALID_VALUE;
    if (block->kind == POOLED) {
        release_from_pool(block);
    } else {
        give_memory(block->device, block->charged);
        drop_block(block);
    }
    return SUCCESS;
)

API CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *wanted) {
    ENTER;
    NEED(out);
    NEED(wanted);
    NEED(wanted->allocation == PINNED || wanted->allocation == MANAGED);
    const int type = wanted->location.type;
    bool on_device = type == LOCATION_DEVICE || type == LOCATION_DOMAIN, managed = wanted->allocation == MANAGED;
    struct device *device = on_device ? device_at(&wanted->location) : device_of(0);
    NEED(device);
    NEED(on_device || type == LOCATION_HOST || type == LOCATION_HOST_NUMA || (managed && type == LOCATION_NONE));
    *out = new_pool(device, on_device || managed);
    (*out)->made_here = true;
    return SUCCESS;
}

API CUresult cuMemPoolDestroy(CUmemoryPool pool) {
    ENTER;
    NEED(pool_lives(pool) && pool->made_here);
    pool->alive = false;
    if (pool->device->pool == pool)
        pool->device->pool = pool->device->default_pool;
    return reserve(pool, 0);
}

API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    ENTER;
    NEED(pool_lives(pool));
    int64_t least = (int64_t)keep > pool->used ? (int64_t)keep : pool->used;
    return least < pool->reserved ? reserve(pool, least) : SUCCESS;
}

API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    ENTER;
    NEED(pool_lives(pool));
    NEED(value);
    if (attribute >= 1 && attribute <= 3)
        return SUCCESS;  // how memory is reused does not show here
    if (attribute == RELEASE_THRESHOLD)
        pool->threshold = *(uint64_t *)value;
    else if (attribute == RESERVED_HIGH && *(uint64_t *)value == 0)
        pool->reserved_high = pool->reserved;
    else if (attribute == USED_HIGH && *(uint64_t *)value == 0)
        pool->used_high = pool->used;
    else
        return INVALID_VALUE;
    return SUCCESS;
}

API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
    ENTER;
    NEED(pool_lives(pool));
    NEED(value);
    if (getenv("GPUSIM_FAULTED") != NULL)
        return ILLEGAL_ADDRESS;  // what every call answers after a kernel's fault
    switch (attribute) {
    case RELEASE_THRESHOLD: *(uint64_t *)value = pool->threshold; return SUCCESS;
    case RESERVED_CURRENT: *(uint64_t *)value = (uint64_t)pool->reserved; return SUCCESS;
    case RESERVED_HIGH: *(uint64_t *)value = (uint64_t)pool->reserved_high; return SUCCESS;
    case USED_CURRENT: *(uint64_t *)value = (uint64_t)pool->used; return SUCCESS;
    case USED_HIGH: *(uint64_t *)value = (uint64_t)pool->used_high; return SUCCESS;
    default: return INVALID_VALUE;
    }
}

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice ordinal) {
    ENTER;
    NEED(out);
    NEED(device_of(ordinal));
    *out = default_pool(device_of(ordinal));
    return SUCCESS;
}

API CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice ordinal) {
    TRY(cuDeviceGetDefaultMemPool(out, ordinal));
    ENTER;
    *out = device_of(ordinal)->pool;
    return SUCCESS;
}

API CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool pool) {
    ENTER;
    struct device *device = device_of(ordinal);
    NEED(device);
    NEED(pool_lives(pool) && pool->on_device && pool->device == device);
    default_pool(device);
    device->pool = pool;
    return SUCCESS;
}

static CUresult pool_at(CUmemoryPool *out, const CUmemLocation *location, int allocation, bool the_default) {
    ENTER;
    NEED(out);
    NEED(location);
    NEED(allocation == PINNED || allocation == MANAGED);
    struct device *device = device_at(location);
    bool on_host = location->type == LOCATION_HOST || location->type == LOCATION_HOST_NUMA;
    if (allocation == MANAGED) {
        NEED(device != NULL || on_host || location->type == LOCATION_NONE);
        *out = default_managed(device);
        if (!the_default)
            *out = (device != NULL ? device : device_of(0))->managed;
        return SUCCESS;
    }
    NEED(device != NULL || on_host);
    if (on_host && host_pool == NULL)
        host_pool = new_pool(device_of(0), false);
    *out = on_host ? host_pool : default_pool(device);
    if (!on_host && !the_default)
        *out = device->pool;
    return SUCCESS;
}

API CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location, int allocation) {
    return pool_at(out, location, allocation, true);
}

API CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, int allocation) {
    return pool_at(out, location, allocation, false);
}

API CUresult cuMemSetMemPool(CUmemLocation *location, int allocation, CUmemoryPool pool) {
    CUmemoryPool now;
    TRY(pool_at(&now, location, allocation, false));
    if (allocation == PINNED && device_at(location) != NULL)
        return cuDeviceSetMemPool(ordinal_of(device_at(location)), pool);
    ENTER;
    NEED(allocation == MANAGED && pool_lives(pool));
    (device_at(location) != NULL ? device_at(location) : device_of(0))->managed = pool;
    return SUCCESS;
}

// ---------------------------------------------------------------- virtual memory management

typedef struct {
    int type, handles;
    CUmemLocation location;
    void *security;
    unsigned char flags[8];
} CUmemAllocationProp;
_Static_assert(sizeof(CUmemAllocationProp) == 32, "CUmemAllocationProp as cuda.h has it");
typedef struct {
    CUmemLocation location;
    int flags;
} CUmemAccessDesc;

struct handle {
    struct handle *next;
    CUmemAllocationProp properties;
    int64_t bytes;
    int references;  // 0: gone
    struct device *device;  // NULL: nothing of a card's is charged for it here
};
static struct handle *handles;

struct exported {
    CUmemAllocationProp properties;
    int64_t bytes;
};

static struct handle *find_handle(uint64_t wanted) {
    struct handle *handle = handles;
    while (handle != NULL && (uint64_t)handle != wanted)
        handle = handle->next;
    return handle != NULL && handle->references > 0 ? handle : NULL;
}

static struct handle *new_handle(const CUmemAllocationProp *properties, int64_t bytes, struct device *charged) {
    struct handle *handle = calloc(1, sizeof *handle);
    if (handle == NULL)
        abort();
    *handle = (struct handle){handles, *properties, bytes, 1, charged};
    return handles = handle;
}

static void drop_reference(struct handle *handle) {
    if (--handle->references == 0 && handle->device != NULL)
        give_memory(handle->device, handle->bytes);
}

API CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *properties, int option) {
    ENTER;
    NEED(out);
    NEED(properties);
    NEED(option == 0 || option == 1);
    *out = GRANULE;
    return SUCCESS;
}

API CUresult cuMemCreate(uint64_t *out, size_t bytes, const CUmemAllocationProp *properties, unsigned long long flags) {
    ENTER;
    NEED(out);
    NEED(properties);
    NEED(flags == 0 && bytes > 0 && bytes % GRANULE == 0 && properties->type == 1);
    struct device *device = NULL;
    const int where = properties->location.type;
    NEED(where >= LOCATION_DEVICE && (where <= LOCATION_HOST_NUMA_CURRENT || where == LOCATION_DOMAIN));
    if (where == LOCATION_DEVICE || where == LOCATION_DOMAIN) {
        device = device_at(&properties->location);
        if (device == NULL)
            return INVALID_DEVICE;
        if (bytes > INT64_MAX / 2)
            return OUT_OF_MEMORY;
        TRY(take_memory(device, (int64_t)bytes));
    }
    *out = (uint64_t)new_handle(properties, (int64_t)bytes, device);
    return SUCCESS;
}

API CUresult cuMemRelease(uint64_t value) {
    ENTER;
    struct handle *handle = find_handle(value);
    NEED(handle);
    drop_reference(handle);
    return SUCCESS;
}

API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr wanted,
                                 unsigned long long flags) {
    ENTER;
    (void)alignment, (void)wanted;
    NEED(out);
    NEED(bytes > 0 && bytes % GRANULE == 0 && bytes < INT64_MAX / 2 && flags == 0);
    *out = add_block(new_address((int64_t)bytes), (int64_t)bytes, RESERVED_ADDRESS)->address;
    return SUCCESS;
}

API CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    ENTER;
    struct block *block = find_block(address);
    NEED(block != NULL && block->kind == RESERVED_ADDRESS && (size_t)block->bytes == bytes);
    drop_block(block);
    return SUCCESS;
}

// The record of a mapping has its address plus one: at the start of a range stands that of the range.
API CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, uint64_t value, unsigned long long flags) {
    ENTER;
    struct handle *handle = find_handle(value);
    NEED(handle);
    NEED(bytes > 0 && bytes % GRANULE == 0 && flags == 0 && offset == 0 && bytes <= (size_t)handle->bytes);
    NEED(find_block(address + 1) == NULL);
    handle->references++;
    struct block *block = add_block(address + 1, (int64_t)bytes, MAPPED);
    block->handle = handle;
    return SUCCESS;
}

// Unmaps every mapping of the range, which must be whole mappings one after the other.
API CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    ENTER;
    NEED(bytes);
    while (bytes > 0) {
        struct block *block = find_block(address + 1);
        NEED(block != NULL && block->kind == MAPPED && (size_t)block->bytes <= bytes);
        address += (uint64_t)block->bytes;
        bytes -= (size_t)block->bytes;
        drop_reference(block->handle);
        drop_block(block);
    }
    return SUCCESS;
}

API CUresult cuMemRetainAllocationHandle(uint64_t *out, void *address) {
    ENTER;
    NEED(out);
    struct block *block = find_block((uint64_t)address + 1);
    NEED(block != NULL && block->kind == MAPPED);
    block->handle->references++;
    *out = (uint64_t)block->handle;
    return SUCCESS;
}

API CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access, size_t count) {
    ENTER;
    (void)bytes;
    NEED(access);
    NEED(count);
    NEED(find_block(address + 1));
    return SUCCESS;
}

API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out, uint64_t value) {
    ENTER;
    NEED(out);
    NEED(find_handle(value));
    *out = find_handle(value)->properties;
    return SUCCESS;
}

enum { POSIX_FILE = 1 };

API CUresult cuMemExportToShareableHandle(void *out, uint64_t value, int type, unsigned long long flags) {
    ENTER;
    struct handle *handle = find_handle(value);
    NEED(out);
    NEED(handle);
    NEED(type == POSIX_FILE && flags == 0 && (handle->properties.handles & POSIX_FILE) != 0);
    struct exported exported = {handle->properties, handle->bytes};
    int file = memfd_create("simcuda", MFD_CLOEXEC);
    if (file < 0 || write(file, &exported, sizeof exported) != sizeof exported)
        return OPERATING_SYSTEM;
    *(int *)out = file;
    return SUCCESS;
}

API CUresult cuMemImportFromShareableHandle(uint64_t *out, void *file, int type) {
    ENTER;
    NEED(out);
    NEED(type == POSIX_FILE);
    struct exported exported;
    if (pread((int)(intptr_t)file, &exported, sizeof exported, 0) != sizeof exported)
        return INVALID_VALUE;
    *out = (uint64_t)new_handle(&exported.properties, exported.bytes, NULL);
    return SUCCESS;
}

// ---------------------------------------------------------------- IPC

typedef struct {
    CUdeviceptr address;
    int64_t bytes;
    char rest[48];
} CUipcMemHandle;
_Static_assert(sizeof(CUipcMemHandle) == 64, "CUipcMemHandle as cuda.h has it");

API CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address) {
    ENTER_CONTEXT;
    NEED(out);
    struct block *block = find_block(address);
    NEED(block != NULL && block->kind == PLAIN);
    *out = (CUipcMemHandle){.address = address, .bytes = block->bytes};
    return SUCCESS;
}

API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags) {
    ENTER_CONTEXT;
    (void)flags;
    NEED(out);
    NEED(handle.bytes);
    *out = add_block(new_address(handle.bytes), handle.bytes, IMPORTED)->address;
    return SUCCESS;
}

API CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags) {
    return cuIpcOpenMemHandle_v2(out, handle, flags);
}

API CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    ENTER_CONTEXT;
    struct block *block = find_block(address);
    NEED(block != NULL && block->kind == IMPORTED);
    drop_block(block);
    return SUCCESS;
}
