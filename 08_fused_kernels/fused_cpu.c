/* The fused operators on the CPU. Tiles are small enough that what a GPU keeps in registers and shared memory stays in
 * registers and caches. */
#include <math.h>
#include <string.h>

#include "../common/transformer/cpu/kernel_cpu.h"
#include "../common/base/device.h"
#include "../common/base/error.h"
#include "fused.h"

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- FlashAttention ---- */

/* A tile has QUERIES by KEYS scores, which fit a core's L2 cache. Both are multiples of ROWS and LANES below. Heads are
 * padded with rows of zeros to a multiple of QUERIES. */
enum { QUERIES = 64, KEYS = 256 };

/* c (m, n) = a (m, k) times b (k, n); with add, plus c. For small operands in the caches: BLAS would first pack them,
 * which takes about as long as multiplying them. ROWS by two vectors of c stay in registers over all of k; each element
 * of a is multiplied by two vectors of b. Element (i, p) of a is at i * a_row + p * a_col, so a may be transposed; rows
 * of b and c are contiguous. m is a multiple of ROWS, n of LANES. */
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

/* Loads the D columns of one head, from element `at` of t on, times factor. to: `rows` rows of `width` reals, padded
 * with zeros; transposed: D rows of `rows` reals. Either may be NULL. */
static void load_columns(real *to, int64_t width, real *transposed, int64_t rows, Tensor t, int64_t at, int64_t ld,
                         int64_t T, int64_t D, real factor)
{
    if (to)
        memset(to, 0, rows * width * sizeof *to);
    if (transposed)
        memset(transposed, 0, D * rows * sizeof *transposed);
    for (int64_t first = 0; first < T; first += 16) {           /* 16 elements of a column fill a cache line */
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

/* Adds a tile to the online softmax of one query (Milakov & Gimelshein 2018). max: its largest score so far; sum: of
 * exp(score - max); out (width): the values weighted by these. If the tile raises max, sum and out are rescaled by
 * exp(old max - new max). Turns scores into exp(score - max), and those of keys from `seen` on into 0. */
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
        const real shrink = real_exp(*max - most);      /* 0 at the first tile, where max is -Inf */
        for (int64_t d = 0; d < width; d++)
            out[d] *= shrink;
        *sum *= shrink;
        *max = most;
    }
    *sum += s;
}

/* One head in scratch memory: queries, keys and values as rows of `width`, and k and v also transposed, as D rows of
 * `key_rows`. */
typedef struct {
    int64_t queries, keys, D, width, rows, key_rows;            /* rows, key_rows: padded */
    bool causal;                                                /* query i sees keys 0 to i; otherwise all keys */
    real *q, *k, *v, *k_transposed, *v_transposed;
    real *d_out, *d_q, *d_k, *d_v;
} Head;

static Head head_of(int64_t queries, int64_t keys, int64_t D, bool causal)
{
    return (Head){.queries = queries, .keys = keys, .D = D, .width = padded(D, LANES), .causal = causal,
                  .rows = padded(queries, QUERIES), .key_rows = padded(keys, QUERIES)};
}

static void load_forward(Head *h, Tensor q, int64_t at_q, Tensor k, int64_t at_k, Tensor v, int64_t at_v, int64_t ld)
{
    h->q = scratch(1, (h->rows + h->key_rows) * h->width + h->D * h->key_rows);
    h->v = h->q + h->rows * h->width, h->k_transposed = h->v + h->key_rows * h->width;
    load_columns(h->q, h->width, NULL, h->rows, q, at_q, ld, h->queries, h->D, 1 / (real)sqrt(h->D));
    load_columns(NULL, 0, h->k_transposed, h->key_rows, k, at_k, ld, h->keys, h->D, 1);
    load_columns(h->v, h->width, NULL, h->key_rows, v, at_v, ld, h->keys, h->D, 1);
}

static void load_backward(Head *h, Tensor q, int64_t at_q, Tensor k, int64_t at_k, Tensor v, int64_t at_v, int64_t ld,
                          Tensor d_out, int64_t at_out, int64_t ld_out)
{
    const int64_t size = h->rows * h->width, key_size = h->key_rows * h->width;

    h->q = scratch(1, 3 * size + 3 * key_size + 2 * h->D * h->key_rows);
    h->d_out = h->q + size, h->d_q = h->d_out + size, h->k = h->d_q + size, h->d_k = h->k + key_size;
    h->d_v = h->d_k + key_size, h->k_transposed = h->d_v + key_size;
    h->v_transposed = h->k_transposed + h->D * h->key_rows;
    load_columns(h->q, h->width, NULL, h->rows, q, at_q, ld, h->queries, h->D, 1);
    load_columns(h->k, h->width, h->k_transposed, h->key_rows, k, at_k, ld, h->keys, h->D, 1);
    load_columns(NULL, 0, h->v_transposed, h->key_rows, v, at_v, ld, h->keys, h->D, 1);
    load_columns(h->d_out, h->width, NULL, h->rows, d_out, at_out, ld_out, h->queries, h->D, 1);
    memset(h->d_q, 0, size * sizeof *h->d_q);
    memset(h->d_k, 0, 2 * key_size * sizeof *h->d_k);
}

