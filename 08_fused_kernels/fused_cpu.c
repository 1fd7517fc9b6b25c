/* The fused operators on the CPU. What a GPU keeps in registers and shared memory stays in registers and caches here:
 * tiles and blocks of rows are small enough for that.
 */
#include <math.h>
#include <string.h>

#include "../common/cpu/kernel.h"
#include "fused.h"

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- FlashAttention ---- */

/* A tile: so many queries by so many keys. Its scores fit a core's second cache. Both are multiples of ROWS and LANES
 * below; heads are padded with rows of zeros to a multiple of QUERIES. */
enum { QUERIES = 64, KEYS = 256 };

/* c (m, n) = a (m, k) times b (k, n), or plus c, for operands that lie in the caches: BLAS would first copy them into
 * the order that it likes, which takes about as long as to multiply such small ones. ROWS by two vectors of c stay in
 * registers while k goes by; each number of a is multiplied with two vectors of b. Element (i, p) of a is at
 * i * a_row + p * a_col, so it may be transposed; rows of b and c are contiguous. m is a multiple of ROWS, n of
 * LANES. */
typedef real Vector __attribute__((vector_size(__BIGGEST_ALIGNMENT__), aligned(sizeof(real)), may_alias));
enum { ROWS = sizeof(Vector) == 64 ? 8 : 4, LANES = sizeof(Vector) / sizeof(real) };  /* AVX-512 has 32 registers */

static inline __attribute__((always_inline)) void multiply_block(const int vectors, int64_t k, const real *a,
                                                                 int64_t a_row, int64_t a_col, const real *b,
                                                                 int64_t ld_b, real *c, int64_t ld_c, bool add)
{
    Vector sum[ROWS][2] = {{{0}}};

    for (int64_t p = 0; p < k; p++)
        for (int r = 0; r < ROWS; r++)
            for (int v = 0; v < vectors; v++)
                sum[r][v] += a[r * a_row + p * a_col] * *(const Vector *)(b + p * ld_b + v * LANES);
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < vectors; v++) {
            Vector *to = (Vector *)(c + r * ld_c + v * LANES);
            if (add)
                sum[r][v] += *to;
            *to = sum[r][v];
        }
}

static void multiply(int64_t m, int64_t n, int64_t k, const real *a, int64_t a_row, int64_t a_col, const real *b,
                     int64_t ld_b, real *c, int64_t ld_c, bool add)
{
    int64_t j = 0;

    for (; j + 2 * LANES <= n; j += 2 * LANES)
        for (int64_t i = 0; i < m; i += ROWS)
            multiply_block(2, k, a + i * a_row, a_row, a_col, b + j, ld_b, c + i * ld_c + j, ld_c, add);
    for (; j < n; j += LANES)
        for (int64_t i = 0; i < m; i += ROWS)
            multiply_block(1, k, a + i * a_row, a_row, a_col, b + j, ld_b, c + i * ld_c + j, ld_c, add);
}

static int64_t padded(int64_t count, int64_t multiple)
{
    return (count + multiple - 1) / multiple * multiple;
}

/* One head's D columns of a tensor, from element `at` on, as rows of `width` reals, the rest zeros; transposed too, as
 * D rows of `rows` reals. to or transposed may be NULL. */
static void load_columns(real *to, int64_t width, real *transposed, int64_t rows, Tensor t, int64_t at, int64_t ld,
                         int64_t T, int64_t D, real factor)
{
    if (to)
        memset(to, 0, rows * width * sizeof *to);
    if (transposed)
        memset(transposed, 0, D * rows * sizeof *transposed);
    for (int64_t first = 0; first < T; first += 16) {           /* a column's 16 numbers fill a cache line */
        const int64_t n = least(16, T - first);
        real *some = scratch(4, 16 * D);
        for (int64_t i = 0; i < n; i++) {
            const real *from = load(t, at + (first + i) * ld, D, 0);
            for (int64_t d = 0; d < D; d++)
                some[i * D + d] = factor * from[d];
            if (to)
                memcpy(to + (first + i) * width, some + i * D, D * sizeof *to);
        }
        for (int64_t d = 0; transposed && d < D; d++)
            for (int64_t i = 0; i < n; i++)
                transposed[d * rows + first + i] = some[i * D + d];
    }
}

/* The softmax of a row whose scores come tile by tile (Milakov & Gimelshein 2018): its largest score so far, and the
 * sum of exp(score - largest). What was summed up under a smaller largest score is multiplied with exp of the
 * difference. */
