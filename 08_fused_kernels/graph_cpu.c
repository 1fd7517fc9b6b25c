/* No graphs: a call of an operator returns when it is done, and there are no launches to save. */
#include "../common/error.h"
#include "graph.h"

void graph_enable(void)
{
    fail_usage("--graph: expected off on the CPU, got 'on'; graphs are of a GPU's kernels");
}

bool graph_replay(double loss_scale)
{
    (void)loss_scale;
    return false;
}

void graph_end(void)
{
}
