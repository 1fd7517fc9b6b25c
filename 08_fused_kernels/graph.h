/* --graph on: forward and backward of a micro-batch as a CUDA graph.
 *
 * The host needs some microseconds to launch a kernel. Where kernels are shorter than that, the GPU waits for the host.
 * A graph is a recorded list of launches: one call of the host starts it, and the GPU goes through it by itself.
 *
 * The first micro-batch of a run is launched kernel by kernel, as without a graph. It loads the kernels, asks cuBLASLt
 * for its algorithms, and times them with --autotune: a stream that is captured allows none of this. The second one is
 * captured, and the graph replayed for it and for all that follow.
 *
 * A graph repeats what its launches were given, addresses and numbers. They hold for the whole run:
 * - Tensors are allocated once. A micro-batch's ids are copied to the same two tensors before each replay.
 * - Scratch comes from a block that only the graph uses, so no evaluation and no sample moves it.
 * - Shapes follow from options. Evaluation and sampling, whose forward has other arguments, are never replayed.
 * - The loss and fp8's scales are numbers on the GPU: kernels read them when they run.
 * But fp16's loss scale is an argument of kernels: when it has changed, the next micro-batch is captured anew. Gradient
 * clipping, the learning rate and the update are not in the graph.
 */
#ifndef GRAPH_H
#define GRAPH_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* From now on there are graphs. Fails on the CPU, and with options that look at each operator while it runs: --report,
 * --trace, --pretend. A graph runs as one, without a host that could look. */
void graph_enable(void);

/* true: the micro-batch's forward and backward, with this loss scale, are queued. false: the caller queues them, and
 * then calls graph_end. Always false if graphs are not enabled. */
bool graph_replay(double loss_scale);
void graph_end(void);

#ifdef __cplusplus
}
#endif

#endif