static void softmax_tile(real *scores, int64_t seen, int64_t keys, real *max, real *sum, real *out, int64_t width)
{
    real most = *max, s = 0;

#pragma omp simd reduction(max : most)
    for (int64_t j = 0; j < seen; j++)
        most = scores[j] > most ? scores[j] : most;
#pragma omp simd reduction(+ : s)
    for (int64_t j = 0; j < seen; j++) {
        scores[j] = real_exp(scores[j] - most);
        s += scores[j];
    }
    for (int64_t j = seen; j < keys; j++)
        scores[j] = 0;
    if (most > *max) {
        const real shrink = real_exp(*max - most);      /* -Inf at the first tile: 0 */
        for (int64_t d = 0; d < width; d++)
            out[d] *= shrink;
        *sum *= shrink;
        *max = most;
    }
    *sum += s;
}

/* How many of a tile's keys, from `key` on, a query sees. */
static int64_t seen_by(int64_t query, int64_t key, int64_t keys)
{
    return query < key ? 0 : least(keys, query - key + 1);
}

void flash_attention_forward_kernel(Tensor out, Tensor lse, Tensor qkv)
{
    const int64_t B = qkv.shape[0], T = qkv.shape[1], A = lse.shape[1], D = tensor_width(out) / A;
    const int64_t rows = padded(T, QUERIES), width = padded(D, LANES);

#pragma omp parallel for collapse(2)
    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < A; a++) {
            const int64_t head = (b * T * A + a) * 3 * D, ld = 3 * A * D;
            real *q = scratch(1, 2 * rows * width + D * rows), *v = q + rows * width, *k_transposed = v + rows * width;
            real *o = scratch(2, QUERIES * (width + KEYS)), *scores = o + QUERIES * width,
                 *log_sum = row(lse, b * A + a);
            load_columns(q, width, NULL, rows, qkv, head, ld, T, D, 1 / (real)sqrt(D));
            load_columns(NULL, 0, k_transposed, rows, qkv, head + D, ld, T, D, 1);
            load_columns(v, width, NULL, rows, qkv, head + 2 * D, ld, T, D, 1);
            for (int64_t first = 0; first < T; first += QUERIES) {
                const int64_t n = least(QUERIES, T - first), end = padded(first + n, QUERIES);
                real max[QUERIES], sum[QUERIES] = {0};
                for (int64_t i = 0; i < n; i++)
                    max[i] = -INFINITY;
                memset(o, 0, QUERIES * width * sizeof *o);
                for (int64_t key = 0; key < end; key += KEYS) {         /* tiles behind the diagonal are empty */
                    const int64_t keys = least(KEYS, end - key);
                    multiply(QUERIES, keys, D, q + first * width, width, 1, k_transposed + key, rows, scores, KEYS,
                             false);
                    for (int64_t i = 0; i < QUERIES; i++) {
                        const int64_t seen = i < n ? seen_by(first + i, key, keys) : 0;
                        if (seen)
                            softmax_tile(scores + i * KEYS, seen, keys, &max[i], &sum[i], o + i * width, width);
                        else
                            memset(scores + i * KEYS, 0, keys * sizeof *scores);
                    }
                    multiply(QUERIES, width, keys, scores, KEYS, 1, v + key * width, width, o, width, true);
                }
                for (int64_t i = 0; i < n; i++) {
                    const int64_t at = (b * T + first + i) * A * D + a * D;
                    real *to = room(out, at, D, 3);
                    for (int64_t d = 0; d < D; d++)
                        to[d] = o[i * width + d] / sum[i];
                    store(out, at, D, to);
                    log_sum[first + i] = max[i] + (real)log(sum[i]);
                }
            }
        }
}

