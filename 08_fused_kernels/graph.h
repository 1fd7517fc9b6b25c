/* --graph on: the forward and backward of a micro-batch as a CUDA graph.
 *
 * The host needs some microseconds to launch a kernel. Where kernels are shorter than that, the GPU waits for the host.
 * A graph is a recorded list of launches: the host starts the list with one call.
 *
 * The first micro-batch of a run is launched kernel by kernel. This loads the kernels, asks cuBLASLt for its algorithms,
 * and times them with --autotune: none of it is allowed during a capture. The second micro-batch is captured. The graph
 * is then replayed for it and for all that follow.
 *
 * A graph repeats the addresses and numbers that its launches were given. They hold for the whole run:
 * - Tensors are allocated once. The ids of each micro-batch are copied to the same two tensors before the replay.
 * - Scratch comes from a block that only the graph uses, so evaluation and sampling cannot move it.
 * - Shapes follow from the options. Evaluation and sampling, whose forward has other arguments, are never replayed.
 * - The loss and fp8's scales are numbers on the GPU: kernels read them when they run.
 * Only fp16's loss scale is an argument of kernels: after it changes, the next micro-batch is captured again. Clipping,
 * the learning rate and the update are outside of the graph.
 */
#ifndef GRAPH_H
#define GRAPH_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Enables graphs. Fails on the CPU, and with --report, --trace or --pretend, which look at each operator while it runs:
 * the host does not see the operators of a graph. */
void graph_enable(void);

/* Returns true if it has queued the micro-batch's forward and backward with this loss scale. Otherwise the caller queues
 * them and then calls graph_end. Always false without graph_enable. */
bool graph_replay(double loss_scale);
void graph_end(void);

#ifdef __cplusplus
}
#endif

#endif