/* End of the keys visible to the tile of queries starting at `first`, padded: tiles right of the diagonal are empty. */
static int64_t end_of(const Head *h, int64_t first)
{
    return h->causal ? padded(least(first + QUERIES, h->queries), QUERIES) : h->key_rows;
}

/* How many of `keys` keys, starting at `key`, a query sees. */
static int64_t seen_by(const Head *h, int64_t query, int64_t key, int64_t keys)
{
    const int64_t last = query >= h->queries ? 0 : h->causal ? query + 1 : h->keys;

    return last > key ? least(keys, last - key) : 0;
}

/* Continues the softmax (max, sum, o) of the tile of queries from `first` on over all keys that they see. */
static void attend(const Head *h, int64_t first, real *max, real *sum, real *o, real *scores)
{
    for (int64_t key = 0, end = end_of(h, first); key < end; key += KEYS) {
        const int64_t keys = least(KEYS, end - key);
        multiply(QUERIES, keys, h->D, h->q + first * h->width, h->width, 1, h->k_transposed + key, h->key_rows, scores,
                 KEYS, false);
        for (int64_t i = 0; i < QUERIES; i++) {
            const int64_t seen = seen_by(h, first + i, key, keys);
            if (seen)
                softmax_tile(scores + i * KEYS, seen, keys, &max[i], &sum[i], o + i * h->width, h->width);
            else
                memset(scores + i * KEYS, 0, keys * sizeof *scores);
        }
        multiply(QUERIES, h->width, keys, scores, KEYS, 1, h->v + key * h->width, h->width, o, h->width, true);
    }
}

/* P = exp(scores - lse), dV = P^T dO, dP = dO V^T, dS = P * (dP - delta) / sqrt(D), dQ = dS K, dK = dS^T Q. lse and
 * delta have one element per query, `stride` elements apart. */
static void attend_backward(const Head *h, const real *lse, const real *delta, int64_t stride)
{
    const int64_t D = h->D, width = h->width;
    const real scale = 1 / (real)sqrt(D);
    real *p = scratch(2, 2 * QUERIES * KEYS), *d_p = p + QUERIES * KEYS;

    for (int64_t first = 0; first < h->queries; first += QUERIES)
        for (int64_t key = 0, end = end_of(h, first); key < end; key += KEYS) {
            const int64_t keys = least(KEYS, end - key);
            multiply(QUERIES, keys, D, h->q + first * width, width, 1, h->k_transposed + key, h->key_rows, p, KEYS,
                     false);
            multiply(QUERIES, keys, D, h->d_out + first * width, width, 1, h->v_transposed + key, h->key_rows, d_p,
                     KEYS, false);
            for (int64_t i = 0; i < QUERIES; i++) {
                const int64_t query = first + i, seen = seen_by(h, query, key, keys);
                const real l = query < h->queries ? lse[query * stride] : 0;
                const real t = query < h->queries ? delta[query * stride] : 0;
                real *p_row = p + i * KEYS, *d_row = d_p + i * KEYS;
#pragma omp simd
                for (int64_t j = 0; j < seen; j++) {
                    p_row[j] = real_exp(scale * p_row[j] - l);
                    d_row[j] = scale * p_row[j] * (d_row[j] - t);
                }
                for (int64_t j = seen; j < keys; j++)
                    p_row[j] = d_row[j] = 0;
            }
            multiply(QUERIES, width, keys, d_p, KEYS, 1, h->k + key * width, width, h->d_q + first * width, width,
                     true);
            multiply(keys, width, QUERIES, d_p, 1, KEYS, h->q + first * width, width, h->d_k + key * width, width,
                     true);
            multiply(keys, width, QUERIES, p, 1, KEYS, h->d_out + first * width, width, h->d_v + key * width, width,
                     true);
        }
}

