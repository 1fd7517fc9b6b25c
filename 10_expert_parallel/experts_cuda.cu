/* The kernels of mixtures of experts. A token's row is gathered from its slots, and a slot's row from its token, so no
 * two threads add to one element. */
#include "../common/transformer/cuda/kernel_cuda.cuh"
extern "C" {
#include "experts.h"
}

static const dim3 WARP_ROWS(WARP, WARPS);

/* ---- the router ---- */

/* Softmax of each token's logits, in place; its K largest probabilities, of equal ones the first; their gates. A warp
 * per token. If some are NaN, choices are still K different experts. */
__global__ void choose_rows(float *probs, float *gates, int32_t *choices, int64_t rows, int64_t E, int64_t K)
{
    EACH_WARP_ROW(i, rows) {
        float *p = probs + i * E, *gate = gates + i * K, max = -INFINITY, sum = 0, chosen = 0;
        int32_t *choice = choices + i * K;
        EACH_COLUMN(e, 1, E)
            max = fmaxf(max, p[e]);
        max = warp_max(max);
        EACH_COLUMN(e, 1, E)
            sum += p[e] = expf(p[e] - max);
        sum = warp_sum(sum);
        EACH_COLUMN(e, 1, E)
            p[e] /= sum;
        for (int64_t k = 0; k < K; k++) {
            int best = -1;                      /* first of the lane's experts, then of all */
            EACH_COLUMN(e, 1, E) {
                bool taken = false;
                for (int64_t j = 0; j < k; j++)
                    taken |= choice[j] == e;
                if (!taken && (best < 0 || p[e] > p[best]))
                    best = e;
            }
            float most = best < 0 ? 0 : p[best];
            for (int apart = WARP / 2; apart; apart /= 2) {
                const int other = __shfl_xor_sync(~0u, best, apart);
                const float its = __shfl_xor_sync(~0u, most, apart);
                if (other >= 0 && (best < 0 || its > most || (its == most && other < best)))
                    best = other, most = its;
            }
            most = __shfl_sync(~0u, most, 0);
            if (threadIdx.x == 0)
                choice[k] = best, gate[k] = most;
            chosen += most;
            __syncwarp();                       /* the next round reads choice */
        }
        EACH_COLUMN(k, 1, K)
            gate[k] /= K > 1 ? chosen : 1;
    }
}

/* A warp per expert and sequence finds the sequence's choices of this expert, in order. */
__global__ void fill_slots(int32_t *slot, int32_t *rows, float *load, const int32_t *choice, int64_t B, int64_t T,
                           int64_t E, int64_t K, int64_t C)
{
    EACH_WARP_ROW(i, E * B) {
        const int64_t e = i / B, b = i % B;
        int64_t count = 0;
        for (int64_t first = 0; first < T * K; first += WARP) {
            const int64_t n = first + threadIdx.x, at = b * T * K + n;
            const bool ours = n < T * K && choice[at] == e;
            const unsigned lanes = __ballot_sync(~0u, ours);
            const int64_t place = count + __popc(lanes & ((1u << threadIdx.x) - 1));
            if (ours)
                slot[at] = place < C ? i * C + place : -1;
            if (ours && place < C)
                rows[i * C + place] = at / K;
            count += __popc(lanes);
        }
        for (int64_t place = count + threadIdx.x; place < C; place += WARP)
            rows[i * C + place] = -1;
        if (threadIdx.x == 0)
            load[b * E + e] = count;
    }
}

void route_forward_kernel(const Routing *r)
{
    const int64_t B = r->probs.shape[0], T = r->probs.shape[1], E = tensor_width(r->probs), K = tensor_width(r->gates);

    LAUNCH(choose_rows, row_blocks(B * T, WARPS), WARP_ROWS, r->probs, r->gates, r->choice, B * T, E, K);
    LAUNCH(fill_slots, row_blocks(E * B, WARPS), WARP_ROWS, r->slot, r->rows, r->load, r->choice, B, T, E, K,
           tensor_width(r->rows));
}

/* Of a softmax p of logits, d_logits = p * (d_p - sum(p * d_p)). K > 1 gates are a softmax of the chosen logits. */
__global__ void route_backward_rows(float *d_logits, const float *d_gates, const float *probs, const float *gates,
                                    const int32_t *choices, const float *loads, float balance, int64_t rows, int64_t T,
                                    int64_t E, int64_t K)
{
    EACH_WARP_ROW(i, rows) {
        const float *p = probs + i * E, *gate = gates + i * K, *d_gate = d_gates + i * K, *load = loads + i / T * E;
        const int32_t *choice = choices + i * K;
        float sum = 0, gate_sum = 0;
        EACH_COLUMN(e, 1, E)
            sum += p[e] * (balance * load[e] + (K == 1 && choice[0] == e ? d_gate[0] : 0));
        EACH_COLUMN(k, 1, K)
            gate_sum += gate[k] * d_gate[k];
        sum = warp_sum(sum);
        gate_sum = warp_sum(gate_sum);
        EACH_COLUMN(e, 1, E) {
            float d = p[e] * (balance * load[e] + (K == 1 && choice[0] == e ? d_gate[0] : 0) - sum);
            for (int64_t k = 0; k < K && K > 1; k++)
                if (choice[k] == e)
                    d += gate[k] * (d_gate[k] - gate_sum);
            d_logits[i * E + e] = d;
        }
    }
}

