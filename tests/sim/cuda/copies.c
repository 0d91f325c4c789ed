// SPDX-License-Identifier: Apache-2.0
//
// Copies and memsets. Copies that are not asynchronous wait for their stream, whatever they copy from and to: the real
// driver waits for most of them.

#include "simcuda.h"

typedef struct {
    size_t source_x, source_y;
    int source_type;
    void *source_host;
    CUdeviceptr source_device;
    void *source_array;
    size_t source_pitch, target_x, target_y;
    int target_type;
    void *target_host;
    CUdeviceptr target_device;
    void *target_array;
    size_t target_pitch, width, height;
} CUDA_MEMCPY2D;
typedef struct {
    size_t source[4];
    int source_type;
    void *source_host;
    CUdeviceptr source_device;
    void *source_array, *source_context;
    size_t source_pitch, source_height, target[4];
    int target_type;
    void *target_host;
    CUdeviceptr target_device;
    void *target_array, *target_context;
    size_t target_pitch, target_height, width, height, depth;
} CUDA_MEMCPY3D;
_Static_assert(sizeof(CUDA_MEMCPY2D) == 128 && sizeof(CUDA_MEMCPY3D) == 200, "as cuda.h has them");

static int64_t in_2d(const CUDA_MEMCPY2D *copy) {
    return (int64_t)(copy->width * copy->height);
}

static int64_t in_3d(const CUDA_MEMCPY3D *copy) {
    return (int64_t)(copy->width * copy->height * copy->depth);
}

#define WAITS(name, parameters, bytes)                        \
    BOTH(name, _ptds, parameters, ENTER_STREAM(NULL);         \
         return copy(stream, (int64_t)(bytes), true);)
#define ASYNC(name, parameters, bytes)                        \
    BOTH(name, _ptsz, parameters, ENTER_STREAM(handle);       \
         return copy(stream, (int64_t)(bytes), false);)
#define OLD(name, parameters, call) API CUresult name parameters { return call; }
#define D  CUdeviceptr
#define D1 unsigned
#define H  void *
#define A  void *
#define UNUSED __attribute__((unused))
#define TWO(to, from) UNUSED to _to, UNUSED from _from
#define TO_ARRAY(from) UNUSED A _to, UNUSED size_t _offset, UNUSED from _from, size_t bytes
#define OF_ARRAY(to) UNUSED to _to, UNUSED A _from, UNUSED size_t _offset, size_t bytes
#define PEERS UNUSED D _to, UNUSED CUcontext _context, UNUSED D _from, UNUSED CUcontext _context2, size_t bytes

WAITS(cuMemcpy, (TWO(D, D), size_t bytes), bytes)
WAITS(cuMemcpyPeer, (PEERS), bytes)
WAITS(cuMemcpyHtoD_v2, (TWO(D, H), size_t bytes), bytes)
WAITS(cuMemcpyDtoH_v2, (TWO(H, D), size_t bytes), bytes)
WAITS(cuMemcpyDtoD_v2, (TWO(D, D), size_t bytes), bytes)
WAITS(cuMemcpyDtoA_v2, (TO_ARRAY(D)), bytes)
WAITS(cuMemcpyHtoA_v2, (TO_ARRAY(H)), bytes)
WAITS(cuMemcpyAtoD_v2, (OF_ARRAY(D)), bytes)
WAITS(cuMemcpyAtoH_v2, (OF_ARRAY(H)), bytes)
WAITS(cuMemcpyAtoA_v2, (UNUSED A _to, UNUSED size_t _at, UNUSED A _from, UNUSED size_t _offset, size_t bytes), bytes)
WAITS(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *shape), shape != NULL ? in_2d(shape) : 0)
WAITS(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *shape), shape != NULL ? in_2d(shape) : 0)
WAITS(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *shape), shape != NULL ? in_3d(shape) : 0)
WAITS(cuMemcpy3DPeer, (const CUDA_MEMCPY3D *shape), shape != NULL ? in_3d(shape) : 0)