/* P = exp(S - lse), dV = P^T dO, dP = dO V^T, dS = P * (dP - dots) / sqrt(D), dQ = dS K, dK = dS^T Q. */
void flash_attention_backward_kernel(Tensor d_qkv, Tensor dots, Tensor d_out, Tensor qkv, Tensor out, Tensor lse)
{
    const int64_t B = qkv.shape[0], T = qkv.shape[1], A = lse.shape[1], D = tensor_width(out) / A;
    const int64_t rows = padded(T, QUERIES), width = padded(D, LANES);
    const real scale = 1 / (real)sqrt(D);

#pragma omp parallel for collapse(2)
    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < A; a++) {
            const int64_t head = (b * T * A + a) * 3 * D, ld = 3 * A * D, to = (b * T * A + a) * D, size = rows * width;
            real *q = scratch(1, 6 * size + 2 * D * rows), *k = q + size, *d_o = k + size, *d_q = d_o + size;
            real *d_k = d_q + size, *d_v = d_k + size, *k_transposed = d_v + size,
                 *v_transposed = k_transposed + D * rows;
            real *p = scratch(2, 2 * QUERIES * KEYS), *d_p = p + QUERIES * KEYS;
            real *dot = row(dots, b * A + a), *log_sum = row(lse, b * A + a);
            load_columns(q, width, NULL, rows, qkv, head, ld, T, D, 1);
            load_columns(k, width, k_transposed, rows, qkv, head + D, ld, T, D, 1);
            load_columns(NULL, 0, v_transposed, rows, qkv, head + 2 * D, ld, T, D, 1);
            load_columns(d_o, width, NULL, rows, d_out, to, A * D, T, D, 1);
            memset(d_q, 0, 3 * size * sizeof *d_q);
            for (int64_t i = 0; i < T; i++) {
                const real *o = load(out, to + i * A * D, D, 0);
                real sum = 0;
#pragma omp simd reduction(+ : sum)
                for (int64_t d = 0; d < D; d++)
                    sum += d_o[i * width + d] * o[d];
                dot[i] = sum;
            }
            for (int64_t first = 0; first < T; first += QUERIES) {
                const int64_t n = least(QUERIES, T - first), end = padded(first + n, QUERIES);
                for (int64_t key = 0; key < end; key += KEYS) {
                    const int64_t keys = least(KEYS, end - key);
                    multiply(QUERIES, keys, D, q + first * width, width, 1, k_transposed + key, rows, p, KEYS, false);
                    multiply(QUERIES, keys, D, d_o + first * width, width, 1, v_transposed + key, rows, d_p, KEYS,
                             false);
                    for (int64_t i = 0; i < QUERIES; i++) {
                        const int64_t seen = i < n ? seen_by(first + i, key, keys) : 0;
                        const real l = i < n ? log_sum[first + i] : 0, t = i < n ? dot[first + i] : 0;
                        real *p_row = p + i * KEYS, *d_row = d_p + i * KEYS;
#pragma omp simd
                        for (int64_t j = 0; j < seen; j++) {
                            p_row[j] = real_exp(scale * p_row[j] - l);
                            d_row[j] = scale * p_row[j] * (d_row[j] - t);
                        }
                        for (int64_t j = seen; j < keys; j++)
                            p_row[j] = d_row[j] = 0;
                    }
                    multiply(QUERIES, width, keys, d_p, KEYS, 1, k + key * width, width, d_q + first * width, width,
                             true);
                    multiply(keys, width, QUERIES, d_p, 1, KEYS, q + first * width, width, d_k + key * width, width,
                             true);
                    multiply(keys, width, QUERIES, p, 1, KEYS, d_o + first * width, width, d_v + key * width, width,
                             true);
                }
            }
            for (int64_t i = 0; i < T; i++) {
                real *to_row = room(d_qkv, head + i * ld, 3 * D, 3);
                memcpy(to_row, d_q + i * width, D * sizeof *to_row);
                memcpy(to_row + D, d_k + i * width, D * sizeof *to_row);
                memcpy(to_row + 2 * D, d_v + i * width, D * sizeof *to_row);
                store(d_qkv, head + i * ld, 3 * D, to_row);
            }
        }
}

/* ---- FlashAttention of a chunk of queries and a chunk of keys ---- */

static int64_t seen_of(bool causal, int64_t query, int64_t key, int64_t keys, int64_t K)
{
    return causal ? seen_by(query, key, keys) : least(keys, K > key ? K - key : 0);
}

