/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of the CUDA driver's interface the shim takes part in, declared by hand: cuda.h renames functions by its own version. */
#ifndef KUBE_ACCEL_DRIVER_H
#define KUBE_ACCEL_DRIVER_H
#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned int CUdeviceptr_v1;
typedef struct context *CUcontext;
typedef struct green_context *CUgreenCtx;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct function *CUfunction;
typedef struct array *CUarray;
typedef struct mipmapped_array *CUmipmappedArray;
typedef struct pool *CUmemoryPool;
typedef struct graph *CUgraph;
typedef struct graph_node *CUgraphNode;
typedef struct graph_exec *CUgraphExec;
typedef struct resource_description *CUdevResourceDesc;
typedef unsigned long long CUmemGenericAllocationHandle;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NOT_SUPPORTED = 801,
};
#endif
