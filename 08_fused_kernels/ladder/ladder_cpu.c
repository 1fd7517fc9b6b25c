/* The matmul ladder on the CPU: C (m, n) = A (m, k) B (k, n), float, row-major, in seven ways. Each rung adds one idea
 * to the previous rung, and the table shows what the idea gained. ladder_cuda.cu is the same ladder on a GPU. */
#include <cblas.h>
#include <omp.h>

#include "../../common/base/device.h"
#include "../../common/base/threads.h"
#include "ladder.h"

static inline int least(int a, int b)
{
    return a < b ? a : b;
}

/* ---- 1. Naive ---- */

/* The definition, element by element. Each sum is a chain: an addition waits for the previous one (4 cycles), and the
 * compiler may not split the chain, because that would round differently. B is read down its columns. Of every cache
 * line (16 floats) one float is used, and the line is evicted before the next one is read. */
static void naive(int m, int n, int k, const float *restrict a, const float *restrict b, float *restrict c)
{
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0;
            for (int p = 0; p < k; p++)
                sum += a[(size_t)i * k + p] * b[(size_t)p * n + j];
            c[(size_t)i * n + j] = sum;
        }
}

/* ---- 2. Loop order ---- */

/* Rung 1 with the inner two loops exchanged: a row of C is a sum of rows of B. B and C are read along their rows, full
 * cache lines at a time. The inner loop's steps are independent, so the compiler vectorizes it. */
static void loop_order(int m, int n, int k, const float *restrict a, const float *restrict b, float *restrict c)
{
    memset(c, 0, (size_t)m * n * sizeof *c);
    for (int i = 0; i < m; i++)
        for (int p = 0; p < k; p++)
            for (int j = 0; j < n; j++)
                c[(size_t)i * n + j] += a[(size_t)i * k + p] * b[(size_t)p * n + j];
}

/* ---- 3. Tiles that fit the cache ---- */

/* Adds the products of k in [p0, p1) to rows [i0, i1) and columns [j0, j1) of C. */
static void add_tile(int i0, int i1, int j0, int j1, int p0, int p1, int n, int k, const float *restrict a,
                     const float *restrict b, float *restrict c)
{
    for (int i = i0; i < i1; i++)
        for (int p = p0; p < p1; p++)
            for (int j = j0; j < j1; j++)
                c[(size_t)i * n + j] += a[(size_t)i * k + p] * b[(size_t)p * n + j];
}

/* Rung 2 reads all of B for every row of C, from the smallest memory that holds B. A tile of 32 x 256 floats (32 KB)
 * fits L1: it is loaded once and then used for all m rows. */
static void tiles(int m, int n, int k, const float *restrict a, const float *restrict b, float *restrict c)
{
    enum { DEPTH = 32, WIDTH = 256 };

    memset(c, 0, (size_t)m * n * sizeof *c);
    for (int p = 0; p < k; p += DEPTH)
        for (int j = 0; j < n; j += WIDTH)
            add_tile(0, m, j, least(j + WIDTH, n), p, least(p + DEPTH, k), n, k, a, b, c);
}

/* ---- 4. Registers ---- */

/* LANES: floats per vector register. ROWS: rows of C that the kernel has in registers. ROWS x 2 vectors of sums, 2 of B
 * and one of A must fit the 32 registers of AVX-512 and NEON, or the 16 of AVX2. */
#if defined __AVX512F__
enum { LANES = 16, ROWS = 12 };
#elif defined __AVX__
enum { LANES = 8, ROWS = 6 };
#elif defined __aarch64__
enum { LANES = 4, ROWS = 12 };
#else
enum { LANES = 4, ROWS = 6 };
#endif
enum { COLUMNS = 2 * LANES };

/* A vector at any address of a float. The compiler has +, * and broadcasts of this type on every machine. */
typedef float Vector __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* C (ROWS x COLUMNS) += A (ROWS x k) B (k x COLUMNS), with all sums in registers from the first step of k to the last.
 * Each step loads ROWS + COLUMNS floats for ROWS * COLUMNS multiplications; rung 3 loads two floats and stores one for
 * each multiplication. Element (i, p) of A is a[i * a_row + p * a_column]. */
