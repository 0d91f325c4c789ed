// SPDX-License-Identifier: Apache-2.0
//
// What the driver says of a device by the numbers of CUdevice_attribute (cuda.h 13.5). The values are an H100's; what a
// device of its own has is asked of it. A known number that is not listed is 0: not supported, or none.

#include <stdio.h>

#include "simcuda.h"

enum { LAST = 161 };

static const int values[LAST + 1] = {
    [1] = 1024,         // MAX_THREADS_PER_BLOCK
    [2] = 1024,         // MAX_BLOCK_DIM_X
    [3] = 1024,         // MAX_BLOCK_DIM_Y
    [4] = 64,           // MAX_BLOCK_DIM_Z
    [5] = 2147483647,   // MAX_GRID_DIM_X
    [6] = 65535,        // MAX_GRID_DIM_Y
    [7] = 65535,        // MAX_GRID_DIM_Z
    [8] = 49152,        // MAX_SHARED_MEMORY_PER_BLOCK
    [9] = 65536,        // TOTAL_CONSTANT_MEMORY
    [10] = 32,          // WARP_SIZE
    [11] = 2147483647,  // MAX_PITCH
    [12] = 65536,       // MAX_REGISTERS_PER_BLOCK
    [13] = 1980000,     // CLOCK_RATE, kHz
    [14] = 512,         // TEXTURE_ALIGNMENT
    [15] = 1,           // GPU_OVERLAP
    [16] = 132,         // MULTIPROCESSOR_COUNT
    [19] = 1,           // CAN_MAP_HOST_MEMORY
    [21] = 131072,      // MAXIMUM_TEXTURE1D_WIDTH
    [22] = 131072,      // MAXIMUM_TEXTURE2D_WIDTH
    [23] = 65536,       // MAXIMUM_TEXTURE2D_HEIGHT
    [24] = 16384,       // MAXIMUM_TEXTURE3D_WIDTH
    [25] = 16384,       // MAXIMUM_TEXTURE3D_HEIGHT
    [26] = 16384,       // MAXIMUM_TEXTURE3D_DEPTH
    [27] = 32768,       // MAXIMUM_TEXTURE2D_LAYERED_WIDTH
    [28] = 32768,       // MAXIMUM_TEXTURE2D_LAYERED_HEIGHT
    [29] = 2048,        // MAXIMUM_TEXTURE2D_LAYERED_LAYERS
    [30] = 512,         // SURFACE_ALIGNMENT
    [31] = 1,           // CONCURRENT_KERNELS
    [32] = 1,           // ECC_ENABLED
    [36] = 2619000,     // MEMORY_CLOCK_RATE, kHz
    [37] = 5120,        // GLOBAL_MEMORY_BUS_WIDTH
    [38] = 52428800,    // L2_CACHE_SIZE
    [39] = 2048,        // MAX_THREADS_PER_MULTIPROCESSOR
    [40] = 3,           // ASYNC_ENGINE_COUNT
    [41] = 1,           // UNIFIED_ADDRESSING
    [42] = 32768,       // MAXIMUM_TEXTURE1D_LAYERED_WIDTH
    [43] = 2048,        // MAXIMUM_TEXTURE1D_LAYERED_LAYERS
    [45] = 32768,       // MAXIMUM_TEXTURE2D_GATHER_WIDTH
    [46] = 32768,       // MAXIMUM_TEXTURE2D_GATHER_HEIGHT
    [47] = 8192,        // MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE
    [48] = 8192,        // MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE
    [49] = 32768,       // MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE
    [51] = 32,          // TEXTURE_PITCH_ALIGNMENT
    [52] = 32768,       // MAXIMUM_TEXTURECUBEMAP_WIDTH
    [53] = 32768,       // MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH
    [54] = 2046,        // MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS
    [55] = 32768,       // MAXIMUM_SURFACE1D_WIDTH
    [56] = 131072,      // MAXIMUM_SURFACE2D_WIDTH
    [57] = 65536,       // MAXIMUM_SURFACE2D_HEIGHT
    [58] = 16384,       // MAXIMUM_SURFACE3D_WIDTH
    [59] = 16384,       // MAXIMUM_SURFACE3D_HEIGHT
    [60] = 16384,       // MAXIMUM_SURFACE3D_DEPTH
    [61] = 32768,       // MAXIMUM_SURFACE1D_LAYERED_WIDTH
    [62] = 2048,        // MAXIMUM_SURFACE1D_LAYERED_LAYERS
    [63] = 32768,       // MAXIMUM_SURFACE2D_LAYERED_WIDTH
    [64] = 32768,       // MAXIMUM_SURFACE2D_LAYERED_HEIGHT
    [65] = 2048,        // MAXIMUM_SURFACE2D_LAYERED_LAYERS
    [66] = 32768,       // MAXIMUM_SURFACECUBEMAP_WIDTH
    [67] = 32768,       // MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH
    [68] = 2046,        // MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS
    [69] = 268435456,   // MAXIMUM_TEXTURE1D_LINEAR_WIDTH
    [70] = 131072,      // MAXIMUM_TEXTURE2D_LINEAR_WIDTH
    [71] = 65000,       // MAXIMUM_TEXTURE2D_LINEAR_HEIGHT
    [72] = 2097120,     // MAXIMUM_TEXTURE2D_LINEAR_PITCH
    [73] = 32768,       // MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH
    [74] = 32768,       // MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT
    [77] = 32768,       // MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH
    [78] = 1,           // STREAM_PRIORITIES_SUPPORTED
    [79] = 1,           // GLOBAL_L1_CACHE_SUPPORTED
    [80] = 1,           // LOCAL_L1_CACHE_SUPPORTED
    [81] = 233472,      // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
    [82] = 65536,       // MAX_REGISTERS_PER_MULTIPROCESSOR
    [83] = 1,           // MANAGED_MEMORY
    [87] = 2,           // SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO
    [89] = 1,           // CONCURRENT_MANAGED_ACCESS
    [90] = 1,           // COMPUTE_PREEMPTION_SUPPORTED
    [91] = 1,           // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
    [95] = 1,           // COOPERATIVE_LAUNCH
    [96] = 1,           // COOPERATIVE_MULTI_DEVICE_LAUNCH
    [97] = 232448,      // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    [99] = 1,           // HOST_REGISTER_SUPPORTED
    [102] = 1,          // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    [103] = 1,          // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
    [106] = 32,         // MAX_BLOCKS_PER_MULTIPROCESSOR
    [109] = 134213632,  // MAX_ACCESS_POLICY_WINDOW_SIZE
    [111] = 1024,       // RESERVED_SHARED_MEMORY_PER_BLOCK
    [115] = 1,          // MEMORY_POOLS_SUPPORTED
    [119] = 1,          // MEMPOOL_SUPPORTED_HANDLE_TYPES, POSIX file descriptors
    [122] = 1,          // CAN_USE_64_BIT_STREAM_MEM_OPS
    [123] = 1,          // CAN_USE_STREAM_WAIT_VALUE_NOR
    [125] = 1,          // IPC_EVENT_SUPPORTED
    [129] = 1,          // UNIFIED_FUNCTION_POINTERS
    [149] = 1,          // LOCALITY_DOMAIN_COUNT
    [157] = 132,        // LOCALITY_DOMAIN_MULTIPROCESSOR_COUNT
};

static int pci(const struct device *device, int which) {
    unsigned domain = 0, bus = 0, slot = 0;
    sscanf(device->pci, "%x:%x:%x", &domain, &bus, &slot);
    return (int)(which == 33 ? bus : which == 34 ? slot : domain);
}

CUresult attribute_of(const struct device *device, int attribute, int *value) {
    switch (attribute) {
    case 33:  // PCI_BUS_ID
    case 34:  // PCI_DEVICE_ID
    case 50: *value = pci(device, attribute); return SUCCESS;  // PCI_DOMAIN_ID
    case 75: *value = device->major; return SUCCESS;  // COMPUTE_CAPABILITY_MAJOR
    case 76: *value = device->minor; return SUCCESS;  // COMPUTE_CAPABILITY_MINOR
    case 120:  // CLUSTER_LAUNCH
    case 127: *value = device->major >= 9; return SUCCESS;  // TENSOR_MAP_ACCESS_SUPPORTED
    case 126: *value = device->major >= 9 ? 4 : 1; return SUCCESS;  // MEM_SYNC_DOMAIN_COUNT
    default:
        if (attribute < 1 || attribute > LAST)
            return INVALID_VALUE;
        *value = values[attribute];
        return SUCCESS;
    }
}
