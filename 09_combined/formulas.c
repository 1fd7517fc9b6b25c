#include "formulas.h"

#include "../common/tensor.h"

int64_t block_elements(const Place *p)
{
    return (12 * p->H * p->H + 7 * p->H) / p->tp + 6 * p->H;
}

double local_elements(const Place *p)
{
    return (p->first || p->last) * p->H * p->V + p->layers * block_elements(p) + p->last * 2 * p->H;
}

/* Of a unit (the embedding, a block, the final LayerNorm) each replica updates one shard. */
static int64_t updated(const Place *p, int64_t unit)
{
    return p->zero ? range_part(unit, p->replica, p->replicas).count : unit;
}

double updated_elements(const Place *p)
{
    return (p->first || p->last) * updated(p, p->H * p->V) + p->layers * updated(p, block_elements(p))
           + p->last * updated(p, 2 * p->H);
}

void memory_of_place(const Place *p, double bytes[MEM_CATEGORIES])
{
    const double stored = p->stored, real = p->real, in_flight = p->in_flight, layers = p->layers;
    const double x = p->R * p->H, full = p->B * p->T * p->H;    /* the residual stream: local rows; the tp group's */
    const double heads = p->B * p->T * p->A * p->D, mlp = p->B * p->T * p->F;
    const double blocks = p->recompute ? 1 : in_flight * layers;    /* whose activations are stored */
    /* ln1, mid, ln2; qkv, heads; up, gelu; the statistics of two LayerNorms; attention's lse */
    const double block = stored * (3 * x + 4 * heads + 2 * mlp) + real * (4 * p->R + p->B * p->T * p->A);

    bytes[MEM_PARAMETERS] = stored * local_elements(p);
    bytes[MEM_MASTER] = p->master ? real * updated_elements(p) : 0;
    bytes[MEM_GRADIENTS] = real * local_elements(p);
    bytes[MEM_OPTIMIZER] = 2 * real * updated_elements(p);
    /* each micro-batch's x and d_x; the blocks; on the last stage final, its statistics, a slice's logits and lse */
    bytes[MEM_ACTIVATIONS] = stored * in_flight * (layers + 1) * x + blocks * block
                             + p->last * (stored * (x + p->S * p->V) + real * (2 * p->R + p->S));
    /* inboxes; tp: whole, partial; cp: K and V that arrive, dK and dV that arrive and leave */
    bytes[MEM_COMMUNICATION] = stored * (in_flight + 1) * x + (p->tp > 1) * stored * 2 * full
                               + (p->cp > 1) * stored * 6 * heads;
    /* d_block; branch twice; rope; the loss; two ids for each token; on the last stage d_final, max, sums; cp: q, k, v
     * apart, their gradients, the output as it grows */
    bytes[MEM_WORKSPACE] = block + stored * 2 * x + real * p->B * p->T * p->D + 8 + in_flight * 2 * 4 * p->B * p->T
                           + p->last * (stored * x + real * 3 * p->S)
                           + (p->cp > 1) * (stored * 3 * heads + real * 4 * heads);
}
