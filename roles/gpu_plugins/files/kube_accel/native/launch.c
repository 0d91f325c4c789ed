// SPDX-License-Identifier: Apache-2.0
// Every call that starts work on a GPU, and those that take a stream into capture.
#include "gate.h"

#define GATED(stream, per_thread, alone, call)                \
    if (!gate_on()) return call;                              \
    struct pass pass;                                         \
    CUresult result = meter_enter(&pass, stream, per_thread); \
    if (result) return result;                                \
    result = call;                                            \
    meter_leave(&pass, result, alone);                        \
    return result

#define SHAPE      unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared
#define PASS_SHAPE x, y, z, bx, by, bz, shared

HOOK(cuLaunchKernel)(CUfunction function, SHAPE, CUstream stream, void **parameters, void **extra) {
    GATED(stream, false, false, REAL(cuLaunchKernel)(function, PASS_SHAPE, stream, parameters, extra));
}

HOOK(cuLaunchKernel_ptsz)(CUfunction function, SHAPE, CUstream stream, void **parameters, void **extra) {
    GATED(stream, true, false, REAL(cuLaunchKernel_ptsz)(function, PASS_SHAPE, stream, parameters, extra));
}

HOOK(cuLaunchKernelEx)(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    GATED(config ? config->stream : NULL, false, false, REAL(cuLaunchKernelEx)(config, function, parameters, extra));
}

HOOK(cuLaunchKernelEx_ptsz)(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    GATED(config ? config->stream : NULL, true, false,
          REAL(cuLaunchKernelEx_ptsz)(config, function, parameters, extra));
}

HOOK(cuLaunchCooperativeKernel)(CUfunction function, SHAPE, CUstream stream, void **parameters) {
    GATED(stream, false, false, REAL(cuLaunchCooperativeKernel)(function, PASS_SHAPE, stream, parameters));
}

HOOK(cuLaunchCooperativeKernel_ptsz)(CUfunction function, SHAPE, CUstream stream, void **parameters) {
    GATED(stream, true, false, REAL(cuLaunchCooperativeKernel_ptsz)(function, PASS_SHAPE, stream, parameters));
}

HOOK(cuLaunch)(CUfunction function) { GATED(NULL, false, false, REAL(cuLaunch)(function)); }

HOOK(cuLaunchGrid)(CUfunction function, int width, int height) {
    GATED(NULL, false, false, REAL(cuLaunchGrid)(function, width, height));
}

HOOK(cuLaunchGridAsync)(CUfunction function, int width, int height, CUstream stream) {
    GATED(stream, false, false, REAL(cuLaunchGridAsync)(function, width, height, stream));
}

// Each stream in its own context, on a device of its own.
#define MOST_LAUNCHES 64
HOOK(cuLaunchCooperativeKernelMultiDevice)(CUDA_LAUNCH_PARAMS *launches, unsigned count, unsigned flags) {
    if (!gate_on() || !launches || count > MOST_LAUNCHES)
        return REAL(cuLaunchCooperativeKernelMultiDevice)(launches, count, flags);
    struct pass passes[MOST_LAUNCHES];
    CUcontext context;
    CUresult result = CUDA_SUCCESS;
    unsigned entered = 0;
    for (; entered < count && !result; entered++) {
        passes[entered].batch = NULL;
        bool pushed = !REAL(cuStreamGetCtx)(launches[entered].stream, &context) && !REAL(cuCtxPushCurrent_v2)(context);
        result = meter_enter(&passes[entered], launches[entered].stream, false);
        if (pushed) REAL(cuCtxPopCurrent_v2)(&context);
    }
    if (!result) result = REAL(cuLaunchCooperativeKernelMultiDevice)(launches, count, flags);
    while (entered-- > 0) meter_leave(&passes[entered], result, true);
    return result;
}

static CUresult graph_launched(CUresult result) {
    if (!result) graph_settle();
    return result;
}

HOOK(cuGraphLaunch)(CUgraphExec graph, CUstream stream) {
    GATED(stream, false, true, graph_launched(REAL(cuGraphLaunch)(graph, stream)));
}

HOOK(cuGraphLaunch_ptsz)(CUgraphExec graph, CUstream stream) {
    GATED(stream, true, true, graph_launched(REAL(cuGraphLaunch_ptsz)(graph, stream)));
}

// ---------------------------------------------------------------- capture

#define CAPTURED(call)                \
    if (!gate_on()) return call;      \
    tells();                          \
    meter_capture(true);              \
    CUresult result = call;           \
    if (result) meter_capture(false); \
    return result

HOOK(cuStreamBeginCapture)(CUstream stream) { CAPTURED(REAL(cuStreamBeginCapture)(stream)); }
HOOK(cuStreamBeginCapture_ptsz)(CUstream stream) { CAPTURED(REAL(cuStreamBeginCapture_ptsz)(stream)); }
HOOK(cuStreamBeginCapture_v2)(CUstream stream, int mode) { CAPTURED(REAL(cuStreamBeginCapture_v2)(stream, mode)); }
HOOK(cuStreamBeginCapture_v2_ptsz)(CUstream stream, int mode) {
    CAPTURED(REAL(cuStreamBeginCapture_v2_ptsz)(stream, mode));
}

#define INTO CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, int mode
HOOK(cuStreamBeginCaptureToGraph)(INTO) {
    CAPTURED(REAL(cuStreamBeginCaptureToGraph)(stream, graph, after, edges, count, mode));
}
HOOK(cuStreamBeginCaptureToGraph_ptsz)(INTO) {
    CAPTURED(REAL(cuStreamBeginCaptureToGraph_ptsz)(stream, graph, after, edges, count, mode));
}

HOOK(cuStreamBeginRecaptureToGraph)(CUstream stream, int mode, CUgraph graph, void *function, void *data) {
    CAPTURED(REAL(cuStreamBeginRecaptureToGraph)(stream, mode, graph, function, data));
}
HOOK(cuStreamBeginRecaptureToGraph_ptsz)(CUstream stream, int mode, CUgraph graph, void *function, void *data) {
    CAPTURED(REAL(cuStreamBeginRecaptureToGraph_ptsz)(stream, mode, graph, function, data));
}

HOOK(cuStreamEndCapture)(CUstream stream, CUgraph *graph) {
    int status = 0;
    bool ends = !REAL(cuStreamIsCapturing)(stream, &status) && status;
    CUresult result = REAL(cuStreamEndCapture)(stream, graph);
    if (ends) meter_capture(false);
    return result;
}

HOOK(cuStreamEndCapture_ptsz)(CUstream stream, CUgraph *graph) {
    int status = 0;
    bool ends = !REAL(cuStreamIsCapturing_ptsz)(stream, &status) && status;
    CUresult result = REAL(cuStreamEndCapture_ptsz)(stream, graph);
    if (ends) meter_capture(false);
    return result;
}
