/* The CPU has no graphs: an operator's work is done when its call returns. */
#include "../common/error.h"
#include "graph.h"

void graph_enable(void)
{
    fail_usage("--graph: expected off on the CPU, got 'on'; a graph has kernels of a GPU");
}

bool graph_replay(double loss_scale)
{
    (void)loss_scale;
    return false;
}

void graph_end(void)
{
}
