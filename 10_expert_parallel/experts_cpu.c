/* The kernels of mixtures of experts. A token's choices and gates are computed per token, its slots per sequence. */
#include <string.h>

#include "../common/transformer/cpu/kernel_cpu.h"
#include "experts.h"

static int32_t *ids(Tensor t)
{
    return t.data;
}

/* Softmax of one token's logits, in place; its k largest probabilities, of equal ones the first; their gates. */
static void choose(real *p, int64_t experts, real *gates, int32_t *choice, int64_t k)
{
    const real max = largest_of(p, experts);
    real sum = 0, chosen = 0;

    for (int64_t e = 0; e < experts; e++)
        sum += p[e] = real_exp(p[e] - max);
    for (int64_t e = 0; e < experts; e++)
        p[e] /= sum;
    for (int64_t i = 0; i < k; i++) {
        int32_t best = -1;
        for (int32_t e = 0; e < experts; e++) {
            bool taken = false;
            for (int64_t j = 0; j < i; j++)
                taken |= choice[j] == e;
            if (!taken && (best < 0 || p[e] > p[best]))
                best = e;
        }
        choice[i] = best;
        chosen += gates[i] = p[best];
    }
    for (int64_t i = 0; i < k && k > 1; i++)
        gates[i] /= chosen;
}

void route_forward_kernel(const Routing *r)
{
    const int64_t B = r->probs.shape[0], T = r->probs.shape[1], E = tensor_width(r->probs), K = tensor_width(r->gates);
    const int64_t C = tensor_width(r->rows);
    int32_t *choice = ids(r->choice), *slot = ids(r->slot), *rows = ids(r->rows);

#pragma omp parallel for
    for (int64_t i = 0; i < B * T; i++)
        choose(row(r->probs, i), E, row(r->gates, i), choice + i * K, K);
    memset(rows, 0xff, tensor_bytes(r->rows));
#pragma omp parallel for
    for (int64_t b = 0; b < B; b++) {
        real *tokens = row(r->load, b);
        memset(tokens, 0, E * sizeof *tokens);
        for (int64_t i = b * T * K; i < (b + 1) * T * K; i++) {
            const int64_t place = tokens[choice[i]]++;
            slot[i] = place < C ? (choice[i] * B + b) * C + place : -1;
            if (place < C)
                rows[slot[i]] = i / K;
        }
    }
}

/* Of a softmax p of logits, d_logits = p * (d_p - sum(p * d_p)). K > 1 gates are a softmax of the chosen logits. */
void route_backward_kernel(Tensor d_logits, Tensor d_gates, const Routing *r)
{
    const int64_t rows = tensor_rows(r->probs), T = r->probs.shape[1];
    const int64_t E = tensor_width(r->probs), K = tensor_width(r->gates);

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *p = row(r->probs, i), *gate = row(r->gates, i), *d_gate = row(d_gates, i);
        const real *load = row(r->load, i / T), factor = r->balance * E / (K * T);
        const int32_t *choice = ids(r->choice) + i * K;
        real *d = row(d_logits, i), sum = 0, gate_sum = 0;
        for (int64_t e = 0; e < E; e++)
            d[e] = factor * load[e];
        if (K == 1)
            d[choice[0]] += d_gate[0];
        for (int64_t e = 0; e < E; e++)
            sum += p[e] * d[e];
        for (int64_t e = 0; e < E; e++)
            d[e] = p[e] * (d[e] - sum);
        for (int64_t j = 0; j < K; j++)
            gate_sum += gate[j] * d_gate[j];
        for (int64_t j = 0; j < K && K > 1; j++)
            d[choice[j]] += gate[j] * (d_gate[j] - gate_sum);
    }
}

void balance_forward_kernel(Tensor loss, Tensor totals, Routing *r, double balance)
{
    const int64_t B = r->probs.shape[0], T = r->probs.shape[1], E = tensor_width(r->probs), K = tensor_width(r->gates);
    const int64_t C = tensor_width(r->rows);
    double total = 0;

    for (int64_t b = 0; b < B; b++)
        for (int64_t e = 0; e < E; e++) {
            const double load = row(r->load, b)[e];
            double sum = 0;
            for (int64_t t = 0; t < T; t++)
                sum += row(r->probs, b * T + t)[e];
            total += load * E / (K * T) * sum;
            row(totals, e)[0] += load;
            row(totals, e)[1] += load > C ? load - C : 0;
        }
    *(double *)loss.data += balance * total;
}

void combine_kernel(Tensor out, Tensor x, Tensor slots, Tensor gates, Tensor slot)
{
    const int64_t rows = tensor_rows(out), width = tensor_width(out), K = tensor_width(slot);

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *in = load(x, i * width, width, 0);
        real *o = staging(out, i * width, width, 1);
        if (o != in)
            memcpy(o, in, width * sizeof *o);
        for (int64_t j = i * K; j < (i + 1) * K; j++) {
            if (ids(slot)[j] < 0)
                continue;
            const real gate = gates.data ? row(gates, 0)[j] : 1, *from = load(slots, ids(slot)[j] * width, width, 2);
            for (int64_t h = 0; h < width; h++)
                o[h] += gate * from[h];
        }
        store(out, i * width, width, o);
    }
}

void combine_backward_kernel(Tensor d_slots, Tensor d_gates, Tensor d_out, Tensor slots, const Routing *r)
{
    const int64_t width = tensor_width(d_out), K = tensor_width(r->gates);

    memset(d_gates.data, 0, tensor_bytes(d_gates));             /* of dropped choices */
#pragma omp parallel for
    for (int64_t s = 0; s < tensor_rows(d_slots); s++) {
        const int64_t i = ids(r->rows)[s];
        real *d = staging(d_slots, s * width, width, 0), sum = 0;
        if (i < 0) {
            memset(d, 0, width * sizeof *d);
        } else {
            const real *d_o = load(d_out, i * width, width, 1), *in = load(slots, s * width, width, 2);
            int64_t j = i * K;
            while (ids(r->slot)[j] != s)
                j++;
            const real gate = row(r->gates, 0)[j];
#pragma omp simd reduction(+ : sum)
            for (int64_t h = 0; h < width; h++) {
                sum += d_o[h] * in[h];
                d[h] = gate * d_o[h];
            }
            row(d_gates, 0)[j] = sum;
        }
        store(d_slots, s * width, width, d);
    }
}
