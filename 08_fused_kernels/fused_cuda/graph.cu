/* A CUDA graph of one micro-batch's launches, by stream capture (CUDA C++ Programming Guide, "CUDA Graphs").
 *
 * The capture is thread-local: this thread's calls that wait, or that bypass the stream as cudaMalloc does, fail. So a
 * mistake of ours shows. MPI's own threads are not restricted. Nothing is allocated during the capture: cudaMallocAsync
 * would become a node with memory of the graph's own. cuBLAS uses our workspace, and it captures the values of alpha and
 * beta, which are on the host (cuBLAS, "CUDA Graphs Support"). */
#include "../../common/cuda/device_cuda.h"
#include "../../common/error.h"
#include "../../common/options.h"
#include "../graph.h"

static bool enabled, warm, capturing;
static cudaGraphExec_t ready;                   /* NULL: nothing is captured yet */
static double scale_of_graph;

/* CUDA also reports errors of earlier kernels here, without their names. */
static void check(cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        fail("--graph on: CUDA could not %s: %s; try --graph off", what, cudaGetErrorString(error));
}

static cudaStream_t stream(void)
{
    return (cudaStream_t)device_stream();
}

void graph_enable(void)
{
    const char *other = options.report ? "report" : options.trace ? "trace" : options.pretend ? "pretend" : NULL;

    if (other)
        fail_usage("--graph: expected off with --%s, got 'on'; --%s needs each operator by itself, and a graph runs them "
                   "as one", other, other);
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
        check(cudaGraphExecDestroy(ready), "destroy the graph");        /* if it still runs, freed when it ends */
    check(cudaGraphInstantiate(&ready, graph, 0), "instantiate the graph");
    check(cudaGraphDestroy(graph), "destroy the graph");
    check(cudaGraphLaunch(ready, stream()), "launch the graph");
}