static inline __attribute__((always_inline)) void kernel(int k, const float *a, size_t a_row, size_t a_column,
                                                         const float *b, size_t b_row, float *c, size_t c_row)
{
    Vector sum[ROWS][2] = {0};

    for (int p = 0; p < k; p++, a += a_column, b += b_row) {
        const Vector left = *(const Vector *)b, right = *(const Vector *)(b + LANES);
#pragma GCC unroll 16
        for (int i = 0; i < ROWS; i++) {
            sum[i][0] += a[i * a_row] * left;
            sum[i][1] += a[i * a_row] * right;
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++) {
        *(Vector *)(c + i * c_row) += sum[i][0];
        *(Vector *)(c + i * c_row + LANES) += sum[i][1];
    }
}

/* Computes C in blocks of ROWS x COLUMNS, and its ragged edges as in rung 3. */
static void registers(int m, int n, int k, const float *restrict a, const float *restrict b, float *restrict c)
{
    enum { DEPTH = 256 };
    const int full_m = m / ROWS * ROWS, full_n = n / COLUMNS * COLUMNS;

    memset(c, 0, (size_t)m * n * sizeof *c);
    for (int p = 0; p < k; p += DEPTH) {
        const int end = least(p + DEPTH, k);
        for (int j = 0; j < full_n; j += COLUMNS)
            for (int i = 0; i < full_m; i += ROWS)
                kernel(end - p, a + (size_t)i * k + p, k, 1, b + (size_t)p * n + j, n, c + (size_t)i * n + j, n);
        add_tile(0, full_m, full_n, n, p, end, n, k, a, b, c);
        add_tile(full_m, m, 0, n, p, end, n, k, a, b, c);
    }
}

/* ---- 5. Packing ---- */

/* The kernel of rung 4 reads 256 rows of B that lie n floats apart. Each is on its own page, which the processor must
 * look up. If n is a power of two, all rows map to the same few sets of L1 and evict each other. So rung 5 copies what
 * the kernel will read, once, into the order in which it will be read. The sizes follow the caches (Goto, van de Geijn
 * 2008): a strip of B (DEPTH x COLUMNS) stays in L1, a block of A (HEIGHT x DEPTH) in L2, a panel of B (DEPTH x WIDTH)
 * in the last-level cache. */
enum { DEPTH = 256, HEIGHT = 16 * ROWS, WIDTH = 1024 };

/* Packs strips of ROWS rows, one after the other; each strip column by column. Missing rows are zeros. */
static void pack_a(float *restrict to, const float *restrict a, int rows, int depth, size_t a_row)
{
    for (int i = 0; i < rows; i += ROWS)
        for (int p = 0; p < depth; p++)
            for (int r = i; r < i + ROWS; r++)
                *to++ = r < rows ? a[r * a_row + p] : 0;
}

/* Packs one strip of COLUMNS columns, row by row. Missing columns are zeros. */
static void pack_b(float *restrict to, const float *restrict b, int columns, int depth, size_t b_row)
{
    for (int p = 0; p < depth; p++, b += b_row)
        for (int j = 0; j < COLUMNS; j++)
            *to++ = j < columns ? b[j] : 0;
}

/* A block of C += a packed block of A times a packed panel of B. With zeros beyond the edges, the kernel always
 * computes full blocks: at an edge into a buffer, of which the existing part is added to C. */
static void multiply_packed(const float *a, const float *b, int rows, int columns, int depth, float *c, size_t c_row)
{
    for (int j = 0; j < columns; j += COLUMNS)
        for (int i = 0; i < rows; i += ROWS) {
            const float *strip_a = a + (size_t)i * depth, *strip_b = b + (size_t)j * depth;
            float *to = c + i * c_row + j;
            if (i + ROWS <= rows && j + COLUMNS <= columns) {
                kernel(depth, strip_a, 1, ROWS, strip_b, COLUMNS, to, c_row);
                continue;
            }
            float edge[ROWS * COLUMNS] = {0};
            kernel(depth, strip_a, 1, ROWS, strip_b, COLUMNS, edge, COLUMNS);
            for (int r = 0; r < least(ROWS, rows - i); r++)
                for (int s = 0; s < least(COLUMNS, columns - j); s++)
                    to[r * c_row + s] += edge[r * COLUMNS + s];
        }
}

/* Computes the rows of C of one of `threads` threads. The threads share the panel of B, and each packs some of its
 * strips. Barriers: no thread reads the panel before all have packed, or packs the next one before all have read. */
static void multiply_rows(int thread, int threads, int m, int n, int k, const float *a, const float *b, float *c)
{
    static _Alignas(64) float panel[DEPTH * WIDTH];
    _Alignas(64) float block[HEIGHT * DEPTH];
    const int64_t strips = (m + ROWS - 1) / ROWS;
    const int first = strips * thread / threads * ROWS, last = least(m, strips * (thread + 1) / threads * ROWS);

    if (first < last)
        memset(c + (size_t)first * n, 0, (size_t)(last - first) * n * sizeof *c);
    for (int j = 0; j < n; j += WIDTH)
        for (int p = 0; p < k; p += DEPTH) {
            const int columns = least(WIDTH, n - j), depth = least(DEPTH, k - p);
#pragma omp barrier
            for (int s = thread * COLUMNS; s < columns; s += threads * COLUMNS)
                pack_b(panel + (size_t)s * depth, b + (size_t)p * n + j + s, columns - s, depth, n);
#pragma omp barrier
            for (int i = first; i < last; i += HEIGHT) {
                const int rows = least(HEIGHT, last - i);
                pack_a(block, a + (size_t)i * k + p, rows, depth, k);
                multiply_packed(block, panel, rows, columns, depth, c + (size_t)i * n + j, n);
            }
        }
}

static void packed(int m, int n, int k, const float *restrict a, const float *restrict b, float *restrict c)
{
    multiply_rows(0, 1, m, n, k, a, b, c);
}

/* ---- 6. Threads ---- */

/* Rung 5 on all cores. They share the last-level cache, and so the panel of B in it. */
static void threads(int m, int n, int k, const float *restrict a, const float *restrict b, float *restrict c)
{
#pragma omp parallel
    multiply_rows(omp_get_thread_num(), omp_get_num_threads(), m, n, k, a, b, c);
}

/* ---- 7. The library ---- */

/* The scheme of rung 6, with a kernel in assembly for each processor, prefetches, and sizes tuned by measurement. */
static void openblas(int m, int n, int k, const float *restrict a, const float *restrict b, float *restrict c)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, k, 1, a, k, b, n, 0, c, n);
}

