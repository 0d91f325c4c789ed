// SPDX-License-Identifier: Apache-2.0
// Arrays, by their extent: the driver does not tell how large one is. Sparse and deferred ones get their memory by
// cuMemCreate.
#include "shim.h"

#define WITHOUT_MEMORY (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)

// Bytes of one channel, by the numbers of CUarray_format; what is packed or not known is taken for four.
static uint64_t channel(unsigned format) {
    switch (format) {
    case 0x01: // unsigned and signed 8 bit
    case 0x08:
        return 1;
    case 0x02: // 16 bit, half
    case 0x09:
    case 0x10:
        return 2;
    default:
        return format >= 0x91 && format <= 0x9e ? 1 : 4; // block compressed: at most a byte a texel
    }
}

// The UNORM and SNORM formats have their channels in their number.
static uint64_t element(unsigned format, unsigned channels) {
    static const uint8_t normalized[] = {1, 2, 4, 2, 4, 8, 1, 2, 4, 2, 4, 8};
    if (format >= 0xc0 && format < 0xc0 + sizeof normalized) return normalized[format - 0xc0];
    if (format >= 0x91 && format <= 0x9e) return 1;
    return channel(format) * (channels ? channels : 1);
}

static uint64_t extent(uint64_t width, uint64_t height, uint64_t depth, uint64_t element) {
    uint64_t bytes;
    if (__builtin_mul_overflow(width ? width : 1, height ? height : 1, &bytes) ||
        __builtin_mul_overflow(bytes, depth ? depth : 1, &bytes) || __builtin_mul_overflow(bytes, element, &bytes))
        return UINT64_MAX;
    return bytes;
}

#define CREATE(bytes, call, kind)                     \
    struct charge charge = {.index = NO_SUCH_DEVICE}; \
    CUresult result = charge_current(&charge, bytes); \
    if (result) return result;                        \
    result = call;                                    \
    return charged(&charge, result, kind, result ? 0 : (uintptr_t) * array)

HOOK(cuArrayCreate)(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *d) {
    tells();
    uint64_t bytes = d ? extent(d->width, d->height, 1, element(d->format, d->channels)) : 0;
    CREATE(bytes, REAL(cuArrayCreate)(array, d), ARRAY);
}

HOOK(cuArrayCreate_v2)(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d) {
    tells();
    uint64_t bytes = d ? extent(d->width, d->height, 1, element(d->format, d->channels)) : 0;
    CREATE(bytes, REAL(cuArrayCreate_v2)(array, d), ARRAY);
}

HOOK(cuArray3DCreate)(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d) {
    tells();
    if (!d || d->flags & WITHOUT_MEMORY) return REAL(cuArray3DCreate)(array, d);
    CREATE(extent(d->width, d->height, d->depth, element(d->format, d->channels)), REAL(cuArray3DCreate)(array, d),
           ARRAY);
}

static uint64_t extent_of(const CUDA_ARRAY3D_DESCRIPTOR *d) {
    return extent(d->width, d->height, d->depth, element(d->format, d->channels));
}

HOOK(cuArray3DCreate_v2)(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d) {
    tells();
    if (!d || d->flags & WITHOUT_MEMORY) return REAL(cuArray3DCreate_v2)(array, d);
    CREATE(extent_of(d), REAL(cuArray3DCreate_v2)(array, d), ARRAY);
}

HOOK(cuMipmappedArrayCreate)(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels) {
    tells();
    if (!d || d->flags & WITHOUT_MEMORY) return REAL(cuMipmappedArrayCreate)(array, d, levels);
    uint64_t bytes = extent_of(d);
    if (levels > 1 && bytes < UINT64_MAX / 2) bytes += bytes / 100 * 34; // each level a quarter of the one before
    CREATE(bytes, REAL(cuMipmappedArrayCreate)(array, d, levels), MIPMAP);
}

HOOK(cuArrayDestroy)(CUarray array) {
    struct record record;
    tells();
    bool known = table_take(ARRAY, (uintptr_t)array, &record);
    return released(REAL(cuArrayDestroy)(array), ARRAY, (uintptr_t)array, known ? &record : NULL);
}

HOOK(cuMipmappedArrayDestroy)(CUmipmappedArray array) {
    struct record record;
    tells();
    bool known = table_take(MIPMAP, (uintptr_t)array, &record);
    return released(REAL(cuMipmappedArrayDestroy)(array), MIPMAP, (uintptr_t)array, known ? &record : NULL);
}
