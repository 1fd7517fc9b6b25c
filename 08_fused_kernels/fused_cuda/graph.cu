/* A CUDA graph of what one micro-batch queues, by stream capture (CUDA C++ Programming Guide, "CUDA Graphs").
 *
 * The capture is thread-local: it refuses this thread's calls that wait or that bypass the stream, such as cudaMalloc,
 * and so finds a mistake of ours. Threads of MPI's may do as they like. No memory is allocated inside: cudaMallocAsync
 * would make nodes of the graph's own memory. cuBLAS makes none either, for its workspace is ours, and it captures the
 * values of alpha and beta, which are the host's (cuBLAS, "CUDA Graphs Support"). */
#include "../../common/cuda/device_cuda.h"
#include "../../common/error.h"
#include "../../common/options.h"
#include "../graph.h"

static bool enabled, warm, capturing;
static cudaGraphExec_t ready;                   /* NULL: none is yet */
static double scale_of_graph;

/* A kernel's mistake may be heard of here too, and not tell which kernel's. */
static void check(cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        fail("--graph on: CUDA could not %s: %s; with --graph off each kernel is launched by itself", what,
             cudaGetErrorString(error));
}

static cudaStream_t stream(void)
{
    return (cudaStream_t)device_stream();
}

void graph_enable(void)
{
    const char *other = options.report ? "report" : options.trace ? "trace" : options.pretend ? "pretend" : NULL;

    if (other)
        fail_usage("--graph: expected off with --%s, got 'on'; it looks at each operator, and a graph's run as one",
                   other);
    enabled = true;
}

bool graph_replay(double loss_scale)
{
    if (!enabled)
        return false;
    if (ready && loss_scale == scale_of_graph) {
        check(cudaGraphLaunch(ready, stream()), "launch the graph");
        return true;
    }
    if (warm) {
        device_scratch_fix(true);
        check(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal), "begin the capture");
        capturing = true;
        scale_of_graph = loss_scale;
    }
    warm = true;
    return false;
}

void graph_end(void)
{
    cudaGraph_t graph;

    if (!capturing)
        return;
    check(cudaStreamEndCapture(stream(), &graph), "end the capture");
    capturing = false;
    device_scratch_fix(false);
    if (ready)
        check(cudaGraphExecDestroy(ready), "destroy the graph");        /* if it still runs, when it has */
    check(cudaGraphInstantiate(&ready, graph, 0), "instantiate the graph");
    check(cudaGraphDestroy(graph), "destroy the graph");
    check(cudaGraphLaunch(ready, stream()), "launch the graph");
}
