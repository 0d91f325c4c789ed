// SPDX-License-Identifier: Apache-2.0
// Arrays, by their extent: the driver does not tell how large one is. Sparse and deferred ones get their memory by
// cuMemCreate.
#include "shim.h"

#define WITHOUT_MEMORY (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)

// Bits of a texel, by the numbers of CUarray_format; 0: it has as many channels as it is asked for. Block compressed
// formats have at most 8.
static const struct {
    uint8_t format, bits, channel;
} formats[] = {
    {0x01, 0, 8},  {0x08, 0, 8},                                                             // 8 bit
    {0x02, 0, 16}, {0x09, 0, 16}, {0x10, 0, 16},                                             // 16 bit, half
    {0x03, 0, 32}, {0x0a, 0, 32}, {0x20, 0, 32},                                             // 32 bit, float
    {0x50, 32, 0}, {0x51, 32, 0}, {0x52, 32, 0},                                             // packed
    {0x53, 12, 0}, {0x54, 24, 0}, {0x55, 16, 0}, {0x56, 32, 0}, {0x57, 24, 0}, {0x58, 48, 0}, // semiplanar
    {0x59, 12, 0}, {0x5a, 24, 0}, {0x5b, 16, 0}, {0x5c, 32, 0}, {0x5d, 24, 0}, {0x5e, 48, 0}, // planar
    {0x91, 8, 0},  {0x92, 8, 0},  {0x93, 8, 0},  {0x94, 8, 0},  {0x95, 8, 0},  {0x96, 8, 0},  // BC1 to BC3
    {0x97, 8, 0},  {0x98, 8, 0},  {0x99, 8, 0},  {0x9a, 8, 0},  {0x9b, 8, 0},  {0x9c, 8, 0},  // BC4 to BC6H
    {0x9d, 8, 0},  {0x9e, 8, 0},                                                             // BC7
    {0x9f, 24, 0}, {0xa1, 24, 0}, {0xa2, 16, 0}, {0xa3, 32, 0}, {0xa4, 32, 0},               // P010 to P216
    {0xa5, 16, 0}, {0xa6, 32, 0}, {0xa7, 32, 0}, {0xa8, 32, 0}, {0xa9, 32, 0},               // YUY2 to Y410
    {0xb0, 12, 0}, {0xb1, 64, 0}, {0xb2, 24, 0}, {0xb3, 48, 0}, {0xb4, 24, 0}, {0xb5, 48, 0}, // NV12, Y416, YUV444
    {0xc0, 8, 0},  {0xc1, 16, 0}, {0xc2, 32, 0}, {0xc3, 16, 0}, {0xc4, 32, 0}, {0xc5, 64, 0}, // UNORM
    {0xc6, 8, 0},  {0xc7, 16, 0}, {0xc8, 32, 0}, {0xc9, 16, 0}, {0xca, 32, 0}, {0xcb, 64, 0}, // SNORM
};

static uint64_t texel_bits(unsigned format, unsigned channels) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].format == format)
            return formats[i].bits ? formats[i].bits : (uint64_t)formats[i].channel * (channels ? channels : 1);
    return 0;
}

// False: of a format or with a flag that is not known, so that nobody knows what to charge.
static bool extent(const CUDA_ARRAY3D_DESCRIPTOR *d, uint64_t *bytes) {
    uint64_t bits = texel_bits(d->format, d->channels), texels;
    if (!bits || d->flags & ~CUDA_ARRAY3D_FLAGS) return false;
    if (__builtin_mul_overflow(d->width ? d->width : 1, d->height ? d->height : 1, &texels) ||
        __builtin_mul_overflow(texels, d->depth ? d->depth : 1, &texels) || __builtin_mul_overflow(texels, bits, bytes))
        *bytes = UINT64_MAX;
    else *bytes = d->flags & WITHOUT_MEMORY ? 0 : *bytes / 8 + (*bytes % 8 != 0);
    return true;
}

#define CREATE(description, levels, call, kind)                              \
    struct charge charge = {.index = NO_SUCH_DEVICE};                        \
    const CUDA_ARRAY3D_DESCRIPTOR wanted = description;                      \
    uint64_t bytes = 0;                                                      \
    tells();                                                                 \
    if (d && !extent(&wanted, &bytes)) return CUDA_ERROR_INVALID_VALUE;      \
    if (levels > 1 && bytes < UINT64_MAX / 2) bytes += bytes / 100 * 34;     \
    CUresult result = bytes ? charge_current(&charge, bytes) : CUDA_SUCCESS; \
    if (result) return result;                                               \
    result = call;                                                           \
    return charged(&charge, result, kind, result ? 0 : (uintptr_t)*array)

#define FLAT {d ? d->width : 0, d ? d->height : 0, 0, d ? d->format : 0, d ? d->channels : 0, 0}
#define SOLID \
    {d ? d->width : 0, d ? d->height : 0, d ? d->depth : 0, d ? d->format : 0, d ? d->channels : 0, d ? d->flags : 0}

HOOK(cuArrayCreate)(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *d) {
    CREATE(FLAT, 1, REAL(cuArrayCreate)(array, d), ARRAY);
}

HOOK(cuArrayCreate_v2)(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d) {
    CREATE(FLAT, 1, REAL(cuArrayCreate_v2)(array, d), ARRAY);
}

HOOK(cuArray3DCreate)(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d) {
    CREATE(SOLID, 1, REAL(cuArray3DCreate)(array, d), ARRAY);
}

HOOK(cuArray3DCreate_v2)(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d) {
    CREATE(SOLID, 1, REAL(cuArray3DCreate_v2)(array, d), ARRAY);
}

HOOK(cuMipmappedArrayCreate)(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels) {
    CREATE(SOLID, levels, REAL(cuMipmappedArrayCreate)(array, d, levels), MIPMAP); // each level a quarter of the last
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
