#include "formulas.h"

#include "../common/base/tensor.h"

void mixture_units(const MixtureShape *m, MixtureUnits units[MIXTURE_UNITS])
{
    const RankShape *r = &m->rank;
    const int64_t H = r->H, F = r->F;

    units[0] = (MixtureUnits){H * r->V, r->first || r->last};
    units[1] = (MixtureUnits){(4 * H * H + 3 * H) / r->tp + (5 + m->e) * H, r->layers};
    units[2] = (MixtureUnits){2 * H, r->last};
    units[3] = (MixtureUnits){m->E * (2 * F * H + F + H), r->layers, true};
}

double mixture_elements(const MixtureShape *m)
{
    MixtureUnits units[MIXTURE_UNITS];
    double sum = 0;

    mixture_units(m, units);
    for (int i = 0; i < MIXTURE_UNITS; i++)
        sum += units[i].units * units[i].count;
    return sum;
}

double mixture_updated(const MixtureShape *m)
{
    MixtureUnits units[MIXTURE_UNITS];
    double sum = 0;

    mixture_units(m, units);
    for (int i = 0; i < MIXTURE_UNITS && m->rank.zero; i++)
        sum += units[i].units * (units[i].experts
               ? range_split(units[i].count, m->expert_replica, m->expert_replicas).count
               : range_split(units[i].count, m->rank.replica, m->rank.replicas).count);
    return m->rank.zero ? sum : mixture_elements(m);
}

void mixture_memory(const MixtureShape *m, double bytes[MEM_CATEGORIES])
{
    const RankShape *r = &m->rank;
    const double stored = r->stored, real = r->real, in_flight = r->in_flight, layers = r->layers;
    const double x = r->R * r->H, full = r->B * r->T * r->H;    /* the residual stream: local rows; the tp group's */
    const double attn_out = r->B * r->T * r->A * r->D, slots = m->E * m->P;
    const double blocks = r->recompute ? 1 : in_flight * layers;    /* whose activations are stored */
    /* ln1, mid, ln2; qkv, attn_out; in, returned, up, gelu; the statistics of two LayerNorms; attention's lse */
    const double block = stored * (3 * x + 4 * attn_out + slots * (2 * r->H + 2 * r->F))
                         + real * (4 * r->R + r->B * r->T * r->A);
    /* probs, gates, load; choice, slot, rows */
    const double routing = real * (r->R * (m->e + m->K) + r->R / m->G * m->e) + 4 * (2 * r->R * m->K + slots);

    bytes[MEM_PARAMETERS] = stored * mixture_elements(m);
    bytes[MEM_MASTER] = r->master ? real * mixture_updated(m) : 0;
    bytes[MEM_GRADIENTS] = real * mixture_elements(m);
    bytes[MEM_OPTIMIZER] = 2 * real * mixture_updated(m);
    /* per micro-batch: x, d_x; the blocks; on the last pipeline stage: final, its statistics, S rows' logits and lse */
    bytes[MEM_ACTIVATIONS] = stored * in_flight * (layers + 1) * x + blocks * (block + routing)
                             + r->last * (stored * (x + r->S * r->V) + real * (2 * r->R + r->S));
    /* recv_x; slots; tp: full_rows, partial_sums; cp: kv_next, d_arrived, d_leaving, two tensors each */
    bytes[MEM_COMMUNICATION] = stored * ((in_flight + 1) * x + slots * r->H + (r->tp > 1) * 2 * full
                                         + (r->cp > 1) * 6 * attn_out);
    /* d_block; branch twice; rope; d_gates, d_logits; the router's logits; totals; two losses; input and target ids; on
     * the last pipeline stage d_final, max, sums; cp: split, d_split, merged */
    bytes[MEM_WORKSPACE] = block + stored * 2 * x + real * (r->B * r->T * r->D + r->R * (m->e + m->K))
                           + stored * r->R * m->e + real * m->all_layers * m->e * 2 + 2 * 8
                           + in_flight * 2 * 4 * r->B * r->T + r->last * (stored * x + real * 3 * r->S)
                           + (r->cp > 1) * (stored * 3 * attn_out + real * 4 * attn_out);
}