OLD(cuMemcpyHtoD, (D1 to, H from, unsigned bytes), cuMemcpyHtoD_v2(to, from, bytes))
OLD(cuMemcpyDtoH, (H to, D1 from, unsigned bytes), cuMemcpyDtoH_v2(to, from, bytes))
OLD(cuMemcpyDtoD, (D1 to, D1 from, unsigned bytes), cuMemcpyDtoD_v2(to, from, bytes))
OLD(cuMemcpyDtoA, (A to, unsigned at, D1 from, unsigned bytes), cuMemcpyDtoA_v2(to, at, from, bytes))
OLD(cuMemcpyHtoA, (A to, unsigned at, H from, unsigned bytes), cuMemcpyHtoA_v2(to, at, from, bytes))
OLD(cuMemcpyAtoD, (D1 to, A from, unsigned at, unsigned bytes), cuMemcpyAtoD_v2(to, from, at, bytes))
OLD(cuMemcpyAtoH, (H to, A from, unsigned at, unsigned bytes), cuMemcpyAtoH_v2(to, from, at, bytes))
OLD(cuMemcpyAtoA, (A to, unsigned at, A from, unsigned at2, unsigned bytes), cuMemcpyAtoA_v2(to, at, from, at2, bytes))
OLD(cuMemcpy2D, (UNUSED const void *shape), cuMemcpy2D_v2(NULL))
OLD(cuMemcpy2DUnaligned, (UNUSED const void *shape), cuMemcpy2DUnaligned_v2(NULL))
OLD(cuMemcpy3D, (UNUSED const void *shape), cuMemcpy3D_v2(NULL))

ASYNC(cuMemcpyAsync, (TWO(D, D), size_t bytes, CUstream handle), bytes)
ASYNC(cuMemcpyPeerAsync, (PEERS, CUstream handle), bytes)
ASYNC(cuMemcpyHtoDAsync_v2, (TWO(D, H), size_t bytes, CUstream handle), bytes)
ASYNC(cuMemcpyDtoHAsync_v2, (TWO(H, D), size_t bytes, CUstream handle), bytes)
ASYNC(cuMemcpyDtoDAsync_v2, (TWO(D, D), size_t bytes, CUstream handle), bytes)
ASYNC(cuMemcpyHtoAAsync_v2, (TO_ARRAY(H), CUstream handle), bytes)
ASYNC(cuMemcpyAtoHAsync_v2, (OF_ARRAY(H), CUstream handle), bytes)
ASYNC(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *shape, CUstream handle), shape != NULL ? in_2d(shape) : 0)
ASYNC(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *shape, CUstream handle), shape != NULL ? in_3d(shape) : 0)
ASYNC(cuMemcpy3DPeerAsync, (const CUDA_MEMCPY3D *shape, CUstream handle), shape != NULL ? in_3d(shape) : 0)

#define PITCHED UNUSED size_t pitch
WAITS(cuMemsetD8_v2, (UNUSED D to, UNUSED unsigned char value, size_t count), count)
WAITS(cuMemsetD16_v2, (UNUSED D to, UNUSED unsigned short value, size_t count), 2 * count)
WAITS(cuMemsetD32_v2, (UNUSED D to, UNUSED unsigned value, size_t count), 4 * count)
WAITS(cuMemsetD2D8_v2, (UNUSED D to, PITCHED, UNUSED unsigned char value, size_t width, size_t height), width * height)
WAITS(cuMemsetD2D16_v2, (UNUSED D to, PITCHED, UNUSED unsigned short value, size_t width, size_t height), 2 * width * height)
WAITS(cuMemsetD2D32_v2, (UNUSED D to, PITCHED, UNUSED unsigned value, size_t width, size_t height), 4 * width * height)
ASYNC(cuMemsetD8Async, (UNUSED D to, UNUSED unsigned char value, size_t count, CUstream handle), count)
ASYNC(cuMemsetD16Async, (UNUSED D to, UNUSED unsigned short value, size_t count, CUstream handle), 2 * count)
ASYNC(cuMemsetD32Async, (UNUSED D to, UNUSED unsigned value, size_t count, CUstream handle), 4 * count)