void flash_attention_forward_kernel(Tensor out, Tensor lse, Tensor qkv)
{
    const int64_t B = qkv.shape[0], T = qkv.shape[1], A = lse.shape[1], D = tensor_width(out) / A;

#pragma omp parallel for collapse(2)
    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < A; a++) {
            const int64_t at = (b * T * A + a) * 3 * D;
            Head h = head_of(T, T, D, true);
            real *o = scratch(2, QUERIES * (h.width + KEYS)), *scores = o + QUERIES * h.width;
            real *log_sum = row(lse, b * A + a);
            load_forward(&h, qkv, at, qkv, at + D, qkv, at + 2 * D, 3 * A * D);
            for (int64_t first = 0; first < T; first += QUERIES) {
                real max[QUERIES], sum[QUERIES] = {0};
                for (int64_t i = 0; i < QUERIES; i++)
                    max[i] = -INFINITY;
                memset(o, 0, QUERIES * h.width * sizeof *o);
                attend(&h, first, max, sum, o, scores);
                for (int64_t i = 0; i < least(QUERIES, T - first); i++) {
                    const int64_t to_at = (b * T + first + i) * A * D + a * D;
                    real *to = staging(out, to_at, D, 3);
                    for (int64_t d = 0; d < D; d++)
                        to[d] = o[i * h.width + d] / sum[i];
                    store(out, to_at, D, to);
                    log_sum[first + i] = max[i] + (real)log(sum[i]);
                }
            }
        }
}

/* Threads have heads of their own, so a thread adds up all of their dQ. */
int64_t flash_parts(DType dtype, int64_t B, int64_t T, int64_t K, int64_t A, int64_t D)
{
    (void)dtype, (void)B, (void)T, (void)K, (void)A, (void)D;
    return 0;
}

void flash_attention_backward_kernel(Tensor d_qkv, Tensor delta, Tensor d_q_parts, Tensor d_out, Tensor qkv,
                                     Tensor out, Tensor lse)
{
    (void)d_q_parts;
    const int64_t B = qkv.shape[0], T = qkv.shape[1], A = lse.shape[1], D = tensor_width(out) / A, ld = 3 * A * D;

#pragma omp parallel for collapse(2)
    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < A; a++) {
            const int64_t at = (b * T * A + a) * 3 * D, at_out = (b * T * A + a) * D;
            Head h = head_of(T, T, D, true);
            real *dot = row(delta, b * A + a);
            load_backward(&h, qkv, at, qkv, at + D, qkv, at + 2 * D, ld, d_out, at_out, A * D);
            for (int64_t i = 0; i < T; i++) {
                const real *o = load(out, at_out + i * A * D, D, 0);
                real sum = 0;
#pragma omp simd reduction(+ : sum)
                for (int64_t d = 0; d < D; d++)
                    sum += h.d_out[i * h.width + d] * o[d];
                dot[i] = sum;
            }
            attend_backward(&h, row(lse, b * A + a), dot, 1);
            for (int64_t i = 0; i < T; i++) {
                real *to = staging(d_qkv, at + i * ld, 3 * D, 3);
                memcpy(to, h.d_q + i * h.width, D * sizeof *to);
                memcpy(to + D, h.d_k + i * h.width, D * sizeof *to);
                memcpy(to + 2 * D, h.d_v + i * h.width, D * sizeof *to);
                store(d_qkv, at + i * ld, 3 * D, to);
            }
        }
}

/* FlashAttention of one chunk of queries and one of keys. The result over earlier chunks continues as a softmax with
 * max = lse and sum = 1. */
void flash_block_forward_kernel(Tensor out, Tensor lse, Tensor q, Tensor k, Tensor v, bool causal)
{
    const int64_t B = q.shape[0], C = q.shape[1], A = q.shape[2], D = q.shape[3], K = k.shape[1], ld = A * D;

#pragma omp parallel for collapse(2)
    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < A; a++) {
            const int64_t at_k = (b * K * A + a) * D;
            Head h = head_of(C, K, D, causal);
            real *o = scratch(2, QUERIES * (h.width + KEYS)), *scores = o + QUERIES * h.width;
            load_forward(&h, q, (b * C * A + a) * D, k, at_k, v, at_k, ld);
            for (int64_t first = 0; first < C; first += QUERIES) {
                const int64_t n = least(QUERIES, C - first);
                real max[QUERIES], sum[QUERIES], *to = (real *)out.data + ((b * C + first) * A + a) * D;
                real *log_sum = (real *)lse.data + (b * C + first) * A + a;
                memset(o, 0, QUERIES * h.width * sizeof *o);
                for (int64_t i = 0; i < n; i++) {
                    max[i] = log_sum[i * A], sum[i] = 1;
                    memcpy(o + i * h.width, to + i * ld, D * sizeof *o);
                }
                attend(&h, first, max, sum, o, scores);
                for (int64_t i = 0; i < n; i++) {
                    for (int64_t d = 0; d < D; d++)
                        to[i * ld + d] = o[i * h.width + d] / sum[i];
                    log_sum[i * A] = max[i] + (real)log(sum[i]);
                }
            }
        }
}