/* ---- The program ---- */

typedef void Product(int m, int n, int k, const float *restrict a, const float *restrict b, float *restrict c);

typedef struct {
    const char *name;
    Product *product;
    bool threaded;
    const char *idea;
} Rung;

enum { RUNGS = 7 };
static const Rung rungs[RUNGS + 1] = {
    [1] = {"naive", naive, false, "row of A times column of B, element by element"},
    [2] = {"loop order", loop_order, false, "the inner loop runs along rows of B and C: full cache lines, vectors"},
    [3] = {"tiles", tiles, false, "a tile of B stays in L1 and is used for every row of C"},
    [4] = {"registers", registers, false, "a block of C stays in registers for 256 steps of k"},
    [5] = {"packing", packed, false, "A and B are copied into the order in which they are read"},
    [6] = {"threads", threads, true, "the rows of C are split over the cores"},
    [7] = {"OpenBLAS", openblas, false, "one thread: the reference of rungs 1 to 5"},
};
static const Rung openblas_threads = {"OpenBLAS", openblas, true, "all threads: the reference of rung 6"};

typedef struct {
    double seconds, library;                /* per run, and per run of OpenBLAS on as many threads: medians */
} Times;

static double run_once(const Ladder *l, const Rung *r, const float *a, const float *b, float *c)
{
    omp_set_num_threads(r->threaded ? l->threads : 1);      /* OpenBLAS's OpenMP build obeys */
    const double begin = clock_seconds();
    r->product(l->m, l->n, l->k, a, b, c);
    return clock_seconds() - begin;
}

/* Times a rung and OpenBLAS in alternating runs: a machine's speed changes, but hardly between neighbors in time. c
 * has been computed once, in `first` seconds, so caches and pages are warm; if that took long, it is the only run. */
static Times measure(const Ladder *l, const Rung *r, const float *a, const float *b, float *c, float *spare,
                     double first)
{
    const Rung *library = r->threaded ? &openblas_threads : &rungs[RUNGS];
    double rung[LADDER_TIMES], other[LADDER_TIMES];
    const double begin = clock_seconds();
    int count = 0;

    run_once(l, library, a, b, spare);
    if (first > l->seconds)
        return (Times){first, run_once(l, library, a, b, spare)};
    while (count < LADDER_TIMES && (count < 5 || clock_seconds() - begin < l->seconds)) {
        rung[count] = run_once(l, r, a, b, c);
        other[count++] = run_once(l, library, a, b, spare);
    }
    return (Times){ladder_median(rung, count), ladder_median(other, count)};
}