void route_backward_kernel(Tensor d_logits, Tensor d_gates, const Routing *r)
{
    const int64_t rows = tensor_rows(r->probs), T = r->probs.shape[1];
    const int64_t E = tensor_width(r->probs), K = tensor_width(r->gates);

    LAUNCH(route_backward_rows, row_blocks(rows, WARPS), WARP_ROWS, d_logits, d_gates, r->probs, r->gates, r->choice,
           r->load, r->balance * E / (K * T), rows, T, E, K);
}

/* ---- the balance loss ---- */

__global__ void balance_parts(double *part, const float *probs, const float *load, int64_t B, int64_t T, int64_t E)
{
    EACH_WARP_ROW(i, B * E) {
        const int64_t b = i / E, e = i % E;
        double sum = 0;
        EACH_COLUMN(t, 1, T)
            sum += probs[(b * T + t) * E + e];
        sum = warp_sum(sum);
        if (threadIdx.x == 0)
            part[i] = load[i] * sum;
    }
}

__global__ void balance_total(double *loss, float *totals, const double *part, const float *load, double factor,
                              int64_t B, int64_t E, int64_t C)
{
    double sum = 0;

    EACH_COLUMN(i, 1, B * E)
        sum += part[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *loss += factor * sum;
    EACH_COLUMN(e, 1, E)
        for (int64_t b = 0; b < B; b++) {
            totals[2 * e] += load[b * E + e];
            totals[2 * e + 1] += fmaxf(load[b * E + e] - C, 0);
        }
}

void balance_forward_kernel(Tensor loss, Tensor totals, Routing *r, double balance)
{
    const int64_t B = r->probs.shape[0], T = r->probs.shape[1], E = tensor_width(r->probs), K = tensor_width(r->gates);
    const int64_t bytes = B * E * sizeof(double);
    double *part = (double *)device_scratch(bytes);

    LAUNCH(balance_parts, row_blocks(B * E, WARPS), WARP_ROWS, part, r->probs, r->load, B, T, E);
    LAUNCH(balance_total, 1, MOST_THREADS, loss, totals, part, r->load, balance * E / (K * T), B, E,
           tensor_width(r->rows));
    device_free(part, bytes);
}

/* ---- rows to slots, and back: embedding_forward fills slots ---- */

template <typename T, int N>
__global__ void combine_rows(T *out, const T *x, const T *slots, const float *gates, const int32_t *slot, int64_t K,
                             int64_t rows, int64_t width)
{
    EACH_ROW(i, rows)
        EACH_COLUMN(j, N, width) {
            float sum[N], v[N];
            load(sum, x + i * width + j, N);
            for (int64_t at = i * K; at < (i + 1) * K; at++) {
                if (slot[at] < 0)
                    continue;
                load(v, slots + slot[at] * width + j, N);
                for (int k = 0; k < N; k++)
                    sum[k] += (gates ? gates[at] : 1) * v[k];
            }
            store(out + i * width + j, sum, N);
        }
}

void combine_kernel(Tensor out, Tensor x, Tensor slots, Tensor gates, Tensor slot)
{
    FOR_TYPE(out.dtype, T, PACKED(rows_aligned(out, x, slots), T, N,
        LAUNCH_ROWS(out, N, combine_rows<T, N>, out, x, slots, gates, slot, tensor_width(slot))));
}

/* A warp per slot. */
template <typename T, int N>
__global__ void combine_backward_slots(T *d_slots, float *d_gates, const T *d_out, const T *slots, const float *gates,
                                       const int32_t *slot, const int32_t *rows, int64_t count, int64_t width,
                                       int64_t K)
{
    EACH_WARP_ROW(s, count) {
        const int64_t i = rows[s];
        int64_t at = i * K;
        float dot = 0;
        while (i >= 0 && slot[at] != s)
            at++;
        EACH_COLUMN(j, N, width) {
            float d[N] = {0}, v[N];
            if (i >= 0) {
                load(d, d_out + i * width + j, N);
                load(v, slots + s * width + j, N);
                for (int k = 0; k < N; k++) {
                    dot += d[k] * v[k];
                    d[k] *= gates[at];
                }
            }
            store(d_slots + s * width + j, d, N);
        }
        dot = warp_sum(dot);
        if (i >= 0 && threadIdx.x == 0)
            d_gates[at] = dot;
    }
}

void combine_backward_kernel(Tensor d_slots, Tensor d_gates, Tensor d_out, Tensor slots, const Routing *r)
{
    const int64_t count = tensor_rows(slots), width = tensor_width(slots);

    device_zero(d_gates.data, tensor_bytes(d_gates));           /* of dropped choices */
    FOR_TYPE(slots.dtype, T, PACKED(rows_aligned(d_slots, d_out, slots), T, N,
        LAUNCH(combine_backward_slots<T, N>, row_blocks(count, WARPS), WARP_ROWS, d_slots, d_gates, d_out, slots,
               r->gates, r->slot, r->rows, count, width, tensor_width(r->gates))));
}