static void add_rows(Tensor to, int64_t at, int64_t ld, const real *from, int64_t rows, const Head *h)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t d = 0; d < h->D; d++)
            ((real *)to.data)[at + i * ld + d] += from[i * h->width + d];
}

void flash_block_backward_kernel(Tensor d_q, Tensor d_k, Tensor d_v, Tensor d_q_parts, Tensor d_out, Tensor q,
                                 Tensor k, Tensor v, Tensor lse, Tensor delta, bool causal)
{
    (void)d_q_parts;
    const int64_t B = q.shape[0], C = q.shape[1], A = q.shape[2], D = q.shape[3], K = k.shape[1], ld = A * D;

#pragma omp parallel for collapse(2)
    for (int64_t b = 0; b < B; b++)
        for (int64_t a = 0; a < A; a++) {
            const int64_t at_q = (b * C * A + a) * D, at_k = (b * K * A + a) * D, at_sum = b * C * A + a;
            Head h = head_of(C, K, D, causal);
            load_backward(&h, q, at_q, k, at_k, v, at_k, ld, d_out, at_q, ld);
            attend_backward(&h, (real *)lse.data + at_sum, (real *)delta.data + at_sum, A);
            add_rows(d_q, at_q, ld, h.d_q, C, &h);
            add_rows(d_k, at_k, ld, h.d_k, K, &h);
            add_rows(d_v, at_k, ld, h.d_v, K, &h);
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
        real *s = staging(sum, i * width, width, 2), *o = staging(out, i * width, width, 3), squares = 0;
        double total = 0;                       /* where elements are nearly equal, an error in the mean is visible */
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

/* Rows are split into a fixed number of parts. Each has its own sums for the gradients of the three vectors, added up
 * in order at the end. So every row is read once, and results do not depend on the number of threads. */
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
        const Range r = range_split(rows, part, PARTS);
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
    const Matrix in = load_matrix(x, 0, rows, k, k, 0), w = load_matrix(weight, 0, m, k, k, 1);
    const Matrix u = staging_matrix(up, 0, rows, m, m, 3);
    const real *b = load(bias, 0, m, 2);

    matmul(false, true, rows, m, k, 1, in, w, 0, u);
#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        real *o = staging(out, i * m, m, 4), *u_row = u.data + i * m;
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
    const Matrix d_o = load_matrix(d_out, 0, rows, n, n, 0), w = load_matrix(weight, 0, n, m, m, 1);
    const Matrix d_u = staging_matrix(d_up, 0, rows, m, m, 3);

    matmul(false, false, rows, m, n, 1, d_o, w, 0, d_u);
#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *in = load(up, i * m, m, 4);
        real *d = d_u.data + i * m;
        for (int64_t j = 0; j < m; j++)
            d[j] *= gelu_slope(in[j]);
        store(d_up, i * m, m, d);
    }
}

/* ---- cross-entropy ---- */

/* Computes exp once per logit: it gives the sum, and divided by the sum the gradient. */
void cross_entropy_both_kernel(Tensor loss, Tensor logits, Tensor targets, double scale, double gradient_scale)
{
    const int64_t rows = tensor_rows(logits), width = tensor_width(logits);
    const int32_t *ids = targets.data;
    real *losses = scratch(4, rows);

#pragma omp parallel for
    for (int64_t i = 0; i < rows; i++) {
        const real *in = load(logits, i * width, width, 0);
        const real target = ids[i] < 0 ? 0 : in[ids[i]], max = largest_of(in, width);
        real *d = staging(logits, i * width, width, 1), sum = 0;
#pragma omp simd reduction(+ : sum)                     /* safe although d may alias the row */
        for (int64_t j = 0; j < width; j++) {
            d[j] = real_exp(in[j] - max);
            sum += d[j];
        }
        const real factor = (real)gradient_scale / sum;
        for (int64_t j = 0; j < width; j++)
            d[j] *= factor;
        if (ids[i] >= 0)
            d[ids[i]] -= (real)gradient_scale;
        store(logits, i * width, width, d);
        losses[i] = max - target + (real)log(sum);      /* in this order: max and target may be large and close */
    }
    double total = 0;
    for (int64_t i = 0; i < rows; i++)
        total += losses[i];
    *(double *)loss.data += scale * total;
}

/* ---- AdamW ---- */

void clip_scale_into_kernel(Tensor scale, Tensor square_sum, double clip)
{
    const double norm = sqrt(*(double *)square_sum.data);

    *(double *)scale.data = !isfinite(norm) ? NAN : clip > 0 && norm + 1e-6 > clip ? clip / (norm + 1e-6) : 1;
}

void download_start(double *to, Tensor from)
{
    number_to_host(to, *(double *)from.data);
}