/* What other keys gave has the largest score lse, and their sum under it is 1. */
void flash_block_forward_kernel(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, bool causal)
{
    const int64_t B = q.shape[0], C = q.shape[1], A = q.shape[2], D = q.shape[3], K = k.shape[1], ld = A * D;
    const int64_t rows = padded(C, QUERIES), key_rows = padded(K, QUERIES), width = padded(D, LANES);

#pragma omp parallel for collapse(2)
    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < A; a++) {
            real *queries = scratch(1, (rows + key_rows) * width + D * key_rows), *values = queries + rows * width,
                 *k_transposed = values + key_rows * width;
            real *o = scratch(2, QUERIES * (width + KEYS)), *scores = o + QUERIES * width;
            load_columns(queries, width, NULL, rows, q, (b * C * A + a) * D, ld, C, D, 1 / (real)sqrt(D));
            load_columns(NULL, 0, k_transposed, key_rows, k, (b * K * A + a) * D, ld, K, D, 1);
            load_columns(values, width, NULL, key_rows, v, (b * K * A + a) * D, ld, K, D, 1);
            for (int64_t first = 0; first < C; first += QUERIES) {
                const int64_t n = least(QUERIES, C - first), end = causal ? padded(first + n, QUERIES) : key_rows;
                real max[QUERIES], sum[QUERIES], *to = (real *)out.data + ((b * C + first) * A + a) * D;
                real *log_sum = (real *)lse.data + (b * C + first) * A + a;
                memset(o, 0, QUERIES * width * sizeof *o);
                for (int64_t i = 0; i < n; i++) {
                    max[i] = log_sum[i * A], sum[i] = 1;
                    memcpy(o + i * width, to + i * ld, D * sizeof *o);
                }
                for (int64_t key = 0; key < end; key += KEYS) {
                    const int64_t keys = least(KEYS, end - key);
                    multiply(QUERIES, keys, D, queries + first * width, width, 1, k_transposed + key, key_rows, scores,
                             KEYS, false);
                    for (int64_t i = 0; i < QUERIES; i++) {
                        const int64_t seen = i < n ? seen_of(causal, first + i, key, keys, K) : 0;
                        if (seen)
                            softmax_tile(scores + i * KEYS, seen, keys, &max[i], &sum[i], o + i * width, width);
                        else
                            memset(scores + i * KEYS, 0, keys * sizeof *scores);
                    }
                    multiply(QUERIES, width, keys, scores, KEYS, 1, values + key * width, width, o, width, true);
                }
                for (int64_t i = 0; i < n; i++) {
                    for (int64_t d = 0; d < D; d++)
                        to[i * ld + d] = o[i * width + d] / sum[i];
                    log_sum[i * A] = max[i] + (real)log(sum[i]);
                }
            }
        }
}

static void add_rows(Tensor to, int64_t at, int64_t ld, const real *from, int64_t width, int64_t rows, int64_t D)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t d = 0; d < D; d++)
            ((real *)to.data)[at + i * ld + d] += from[i * width + d];
}

void flash_block_backward_kernel(Tensor d_q, Tensor d_k, Tensor d_v, Tensor d_out, Tensor q, Tensor k, Tensor v,
                                 Tensor lse, Tensor dots, bool causal)
{
    const int64_t B = q.shape[0], C = q.shape[1], A = q.shape[2], D = q.shape[3], K = k.shape[1], ld = A * D;
    const int64_t rows = padded(C, QUERIES), key_rows = padded(K, QUERIES), width = padded(D, LANES);
    const real scale = 1 / (real)sqrt(D);

#pragma omp parallel for collapse(2)
    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < A; a++) {
            const int64_t at_q = (b * C * A + a) * D, at_k = (b * K * A + a) * D, size = rows * width,
                          key_size = key_rows * width;
            real *q_ = scratch(1, 3 * size + 3 * key_size + 2 * D * key_rows), *d_o = q_ + size, *dq = d_o + size;
            real *k_ = dq + size, *dk = k_ + key_size, *dv = dk + key_size, *k_transposed = dv + key_size,
                 *v_transposed = k_transposed + D * key_rows;
            real *p = scratch(2, 2 * QUERIES * KEYS), *d_p = p + QUERIES * KEYS;
            load_columns(q_, width, NULL, rows, q, at_q, ld, C, D, 1);
            load_columns(d_o, width, NULL, rows, d_out, at_q, ld, C, D, 1);
            load_columns(k_, width, k_transposed, key_rows, k, at_k, ld, K, D, 1);
            load_columns(NULL, 0, v_transposed, key_rows, v, at_k, ld, K, D, 1);
            memset(dq, 0, size * sizeof *dq);
            memset(dk, 0, 2 * key_size * sizeof *dk);
            for (int64_t first = 0; first < C; first += QUERIES) {
                const int64_t n = least(QUERIES, C - first), end = causal ? padded(first + n, QUERIES) : key_rows;
                const real *log_sum = (real *)lse.data + (b * C + first) * A + a;
                const real *dot = (real *)dots.data + (b * C + first) * A + a;
                for (int64_t key = 0; key < end; key += KEYS) {
                    const int64_t keys = least(KEYS, end - key);
                    multiply(QUERIES, keys, D, q_ + first * width, width, 1, k_transposed + key, key_rows, p, KEYS,
                             false);
                    multiply(QUERIES, keys, D, d_o + first * width, width, 1, v_transposed + key, key_rows, d_p, KEYS,
                             false);
                    for (int64_t i = 0; i < QUERIES; i++) {
                        const int64_t seen = i < n ? seen_of(causal, first + i, key, keys, K) : 0;
                        const real l = i < n ? log_sum[i * A] : 0, t = i < n ? dot[i * A] : 0;
                        real *p_row = p + i * KEYS, *d_row = d_p + i * KEYS;
#pragma omp simd
                        for (int64_t j = 0; j < seen; j++) {
                            p_row[j] = real_exp(scale * p_row[j] - l);
                            d_row[j] = scale * p_row[j] * (d_row[j] - t);
                        }
                        for (int64_t j = seen; j < keys; j++)
                            p_row[j] = d_row[j] = 0;
                    }
                    multiply(QUERIES, width, keys, d_p, KEYS, 1, k_ + key * width, width, dq + first * width, width,
                             true);
                    multiply(keys, width, QUERIES, d_p, 1, KEYS, q_ + first * width, width, dk + key * width, width,
                             true);
                    multiply(keys, width, QUERIES, p, 1, KEYS, d_o + first * width, width, dv + key * width, width,
                             true);
                }
            }
            add_rows(d_q, at_q, ld, dq, width, C, D);
            add_rows(d_k, at_k, ld, dk, width, K, D);
            add_rows(d_v, at_k, ld, dv, width, K, D);
        }
}