/* Returns the bytes read and written per second when all threads copy; the best of five trials. */
static double copy_bandwidth(const Ladder *l)
{
    const int64_t bytes = (int64_t)l->copy * 500000 / 64 * 64;      /* half of them are read, half written */
    char *from = aligned_alloc(64, bytes), *to = aligned_alloc(64, bytes);
    double best = 0;

    if (!from || !to)
        fail("not enough memory for copying %d MB; try a smaller --copy", l->copy);
    omp_set_num_threads(l->threads);
    for (int trial = 0; trial < 6; trial++) {
        const double begin = clock_seconds();
#pragma omp parallel
        {
            const int64_t t = omp_get_thread_num(), of = omp_get_num_threads();
            const int64_t at = bytes * t / of, end = bytes * (t + 1) / of;
            if (trial == 0) {                       /* first touch: pages lie near the thread that copies them */
                memset(from + at, 1, end - at);
                memset(to + at, 2, end - at);
            }
            memcpy(to + at, from + at, end - at);
        }
        if (trial > 0)
            best = fmax(best, 2.0 * bytes / (clock_seconds() - begin));
    }
    free(from);
    free(to);
    return best;
}

int main(int argc, char **argv)
{
    Ladder l = {.m = 1024, .n = 1024, .k = 1024, .copy = 1000, .seconds = 1, .count = RUNGS};

    device_prepare(argv);
    ladder_options(&l, true, "Multiplies matrices in seven ways, each with one more idea, and prints what each gained.",
                   argc, argv);
    threads_set(l.threads, omp_get_num_procs());
    device_init(0);
    l.threads = omp_get_max_threads();
    float *a = ladder_matrix(l.m, l.k), *b = ladder_matrix(l.k, l.n), *c = ladder_matrix(l.m, l.n);
    float *want = ladder_matrix(l.m, l.n), *spare = ladder_matrix(l.m, l.n);
    ladder_fill(a, (int64_t)l.m * l.k, 1);
    ladder_fill(b, (int64_t)l.k * l.n, 2);
    double *row = ladder_norms(a, l.m, l.k, l.k, 1), *column = ladder_norms(b, l.n, l.k, 1, l.n);
    run_once(&l, &rungs[RUNGS], a, b, want);

    printf("C (%d, %d) = A (%d, %d) B (%d, %d) in float; %s, vectors of %d floats\n\n", l.m, l.n, l.m, l.k, l.k, l.n,
           device_name(), LANES);
    ladder_head(&l, "OpenBLAS");
    double before = -1, rate = 0;           /* FLOP/s: of the previous rung; of OpenBLAS on all threads */
    for (int i = 1; i <= RUNGS; i++) {
        const Rung *r = &rungs[i];
        int64_t at = 0;
        if (!l.rung[i]) {
            before = -1;
            continue;
        }
        memset(c, 0xff, (size_t)l.m * l.n * sizeof *c);     /* NaN: shows what a rung does not write */
        const double first = run_once(&l, r, a, b, c), error = ladder_error(c, want, l.m, l.n, row, column, &at);
        if (!(error <= ladder_allowed(l.k)))
            fail("rung %d (%s) is wrong: C[%lld][%lld] is %g, with OpenBLAS %g", i, r->name, (long long)(at / l.n),
                 (long long)(at % l.n), c[at], want[at]);
        const Times t = measure(&l, r, a, b, c, spare, first);
        const double now = ladder_flops(&l) / t.seconds;
        ladder_row(&l, i, r->name, now, t.library / t.seconds, i < RUNGS && before > 0 ? now / before : -1, error,
                   r->idea);
        before = now;
        if (r->threaded)
            rate = ladder_flops(&l) / t.library;
    }
    if (rate == 0)
        rate = ladder_flops(&l) / measure(&l, &openblas_threads, a, b, c, spare, 0).library;
    ladder_row(&l, 0, openblas_threads.name, rate, 1, -1, -1, openblas_threads.idea);
    if (l.copy)
        ladder_roofline(&l, openblas_threads.name, rate, copy_bandwidth(&l), sizeof(float));
    free(a), free(b), free(c), free(want), free(spare), free(row), free(column);
    fail_unprinted();
    return 0;
}
