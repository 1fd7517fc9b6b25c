#include "formulas.h"

#include "../common/base/tensor.h"

int64_t block_elements(const RankShape *r)
{
    return (12 * r->H * r->H + 7 * r->H) / r->tp + 6 * r->H;
}

double local_elements(const RankShape *r)
{
    return (r->first || r->last) * r->H * r->V + r->layers * block_elements(r) + r->last * 2 * r->H;
}

/* Of a unit (the embedding, a block, the final LayerNorm): with ZeRO-1 one shard of it. */
static int64_t updated(const RankShape *r, int64_t unit)
{
    return r->zero ? range_split(unit, r->replica, r->replicas).count : unit;
}

double updated_elements(const RankShape *r)
{
    return (r->first || r->last) * updated(r, r->H * r->V) + r->layers * updated(r, block_elements(r))
           + r->last * updated(r, 2 * r->H);
}

void rank_memory(const RankShape *r, double bytes[MEM_CATEGORIES])
{
    const double stored = r->stored, real = r->real, in_flight = r->in_flight, layers = r->layers;
    const double x = r->R * r->H, full = r->B * r->T * r->H;    /* the residual stream: local rows; the tp group's */
    const double attn_out = r->B * r->T * r->A * r->D, mlp = r->B * r->T * r->F;
    const double blocks = r->recompute ? 1 : in_flight * layers;    /* whose activations are stored */
    /* ln1, mid, ln2; qkv, attn_out; up, gelu; the statistics of two LayerNorms; attention's lse */
    const double block = stored * (3 * x + 4 * attn_out + 2 * mlp) + real * (4 * r->R + r->B * r->T * r->A);

    bytes[MEM_PARAMETERS] = stored * local_elements(r);
    bytes[MEM_MASTER] = r->master ? real * updated_elements(r) : 0;
    bytes[MEM_GRADIENTS] = real * local_elements(r);
    bytes[MEM_OPTIMIZER] = 2 * real * updated_elements(r);
    /* per micro-batch: x, d_x; the blocks; on the last pipeline stage: final, its statistics, S rows' logits and lse */
    bytes[MEM_ACTIVATIONS] = stored * in_flight * (layers + 1) * x + blocks * block
                             + r->last * (stored * (x + r->S * r->V) + real * (2 * r->R + r->S));
    /* recv_x; tp: full_rows, partial_sums; cp: kv_next, d_arrived, d_leaving, two tensors each */
    bytes[MEM_COMMUNICATION] = stored * (in_flight + 1) * x + (r->tp > 1) * stored * 2 * full
                               + (r->cp > 1) * stored * 6 * attn_out;
    /* d_block; branch twice; rope; the loss; input and target ids; on the last pipeline stage d_final, max, sums; cp:
     * split, d_split, merged */
    bytes[MEM_WORKSPACE] = block + stored * 2 * x + real * r->B * r->T * r->D + 8 + in_flight * 2 * 4 * r->B * r->T
                           + r->last * (stored * x + real * 3 * r->S)
                           + (r->cp > 1) * (stored * 3 * attn_out + real * 4 * attn_out);
}