/* ---- residual and LayerNorm ---- */

void residual_layernorm_forward_kernel(Tensor sum, Tensor out, Tensor stats, Tensor x, Tensor branch,
                                       Tensor branch_bias, Tensor weight, Tensor bias)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x);
    real *vectors = scratch(4, 3 * width), *add = vectors, *w = add + width, *b = w + width;

    memcpy(add, load(branch_bias, 0, width, 0), width * sizeof *add);
    memcpy(w, load(weight, 0, width, 0), width * sizeof *w);
    memcpy(b, load(bias, 0, width, 0), width * sizeof *b);
#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *in = load(x, i * width, width, 0), *br = load(branch, i * width, width, 1);
        real *s = room(sum, i * width, width, 2), *o = room(out, i * width, width, 3), squares = 0;
        double total = 0;                       /* a mean that is off by little counts where all numbers are alike */
#pragma omp simd reduction(+ : total)
        for (int64_t j = 0; j < width; j++) {
            s[j] = in[j] + br[j] + add[j];
            total += s[j];
        }
        const real mean = total / width;
#pragma omp simd reduction(+ : squares)
        for (int64_t j = 0; j < width; j++)
            squares += (s[j] - mean) * (s[j] - mean);
        const real inverse = 1 / (real)sqrt(squares / width + (real)1e-5);
        for (int64_t j = 0; j < width; j++)
            o[j] = (s[j] - mean) * inverse * w[j] + b[j];
        store(sum, i * width, width, s);
        store(out, i * width, width, o);
        row(stats, i)[0] = mean;
        row(stats, i)[1] = inverse;
    }
}

/* Rows go in a fixed number of parts, each with sums of its own for the vectors' gradients, which are added up in
 * order: so that every row is read once, and the sums don't depend on the number of threads. */
void residual_layernorm_backward_kernel(Tensor d_sum, Tensor d_branch_bias, Tensor d_weight, Tensor d_bias,
                                        Tensor d_out, Tensor sum, Tensor stats, Tensor weight)
{
    enum { PARTS = 16 };
    const int64_t rows = tensor_rows(sum), width = tensor_width(sum);
    real *sums = scratch(4, (3 * PARTS + 1) * width), *w = sums + 3 * PARTS * width;
    Tensor *const to[] = {&d_weight, &d_bias, &d_branch_bias};

    memset(sums, 0, 3 * PARTS * width * sizeof *sums);
    memcpy(w, load(weight, 0, width, 0), width * sizeof *w);
#pragma omp parallel for
    for (int part = 0; part < PARTS; part++) {
        const Range r = range_part(rows, part, PARTS);
        real *d_w = sums + 3 * part * width, *d_b = d_w + width, *d_branch = d_b + width;
        for (int64_t i = r.first; i < r.first + r.count; i++) {
            const real *in = load(sum, i * width, width, 0), *d_o = load(d_out, i * width, width, 1);
            const real mean = row(stats, i)[0], inverse = row(stats, i)[1];
            real *d_in = update(d_sum, i * width, width, 2), total = 0, total_n = 0;
#pragma omp simd reduction(+ : total, total_n)
            for (int64_t j = 0; j < width; j++) {
                total += d_o[j] * w[j];
                total_n += d_o[j] * w[j] * (in[j] - mean) * inverse;
            }
#pragma omp simd
            for (int64_t j = 0; j < width; j++) {
                const real n = (in[j] - mean) * inverse;
                d_in[j] += inverse * (d_o[j] * w[j] - total / width - n * (total_n / width));
                d_w[j] += d_o[j] * n;
                d_b[j] += d_o[j];
                d_branch[j] += d_in[j];
            }
            store(d_sum, i * width, width, d_in);
        }
    }
    for (int k = 0; k < 3; k++) {
        real *d = update(*to[k], 0, width, 0);
        for (int part = 0; part < PARTS; part++)
            for (int64_t j = 0; j < width; j++)
                d[j] += sums[(3 * part + k) * width + j];
        store(*to[k], 0, width, d);
    }
}

/* ---- linear and GELU ---- */

const char *linear_gelu_unfused(DType dtype)
{
    (void)dtype;
    return NULL;
}

void linear_gelu_forward_kernel(Tensor out, Tensor up, Tensor x, Tensor weight, Tensor bias)
{
    const int64_t rows = tensor_rows(x), k = tensor_width(x), m = tensor_width(out);
    int64_t ld_x = k, ld_w = k, ld = m;
    const real *in = load_matrix(x, 0, rows, k, &ld_x, 0), *w = load_matrix(weight, 0, m, k, &ld_w, 1);
    const real *b = load(bias, 0, m, 2);
    real *u = room_for_matrix(up, 0, rows, m, &ld, 3);

    matmul(false, true, rows, m, k, 1, in, ld_x, w, ld_w, 0, u, ld);
#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        real *o = room(out, i * m, m, 4), *u_row = u + i * ld;
        for (int64_t j = 0; j < m; j++) {
            u_row[j] += b[j];
            o[j] = gelu(u_row[j]);
        }
        store(up, i * m, m, u_row);
        store(out, i * m, m, o);
    }
}

void linear_gelu_backward_kernel(Tensor d_up, Tensor d_out, Tensor weight, Tensor up)
{
    const int64_t rows = tensor_rows(up), n = tensor_width(d_out), m = tensor_width(up);
    int64_t ld_o = n, ld_w = m, ld = m;
    const real *d_o = load_matrix(d_out, 0, rows, n, &ld_o, 0), *w = load_matrix(weight, 0, n, m, &ld_w, 1);
    real *d_u = room_for_matrix(d_up, 0, rows, m, &ld, 3);

    matmul(false, false, rows, m, n, 1, d_o, ld_o, w, ld_w, 0, d_u, ld);
#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *in = load(up, i * m, m, 4);
        real *d = d_u + i * ld;
        for (int64_t j = 0; j < m; j++)
            d[j] *= gelu_slope(in[j]);
        store(d_up, i * m, m, d);
    }
}

/* ---- cross-entropy ---- */

/* exp is computed once: it gives the sum, and divided by it the gradient. */
void cross_entropy_both_kernel(Tensor loss, Tensor logits, Tensor targets, double scale, double gradient_scale)
{
    const int64_t rows = tensor_rows(logits), width = tensor_width(logits);
    const int32_t *ids = targets.data;
    real *losses = scratch(4, rows);

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *in = load(logits, i * width, width, 0);
        real *d = room(logits, i * width, width, 1), max = in[0], sum = 0;
        const real target = ids[i] < 0 ? 0 : in[ids[i]];
#pragma omp simd reduction(max : max)
        for (int64_t j = 0; j < width; j++)
            max = in[j] > max ? in[j] : max;
#pragma omp simd reduction(+ : sum)                     /* though d may be the row itself */
        for (int64_t j = 0; j < width; j++) {
            d[j] = real_exp(in[j] - max);
            sum += d[j];
        }
        const real share = (real)gradient_scale / sum;
        for (int64_t j = 0; j < width; j++)
            d[j] *= share;
        if (ids[i] >= 0)
            d[ids[i]] -= (real)gradient_scale;
        store(logits, i * width, width, d);
        losses[i] = max - target + (real)log(sum);      /* in this order: max and target may be large and alike */
    }
    double total = 0;
    for (int64_t i = 0; i < rows; i++)
        total += losses[i];
    *(double *)loss.data += scale * total;
}
