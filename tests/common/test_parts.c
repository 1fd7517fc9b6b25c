/* Tests of the modules of common/ without a test program of their own: random numbers, the layout, initial weights, the
 * optimizer, batches, the memory tracker.
 */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../common/ultrascale.h"
#include "../../common/random.h"
#include "../harness.h"

static uint64_t random_state = 88172645463325252u;

static int64_t below(int64_t n)
{
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return (random_state >> 1) % n;
}

static real *data(Tensor t)
{
    return t.data;
}

static Tensor flat(const char *name, int64_t count)
{
    return tensor_create(MEM_WORKSPACE, REAL, name, shape(count));
}

static void drop(Tensor t)
{
    tensor_free(&t, MEM_WORKSPACE);
}

/* ---- Random numbers ---- */

/* The expected words are those of the authors' Random123: kat_vectors, philox4x32 with 10 rounds. */
static void philox_is_the_published_one(void **state)
{
    static const struct {
        uint64_t key, high, low;
        uint32_t word[4];
    } known[] = {
        {0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};

    (void)state;
    for (int i = 0; i < 3; i++) {
        const Philox p = philox(known[i].key, known[i].high, known[i].low);
        assert_memory_equal(p.word, known[i].word, sizeof p.word);
    }
}

/* Numbers differ if any argument differs: seed, stream, or either index. */
static void streams_are_apart(void **state)
{
    enum { VALUES = 5 * 3 * 5 * 5 };
    static const uint64_t values[] = {0, 1, 2, 1ull << 32, (1ull << 56) - 1};
    uint64_t seen[VALUES];
    int count = 0;

    (void)state;
    for (int s = 0; s < 5; s++)
        for (int stream = STREAM_PARAMETERS; stream <= STREAM_SAMPLING; stream++)
            for (int i = 0; i < 5; i++)
                for (int j = 0; j < 5; j++)
                    seen[count++] = random_bits(values[s], stream, values[i], values[j]);
    for (int i = 0; i < VALUES; i++)
        for (int j = 0; j < i; j++)
            assert_true(seen[i] != seen[j]);
    assert_true(random_bits(3, STREAM_BATCHES, 4, 5) == random_bits(3, STREAM_BATCHES, 4, 5));
}

/* Here and in the next test, every statistic is within 5 standard deviations of its value for independent numbers. */
static void uniform_is_uniform(void **state)
{
    enum { COUNT = 400000, BINS = 100 };
    double sum = 0, squares = 0, chi = 0;
    int bins[BINS] = {0};

    (void)state;
    for (int i = 0; i < COUNT; i++) {
        const double u = random_uniform(1, STREAM_SAMPLING, i % 7, i / 7);
        assert_true(u > 0 && u < 1);
        sum += u - 0.5;
        squares += (u - 0.5) * (u - 0.5);
        bins[(int)(u * BINS)]++;
    }
    for (int b = 0; b < BINS; b++)
        chi += pow(bins[b] - COUNT / BINS, 2) / ((double)COUNT / BINS);
    assert_true(fabs(sum / COUNT) < 5 * sqrt(1.0 / 12 / COUNT));
    assert_true(fabs(squares / COUNT - 1.0 / 12) < 5 * sqrt(1.0 / 180 / COUNT));
    assert_true(fabs(chi - (BINS - 1)) < 5 * sqrt(2 * (BINS - 1)));
}

static void normal_is_normal(void **state)
{
    enum { COUNT = 400000 };
    double moment[5] = {0}, pairs = 0, neighbours = 0, last = 0, beyond_two = 0;

    (void)state;
    for (int64_t i = 0; i < COUNT; i++) {
        const double x = random_normal(1, STREAM_PARAMETERS, 3, i);
        assert_true(isfinite(x));
        for (int k = 1; k <= 4; k++)
            moment[k] += pow(x, k) / COUNT;
        *(i % 2 ? &pairs : &neighbours) += x * last;            /* i odd: both come from one evaluation */
        last = x;
        beyond_two += fabs(x) > 2;
    }
    assert_true(fabs(moment[1]) < 5 / sqrt(COUNT));
    assert_true(fabs(moment[2] - 1) < 5 * sqrt(2.0 / COUNT));
    assert_true(fabs(moment[3]) < 5 * sqrt(15.0 / COUNT));
    assert_true(fabs(moment[4] - 3) < 5 * sqrt(96.0 / COUNT));
    assert_true(fabs(pairs) < 5 * sqrt(COUNT / 2));
    assert_true(fabs(neighbours) < 5 * sqrt(COUNT / 2));
    assert_true(fabs(beyond_two / COUNT - 0.045500) < 5 * sqrt(0.0455 / COUNT));
}

/* ---- range_split, the one rule by which ranges are split ---- */

static void shards_cover(int64_t count, int n)
{
    int64_t end = 0;

    for (int r = 0; r < n; r++) {
        const Range shard = range_split(count, r, n);
        assert_int_equal(shard.first, end);
        assert_true(shard.count == count / n || shard.count == count / n + 1);
        assert_true(shard.first == (int64_t)((__int128)count * r / n));
        end = shard.first + shard.count;
    }
    assert_int_equal(end, count);
}

static void shards_cover_all(void **state)
{
    static const int64_t counts[] = {
        0, 1, 2, 3, 7, 97, 1000, 50257, 1ll << 40, (1ll << 61) - 1, (1ll << 62) - 57, 1ll << 62};

    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int n = 1; n <= 4096; n += 1 + n / 7)
            shards_cover(counts[i], n);
    for (int i = 0; i < 2000; i++)
        shards_cover(below(1000), 1 + below(64));
}

/* ---- The layout ---- */

static Config random_config(void)
{
    const int heads = 1 + below(5);

    return (Config){
        .layers = 1 + below(4), .heads = heads, .hidden = heads * 2 * (1 + below(4)), .vocab = 2 + below(60), .seq = 8};
}

static void layout_free(Layout l)
{
    free(l.units);
    free(l.table);
}

static void parameters_are_counted(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        const Config c = random_config();
        const int64_t h = c.hidden, n = h * c.vocab + c.layers * (12 * h * h + 13 * h) + 2 * h;
        const Layout l = layout_create(c, FULL_MODEL);
        int64_t end = 0, at = 0, elements = 0;
        bool decays[2] = {false, false};
        int k = 0;

        assert_int_equal(model_parameters(c), n);
        assert_int_equal(l.count, n);
        assert_true(model_flops_per_token(c) == 6.0 * n + 12.0 * c.layers * c.hidden * c.seq);
        assert_int_equal(l.first_id, 0);
        for (int u = 0; u < c.layers + 2; u++) {                /* units leave no gap and split no parameter */
            assert_int_equal(l.units[u].first, end);
            end += l.units[u].count;
            while (at < end)
                at += l.table[k++].range.count;
            assert_int_equal(at, end);
        }
        assert_int_equal(l.units[0].count, h * c.vocab);
        assert_int_equal(l.units[1].count, 12 * h * h + 13 * h);
        assert_int_equal(l.units[c.layers + 1].count, 2 * h);
        assert_int_equal(end, n);
        assert_int_equal(k, l.parameters);
        for (k = 0; k < l.parameters; k++) {
            const ParamInfo *p = &l.table[k];
            elements += p->rows * p->cols;
            assert_true(p->owned && p->first_row == 0 && p->first_col == 0 && p->local_rows == p->rows
                        && p->local_cols == p->cols);
            assert_true(!p->vector || p->cols == 1);
            assert_true(p->decay == !p->vector);
            decays[p->decay] = true;
            for (int other = 0; other < k; other++)
                assert_true(strcmp(p->name, l.table[other].name) && strcmp(p->label, l.table[other].label));
        }
        assert_int_equal(elements, n);
        assert_true(decays[0] && decays[1]);
        layout_free(l);
    }
    assert_int_equal(model_parameters((Config){12, 768, 12, 50257, 1024}), 123653376);
    assert_int_equal(model_parameters((Config){126, 16384, 128, 128256, 8192}), 408002625536);      /* beyond 32 bits */
}

/* Counts, per element of the full parameters, the layouts that store it and those that own it. */
static void count_elements(const Layout *l, int **stored, int **owned)
{
    int64_t end = 0;

    for (int k = 0; k < l->parameters; k++) {
        const ParamInfo *p = &l->table[k];
        assert_true(p->range.count == 0 || p->range.count == p->local_rows * p->local_cols);
        assert_int_equal(p->range.first, end);
        end += p->range.count;
        assert_true(!p->owned || p->range.count == p->local_rows * p->local_cols);
        for (int64_t i = 0; i < p->range.count; i++) {
            const int64_t row = p->first_row + i / p->local_cols, col = p->first_col + i % p->local_cols;
            assert_true(row < p->rows && col < p->cols);
            stored[k][row * p->cols + col]++;
            owned[k][row * p->cols + col] += p->owned;
        }
    }
    assert_int_equal(end, l->count);
}

static int **counters(const Layout *l)
{
    int **c = calloc(l->parameters, sizeof *c);

    for (int k = 0; k < l->parameters; k++)
        c[k] = calloc(l->table[k].rows * l->table[k].cols, sizeof **c);
    return c;
}

static void counters_free(const Layout *l, int **c)
{
    for (int k = 0; k < l->parameters; k++)
        free(c[k]);
    free(c);
}

static bool is_replicated(const ParamInfo *p)
{
    return strstr(p->label, "ln1") || strstr(p->label, "ln2") || strstr(p->label, "proj_bias")
        || strstr(p->label, "down_bias") || strstr(p->label, "final");
}

/* Over all slices, each element of a sharded parameter is stored once, and of a replicated one in every slice. Exactly
 * one slice owns it. */
static void slices_cover(void **state)
{
    (void)state;
    for (int i = 0; i < 60; i++) {
        const Config c = random_config();
        const Layout full = layout_create(c, FULL_MODEL);
        int **stored = counters(&full), **owned = counters(&full);
        const int slices = 1 + i % 4, H = c.hidden, D = H / c.heads;

        for (int s = 0; s < slices; s++) {
            const Layout l =
                layout_create(c, (Placement){.slice = s, .slices = slices, .embedding = true, .head = true});
            const ParamInfo *block = &l.table[1];
            const Range heads = range_split(c.heads, s, slices), mlp = range_split(4 * H, s, slices);

            count_elements(&l, stored, owned);
            assert_int_equal(l.first_id, l.table[0].first_row);
            assert_int_equal(l.first_id, range_split(c.vocab, s, slices).first);
            assert_string_equal(block[6].label, "blocks.0.qkv_weight");
            for (int k = 6; k <= 7; k++) {
                assert_int_equal(block[k].first_row, heads.first * 3 * D);
                assert_int_equal(block[k].local_rows, heads.count * 3 * D);
            }
            assert_string_equal(block[8].label, "blocks.0.proj_weight");
            assert_int_equal(block[8].first_col, heads.first * D);
            assert_int_equal(block[8].local_cols, heads.count * D);
            assert_string_equal(block[9].label, "blocks.0.up_weight");
            assert_int_equal(block[9].first_row, mlp.first);
            assert_string_equal(block[11].label, "blocks.0.down_weight");
            assert_int_equal(block[11].first_col, mlp.first);
            assert_int_equal(block[11].local_cols, mlp.count);
            layout_free(l);
        }
        for (int k = 0; k < full.parameters; k++)
            for (int64_t e = 0; e < full.table[k].range.count; e++) {
                assert_int_equal(stored[k][e], is_replicated(&full.table[k]) ? slices : 1);
                assert_int_equal(owned[k][e], 1);
            }
        counters_free(&full, stored);
        counters_free(&full, owned);
        layout_free(full);
    }
}

/* Over the ranks of a pipeline, each layer is stored once. The first and the last rank store the embedding; one of them
 * owns it. */
static void layers_divide(void **state)
{
    (void)state;
    for (int i = 0; i < 60; i++) {
        const Config c = random_config();
        const Layout full = layout_create(c, FULL_MODEL);
        int **stored = counters(&full), **owned = counters(&full);
        const int ranks = 1 + i % 4;

        for (int r = 0; r < ranks; r++) {
            const Range local = range_split(c.layers, r, ranks);
            bool layer[8] = {false};
            for (int l = 0; l < local.count; l++)
                layer[local.first + l] = true;
            const Layout l = layout_create(c, (Placement){.slices = 1, .layer = layer, .embedding = r == 0,
                                                          .head = r == ranks - 1});
            count_elements(&l, stored, owned);
            assert_int_equal(l.parameters, full.parameters);
            for (int b = 0; b < c.layers; b++)
                assert_int_equal(l.units[b + 1].count, layer[b] ? full.units[b + 1].count : 0);
            layout_free(l);
        }
        for (int k = 0; k < full.parameters; k++)
            for (int64_t e = 0; e < full.table[k].range.count; e++) {
                assert_int_equal(stored[k][e], k == 0 && ranks > 1 ? 2 : 1);
                assert_int_equal(owned[k][e], 1);
            }
        counters_free(&full, stored);
        counters_free(&full, owned);
        layout_free(full);
    }
}

static void replicas_own_nothing(void **state)
{
    const Layout l = layout_create((Config){2, 8, 2, 11, 8}, (Placement){.slices = 1, .embedding = true, .head = true,
                                                                         .replica = 2});

    (void)state;
    for (int k = 0; k < l.parameters; k++)
        assert_true(!l.table[k].owned && l.table[k].range.count > 0);
    layout_free(l);
}

static Layout random_slice(Config c)
{
    const int slices = 1 + below(4);

    return layout_create(c, (Placement){.slice = below(slices), .slices = slices, .embedding = true,
                                        .head = below(2)});
}

/* The segments of any range cover it in order. A walk over the table's rectangles, element by element, gives the
 * parameter and the place that each element must have. */
static void segments_cover(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) {
        const Config c = random_config();
        const Layout l = i % 5 ? random_slice(c) : layout_create(c, FULL_MODEL);
        int *parameter = malloc(l.count * sizeof *parameter);
        int64_t *in_full = malloc(l.count * sizeof *in_full), element = 0;

        for (int k = 0; k < l.parameters; k++)
            for (int64_t at = 0; at < l.table[k].range.count; at++, element++) {
                const ParamInfo *p = &l.table[k];
                parameter[element] = k;
                in_full[element] = (p->first_row + at / p->local_cols) * p->cols + p->first_col + at % p->local_cols;
            }
        assert_int_equal(element, l.count);
        for (int trial = 0; trial < 10; trial++) {
            const int64_t first = trial ? below(l.count + 1) : 0;
            const Range range = {first, trial ? below(l.count - first + 1) : l.count};
            int64_t covered = 0;
            int segments = 0;
            for (Segment s = {0}; layout_next(&l, range, &s); segments++) {
                assert_int_equal(s.in_range, covered);
                assert_true(s.count > 0 && s.param == &l.table[s.parameter]);
                for (int64_t e = 0; e < s.count; e++) {
                    assert_true(covered + e < range.count);
                    assert_int_equal(parameter[range.first + covered + e], s.parameter);
                    assert_int_equal(in_full[range.first + covered + e], s.in_full + e);
                }
                covered += s.count;
            }
            assert_int_equal(covered, range.count);
            if (i % 5 == 0 && trial == 0)
                assert_int_equal(segments, l.parameters);       /* segments are as long as possible */
        }
        free(parameter);
        free(in_full);
        layout_free(l);
    }
}

/* ---- Initial weights ---- */

static void weights_depend_only_on_their_place(void **state)
{
    (void)state;
    for (int i = 0; i < 30; i++) {
        const Config c = random_config();
        const Layout full = layout_create(c, FULL_MODEL), l = random_slice(c);
        const Tensor all = flat("all", full.count), slice = flat("slice", l.count);
        const int64_t first = below(full.count), count = 1 + below(full.count - first);
        const Tensor some = flat("some", count);

        params_init(&full, 0, all, 77);
        params_init(&full, first, some, 77);
        assert_memory_equal(some.data, data(all) + first, count * sizeof(real));
        params_init(&l, 0, slice, 77);
        for (int k = 0; k < l.parameters; k++) {
            const ParamInfo *p = &l.table[k];
            for (int64_t at = 0; at < p->range.count; at++) {
                const int64_t in_full =
                    (p->first_row + at / p->local_cols) * p->cols + p->first_col + at % p->local_cols;
                assert_true(data(slice)[p->range.first + at] == data(all)[full.table[k].range.first + in_full]);
            }
        }
        params_init(&full, first, some, 78);
        if (count > 20 * c.hidden)
            assert_memory_not_equal(some.data, data(all) + first, count * sizeof(real));
        drop(all);
        drop(slice);
        drop(some);
        layout_free(full);
        layout_free(l);
    }
}

static void weights_have_their_standard_deviation(void **state)
{
    const Config c = {3, 64, 4, 97, 8};
    const Layout l = layout_create(c, FULL_MODEL);
    const Tensor all = flat("all", l.count);

    (void)state;
    params_init(&l, 0, all, 1);
    for (int k = 0; k < l.parameters; k++) {
        const ParamInfo *p = &l.table[k];
        const real *x = data(all) + p->range.first;             /* the parameter's elements */
        const int64_t n = p->range.count;
        const bool norm_weight =
            strstr(p->label, "ln1_weight") || strstr(p->label, "ln2_weight") || strstr(p->label, "final_weight");
        const bool out = strstr(p->label, "proj_weight") || strstr(p->label, "down_weight");
        const double std = out ? 0.02 / sqrt(2.0 * c.layers) : 0.02;
        double sum = 0, squares = 0;

        for (int64_t i = 0; i < n; i++) {
            sum += x[i] / n;
            squares += x[i] * x[i] / n;
            if (p->vector)
                assert_true(x[i] == norm_weight);
        }
        if (p->vector)
            continue;
        assert_true(fabs(sum) < 5 * std / sqrt(n));
        assert_true(fabs(sqrt(squares) / std - 1) < 5 / sqrt(2.0 * n));
        for (int other = 0; other < k; other++)                 /* no parameter repeats another */
            if (!l.table[other].vector)
                assert_true(x[0] != data(all)[l.table[other].range.first]);
    }
    drop(all);
    layout_free(l);
}

/* ---- Views ---- */

static void assert_view(Tensor t, const char *name, const real *at, Shape s)
{
    assert_string_equal(t.name, name);
    assert_ptr_equal(t.data, at);
    assert_int_equal(t.dtype, REAL);
    assert_int_equal(t.dims, s.dims);
    for (int i = 0; i < s.dims; i++)
        assert_int_equal(t.shape[i], s.n[i]);
}

/* Checks the views of block 1. Its unit begins at `at`; the slice has hn rows of q, of k, of v, and fn MLP rows. */
static void assert_block(const BlockParams *b, const real *at, int64_t H, int64_t hn, int64_t fn)
{
    assert_view(b->replicated, "replicated", at, shape(6 * H));
    assert_view(b->ln1_weight, "blocks.1.ln1_weight", at, shape(H));
    assert_view(b->ln1_bias, "blocks.1.ln1_bias", at + H, shape(H));
    assert_view(b->proj_bias, "blocks.1.proj_bias", at + 2 * H, shape(H));
    assert_view(b->ln2_weight, "blocks.1.ln2_weight", at + 3 * H, shape(H));
    assert_view(b->ln2_bias, "blocks.1.ln2_bias", at + 4 * H, shape(H));
    assert_view(b->down_bias, "blocks.1.down_bias", at + 5 * H, shape(H));
    assert_view(b->qkv_weight, "blocks.1.qkv_weight", at += 6 * H, shape(3 * hn, H));
    assert_view(b->qkv_bias, "blocks.1.qkv_bias", at += 3 * hn * H, shape(3 * hn));
    assert_view(b->proj_weight, "blocks.1.proj_weight", at += 3 * hn, shape(H, hn));
    assert_view(b->up_weight, "blocks.1.up_weight", at += H * hn, shape(fn, H));
    assert_view(b->up_bias, "blocks.1.up_bias", at += fn * H, shape(fn));
    assert_view(b->down_weight, "blocks.1.down_weight", at + fn, shape(H, fn));
}

static void views_of_a_buffer(void **state)
{
    const Config c = {3, 12, 3, 11, 8};
    const int64_t H = 12;

    (void)state;
    for (int slices = 1; slices <= 2; slices++)
        for (int s = 0; s < slices; s++) {
            const Layout l =
                layout_create(c, (Placement){.slice = s, .slices = slices, .embedding = true, .head = true});
            const Tensor buffer = flat("buffer", l.count);
            const Params p = params_view(&l, buffer);
            const int64_t hn = 4 * range_split(3, s, slices).count, fn = range_split(48, s, slices).count;

            assert_ptr_equal(p.buffer.data, buffer.data);
            assert_view(p.embedding, "embedding", data(buffer), shape(range_split(11, s, slices).count, H));
            assert_block(&p.blocks[1], data(buffer) + l.units[2].first, H, hn, fn);
            assert_view(p.final_weight, "final_weight", data(buffer) + l.count - 2 * H, shape(H));
            assert_view(p.final_bias, "final_bias", data(buffer) + l.count - H, shape(H));
            assert_view(p.final, "final", data(buffer) + l.count - 2 * H, shape(2 * H));
            drop(buffer);
            free(p.blocks);
            layout_free(l);
        }
}

/* Views of one buffer per unit, as under ZeRO-3: units without a buffer have no views. */
static void views_of_units(void **state)
{
    const Config c = {3, 12, 3, 11, 8};
    const Layout l = layout_create(c, FULL_MODEL);
    const Tensor block = flat("block", l.units[2].count), last = flat("last", l.units[4].count);
    const Params p = params_view_units(&l, (Tensor[]){NONE, NONE, block, NONE, last});

    (void)state;
    assert_null(p.embedding.data);
    assert_null(p.blocks[0].qkv_weight.data);
    assert_null(p.blocks[2].replicated.data);
    assert_block(&p.blocks[1], block.data, 12, 12, 48);
    assert_view(p.final_bias, "final_bias", data(last) + 12, shape(12));
    assert_view(p.final, "final", data(last), shape(24));
    drop(block);
    drop(last);
    free(p.blocks);
    layout_free(l);
}

static void parameters_of_other_ranks_have_no_view(void **state)
{
    const bool layer[] = {false, true, false};
    const Layout l = layout_create((Config){3, 12, 3, 11, 8}, (Placement){.slices = 1, .layer = layer});
    const Tensor buffer = flat("buffer", l.count);
    const Params p = params_view(&l, buffer);

    (void)state;
    assert_int_equal(l.count, 12 * 12 * 12 + 13 * 12);
    assert_null(p.embedding.data);
    assert_null(p.blocks[0].ln1_weight.data);
    assert_null(p.blocks[0].replicated.data);
    assert_null(p.blocks[2].down_weight.data);
    assert_null(p.final_weight.data);
    assert_null(p.final.data);
    assert_block(&p.blocks[1], buffer.data, 12, 12, 48);
    drop(buffer);
    free(p.blocks);
    layout_free(l);
}

/* ---- The optimizer ---- */

static void learning_rate_rises_and_falls(void **state)
{
    (void)state;
    options.lr = 0.8, options.min_lr = 0.2, options.warmup = 20, options.decay_steps = 120;
    const struct {
        int64_t step;
        double rate;
    } expected[] = {{0, 0.04}, {9, 0.4}, {18, 0.76}, {19, 0.8}, {44, 0.2 + 0.3 * (1 + sqrt(0.5))}, {69, 0.5},
                    {119, 0.2}, {120, 0.2}, {1000000, 0.2}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        assert_true(fabs(learning_rate(expected[i].step) - expected[i].rate) < 1e-14);
    for (int step = 0; step < 19; step++)
        assert_true(learning_rate(step) < learning_rate(step + 1));
    for (int step = 19; step < 119; step++)
        assert_true(learning_rate(step) > learning_rate(step + 1));

    options.decay_steps = 0;
    assert_true(learning_rate(9) == 0.4 && learning_rate(19) == 0.8 && learning_rate(20) == 0.8
                && learning_rate(100000) == 0.8);
    options.warmup = 0;
    assert_true(learning_rate(0) == 0.8 && learning_rate(50) == 0.8);
    options.warmup = 1;
    assert_true(learning_rate(0) == 0.8 && learning_rate(1) == 0.8);
    options.decay_steps = 11;
    assert_true(learning_rate(0) == 0.8);
    assert_true(fabs(learning_rate(5) - 0.5) < 1e-14);
    options.warmup = 0, options.decay_steps = 10;
    assert_true(fabs(learning_rate(4) - 0.5) < 1e-14);
    assert_true(learning_rate(0) < 0.8 && learning_rate(9) == 0.2);
}

static void norms_are_clipped(void **state)
{
    (void)state;
    options.clip = 1;
    assert_true(clip_scale(0) == 1 && clip_scale(0.5) == 1 && clip_scale(1 - 2e-6) == 1);
    assert_true(fabs(clip_scale(1) - 1 / 1.000001) < 1e-15);
    assert_true(fabs(clip_scale(8) - 1 / 8.000001) < 1e-15);
    options.clip = 0.25;
    assert_true(fabs(clip_scale(8) - 0.25 / 8.000001) < 1e-15);
    options.clip = 0;
    assert_true(clip_scale(1e30) == 1);
}

enum { SPLITS = 4 };

/* Random weights and gradients for all of a layout; every third gradient is 0. */
static ParamShard random_shard(const Layout *l)
{
    ParamShard p = {.params = flat("params", l->count), .gradients = flat("gradients", l->count),
                    .m = flat("m", l->count), .v = flat("v", l->count)};

    for (int64_t i = 0; i < l->count; i++) {
        data(p.params)[i] = random_normal(1, 0, 1, i);
        data(p.gradients)[i] = i % 3 ? random_normal(1, 0, 2, i) : 0;
    }
    return p;
}

static void shard_free(ParamShard p)
{
    drop(p.params);
    drop(p.gradients);
    drop(p.m);
    drop(p.v);
}

static ParamShard shard_range(ParamShard p, int64_t first, int64_t count)
{
    return (ParamShard){first, tensor_range(p.params, first, count), tensor_range(p.gradients, first, count),
                        tensor_range(p.m, first, count), tensor_range(p.v, first, count)};
}

/* The update is the same, bit for bit, for any split of the layout into shards and any order of them. */
static void sharding_changes_no_update(void **state)
{
    (void)state;
    options.weight_decay = 0.1;
    for (int trial = 0; trial < 30; trial++) {
        const Config c = random_config();
        const Layout l = trial % 2 ? random_slice(c) : layout_create(c, FULL_MODEL);
        ParamShard full = random_shard(&l), same = random_shard(&l), shards[SPLITS + 1];
        int64_t bound[SPLITS + 2] = {0};
        AdamW one = {&l, &full, 1, 0}, many = {&l, shards, SPLITS + 1, 0};

        for (int i = 1; i <= SPLITS; i++)
            bound[i] = bound[i - 1] + below((l.count - bound[i - 1]) / 2 + 1);
        bound[SPLITS + 1] = l.count;
        for (int i = 0; i <= SPLITS; i++)
            shards[SPLITS - i] = shard_range(same, bound[i], bound[i + 1] - bound[i]);
        for (int step = 0; step < 3; step++) {
            adamw_step(&one, 0.01, 0.3);
            adamw_step(&many, 0.01, 0.3);
        }
        assert_int_equal(one.step, 3);
        assert_memory_equal(full.params.data, same.params.data, l.count * sizeof(real));
        assert_memory_equal(full.m.data, same.m.data, l.count * sizeof(real));
        assert_memory_equal(full.v.data, same.v.data, l.count * sizeof(real));
        assert_true(fabs(gradient_square_sum(&one) - gradient_square_sum(&many)) <= 1e-13 * gradient_square_sum(&one));
        shard_free(full);
        shard_free(same);
        layout_free(l);
    }
}

/* Betas are 0.9 and 0.95, eps is 1e-8. Only matrices and the embedding decay. */
static void adamw_is_adamw(void **state)
{
    const Layout l = layout_create((Config){2, 8, 2, 11, 8}, FULL_MODEL);
    ParamShard p = random_shard(&l);
    AdamW o = {&l, &p, 1, 0};
    double *w = malloc(l.count * sizeof *w), *m = calloc(l.count, sizeof *m), *v = calloc(l.count, sizeof *v);
    const double scale = 0.3, lr = 0.01;

    (void)state;
    options.weight_decay = 0.25;
    for (int64_t i = 0; i < l.count; i++) {
        w[i] = data(p.params)[i];
        data(p.gradients)[i] *= i % 5 ? 1 : 1e-8;       /* small enough for eps to matter */
    }
    for (int t = 1; t <= 4; t++) {
        for (int k = 0; k < l.parameters; k++)
            for (int64_t i = l.table[k].range.first; i < l.table[k].range.first + l.table[k].range.count; i++) {
                const double g = scale * data(p.gradients)[i];
                m[i] = 0.9 * m[i] + 0.1 * g;
                v[i] = 0.95 * v[i] + 0.05 * g * g;
                w[i] *= l.table[k].vector ? 1 : 1 - lr * 0.25;
                w[i] -= lr * m[i] / (1 - pow(0.9, t)) / (sqrt(v[i] / (1 - pow(0.95, t))) + 1e-8);
            }
        adamw_step(&o, lr, scale);
        for (int64_t i = 0; i < l.count; i++) {
            assert_true(fabs(data(p.params)[i] - w[i]) <= 1e-14 * (1 + fabs(w[i])));
            data(p.gradients)[i] *= -0.7;               /* with constant gradients the betas would cancel */
        }
    }
    free(w);
    free(m);
    free(v);
    shard_free(p);
    layout_free(l);
}

/* Over all slices and replicas of a model, the sum of squares has each element once. */
static void norms_count_each_element_once(void **state)
{
    const Config c = {2, 12, 3, 11, 8};
    const int slices = 2, replicas = 2;
    const Layout full = layout_create(c, FULL_MODEL);
    const Tensor x = flat("x", full.count);
    double expected = 0, sum = 0;

    (void)state;
    for (int64_t i = 0; i < full.count; i++) {
        data(x)[i] = random_normal(1, 0, 3, i);
        expected += data(x)[i] * data(x)[i];
    }
    for (int r = 0; r < replicas; r++)
        for (int s = 0; s < slices; s++) {
            const Layout l = layout_create(c, (Placement){.slice = s, .slices = slices, .embedding = true, .head = true,
                                                          .replica = r});
            ParamShard p = random_shard(&l);
            AdamW o = {&l, &p, 1, 0};
            for (Segment at = {0}; layout_next(&l, (Range){0, l.count}, &at);)
                memcpy(data(p.gradients) + at.in_range, data(x) + full.table[at.parameter].range.first + at.in_full,
                       at.count * sizeof(real));
            const double square = gradient_square_sum(&o);
            assert_true(r == 0 ? square > 0 : square == 0);
            sum += square;
            shard_free(p);
            layout_free(l);
        }
    assert_true(fabs(sum / expected - 1) < 1e-13);
    drop(x);
    layout_free(full);
}

/* ---- Data ---- */

static const char *file_of(const char *name, const void *content, int64_t bytes)
{
    const char *path = in_temporary(name);
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(content, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
    return path;
}

static void open_data(const char *path, int vocab, int seq)
{
    options.data = path;
    options.config = (Config){.layers = 1, .hidden = 2, .heads = 1, .vocab = vocab, .seq = seq};
    data_open();
}

static Batch batch_of(int64_t sequences, int64_t tokens)
{
    return (Batch){tensor_create(MEM_WORKSPACE, I32, "inputs", shape(sequences, tokens)),
                   tensor_create(MEM_WORKSPACE, I32, "targets", shape(sequences, tokens))};
}

static void batch_free(Batch b)
{
    drop(b.inputs);
    drop(b.targets);
}

static int32_t token_at(Tensor t, int64_t sequence, int64_t i)
{
    return ((const int32_t *)t.data)[sequence * t.shape[1] + i];
}

/* batch_load gives the same tokens of a step's sequences for every count and every first sequence and token. */
static void batches_do_not_depend_on_their_split(void **state)
{
    enum { T = 20, SEQUENCES = 12 };
    const int64_t step = 3;
    int64_t full[SEQUENCES][T + 1];

    (void)state;
    options.seed = 9;
    open_data(token_file(3000, 1000), 1000, T);
    for (int g = 0; g < SEQUENCES; g++)
        data_sequence(step, g, full[g]);
    for (int b = 1; b <= SEQUENCES; b++)
        for (int t = 1; t <= T; t += 3) {
            const Batch batch = batch_of(b, t);
            for (int from = 0; from + b <= SEQUENCES; from += b)
                for (int first = 0; first + t <= T; first++) {
                    batch_load(batch, step, from, first);
                    for (int i = 0; i < b * t; i++) {
                        assert_int_equal(token_at(batch.inputs, i / t, i % t), full[from + i / t][first + i % t]);
                        assert_int_equal(token_at(batch.targets, i / t, i % t), full[from + i / t][first + i % t + 1]);
                    }
                }
            batch_free(batch);
        }

    options.micro_batch = 5;
    const Batch one = batch_create(), other = batch_create();
    assert_true(one.inputs.shape[0] == 5 && one.targets.shape[1] == T);
    const int64_t bytes = tensor_bytes(one.inputs);
    batch_load(one, step, 0, 0);
    batch_load(other, step + 1, 0, 0);
    assert_memory_not_equal(one.inputs.data, other.inputs.data, bytes);
    batch_load(other, step, 5, 0);
    assert_memory_not_equal(one.inputs.data, other.inputs.data, bytes);
    options.seed = 10;
    batch_load(other, step, 0, 0);
    assert_memory_not_equal(one.inputs.data, other.inputs.data, bytes);
    options.seed = 9;
    batch_load(other, step, 0, 0);
    assert_memory_equal(one.inputs.data, other.inputs.data, bytes);
    assert_memory_equal(one.targets.data, other.targets.data, bytes);

    const int32_t given[5 * T] = {7, 8, 9};
    batch_tokens(one, given);
    assert_memory_equal(one.inputs.data, given, sizeof given);
    for (int i = 0; i < 5 * T; i++)
        assert_int_equal(token_at(one.targets, 0, i), -1);
    batch_free(one);
    batch_free(other);
}

/* Each token is its own place in the file. Batches reach every training token, to the last, and no other. Validation
 * batches begin at the first token of the last tenth and stay inside it. */
static void validation_tokens_stay_apart(void **state)
{
    enum { TOKENS = 1009, VALIDATION = 100, TRAINING = 909 };
    static const int lengths[] = {1, 7, 99};
    uint16_t tokens[TOKENS];

    (void)state;
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = i;
    const char *path = file_of("places.bin", tokens, sizeof tokens);
    for (int k = 0; k < 3; k++) {
        const int T = lengths[k];
        const Batch batch = batch_of(7, T);
        bool reached[TRAINING] = {false};

        open_data(path, TOKENS, T);
        assert_int_equal(data_tokens(), TRAINING);
        assert_int_equal(data_held_out(), VALIDATION);
        for (int64_t step = 0; step < 2000; step++) {
            batch_load(batch, step, 0, 0);
            for (int i = 0; i < 7 * T; i++) {
                const int32_t at = token_at(batch.inputs, 0, i);
                assert_true(at + 1 < TRAINING);
                assert_int_equal(token_at(batch.targets, 0, i), at + 1);
                reached[at] = true;
            }
        }
        for (int i = 0; i + 1 < TRAINING; i++)
            assert_true(reached[i]);
        for (int pieces = 1; pieces <= 40; pieces++)
            for (int i = 0; i < pieces; i++) {
                batch_validation(batch, i, pieces, 0);
                assert_true(i > 0 || token_at(batch.inputs, 0, 0) == TRAINING);
                for (int b = 0; b < 7; b++) {
                    const int64_t first = token_at(batch.inputs, b, 0);
                    const int64_t even = (int64_t)(VALIDATION - T - 1) * (i * 7 + b) / (pieces * 7 - 1);
                    assert_int_equal(first, TRAINING + even);
                    for (int t = 0; t < T; t++) {
                        assert_int_equal(token_at(batch.inputs, b, t), first + t);
                        assert_int_equal(token_at(batch.targets, b, t), first + t + 1);
                        assert_true(first + t + 1 < TOKENS);
                    }
                }
            }
        batch_free(batch);
    }
}

static void files_of_three_kinds(void **state)
{
    enum { TOKENS = 100 };
    uint8_t text[TOKENS];
    uint16_t words[TOKENS];
    struct {
        int32_t header[256];
        uint16_t tokens[TOKENS];
    } with_header = {.header = {20240520, 1, TOKENS}};
    int64_t sequence[6];

    (void)state;
    for (int i = 0; i < TOKENS; i++) {
        text[i] = 255 - i;
        words[i] = with_header.tokens[i] = 65535 - i;
    }
    const char *const paths[] = {file_of("plain", text, sizeof text), file_of("words.bin", words, sizeof words),
                                 file_of("llm_c.tokens", &with_header, sizeof with_header),
                                 file_of("llm_c.bin", &with_header, sizeof with_header)};
    for (int k = 0; k < 4; k++) {
        const int top = k ? 65535 : 255;
        open_data(paths[k], top + 1, 5);
        assert_string_equal(data_kind(), k ? "uint16 tokens" : "text, one token per byte");
        assert_int_equal(data_tokens(), 90);
        assert_int_equal(data_held_out(), 10);
        const int64_t start = random_bits(options.seed, STREAM_BATCHES, 4, 2) % 85;
        data_sequence(4, 2, sequence);
        for (int i = 0; i <= 5; i++)
            assert_int_equal(sequence[i], top - start - i);
    }
}

/* ---- Samples ---- */

static int64_t asked, ones;             /* tokens that were asked for, and how many 1s came before them */

/* Returns logits with odds of 3 to 1 for token 1. `row` must be the last token in the window. */
static Tensor odds(Batch batch, int64_t row)
{
    static Tensor logits;
    const int64_t T = batch.inputs.shape[1];

    if (!logits.data) {
        logits = flat("logits", 2);
        data(logits)[1] = log(3);
    }
    assert_int_equal(row, asked < T ? asked : T - 1);
    ones += token_at(batch.inputs, 0, row);
    asked++;
    return logits;
}

/* Validation takes full micro-batches: 64 sequences, rounded up to full micro-batches, or as many as the text has. */
static void evaluations_have_their_size(void **state)
{
    static const struct {
        int tokens, micro_batch, pieces;
    } cases[] = {{1010, 100, 1}, {1010, 4, 3}, {10010, 1, 64}, {10010, 4, 16}, {10010, 3, 22}, {10010, 65, 1},
                 {10010, 64, 1}, {10010, 63, 2}};
    uint16_t tokens[10010] = {0};

    (void)state;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        open_data(file_of("pieces.bin", tokens, cases[i].tokens * sizeof *tokens), 2, 7);
        options.micro_batch = cases[i].micro_batch;
        if (text_pieces() != cases[i].pieces)
            fail_msg("%lld validation tokens, micro-batches of %d: %lld micro-batches, not %d",
                     (long long)data_held_out(), cases[i].micro_batch, (long long)text_pieces(), cases[i].pieces);
    }
}

static int token_forced;

static Tensor forced(Batch batch, int64_t row)
{
    static Tensor logits;

    (void)batch, (void)row;
    if (!logits.data)
        logits = flat("forced", 257);
    memset(logits.data, 0, tensor_bytes(logits));
    data(logits)[token_forced] = 1000;
    return logits;
}

/* With a vocabulary of bytes, tokens are printed as bytes, control characters as '?'. Other tokens are numbers. */
static void tokens_are_printed(void **state)
{
    static const struct {
        int vocab, token;
        const char *printed;
    } cases[] = {{256, 'x', "\n>x\n"}, {256, '\n', "\n>\n\n"}, {256, '\t', "\n>\t\n"}, {256, 27, "\n>?\n"},
                 {256, 127, "\n>?\n"}, {256, 200, "\n>\310\n"}, {257, 65, "\n65 \n"}};
    const Batch batch = batch_of(1, 8);
    const int out = dup(1);
    char printed[32];

    (void)state;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        FILE *f = tmpfile();
        options.config.vocab = cases[i].vocab;
        options.prompt = ">", options.sample = 1, options.temperature = 0;
        token_forced = cases[i].token;
        fflush(stdout);
        dup2(fileno(f), 1);
        text_sample_from(forced, batch);
        fflush(stdout);
        dup2(out, 1);
        rewind(f);
        printed[fread(printed, 1, sizeof printed - 1, f)] = 0;
        fclose(f);
        assert_string_equal(printed, cases[i].printed);
    }
    close(out);
    batch_free(batch);
}

static void samples_have_their_odds(void **state)
{
    enum { COUNT = 4000 };
    static const double temperatures[] = {0, 1, 2}, probability[] = {1, 0.75, 0.633975};
    const Batch batch = batch_of(1, 8);
    const int out = dup(1), nowhere = open("/dev/null", O_WRONLY);

    (void)state;
    options.config.vocab = 2, options.prompt = "\1", options.sample = COUNT;
    for (int i = 0; i < 3; i++) {
        options.temperature = temperatures[i];
        asked = ones = 0;
        fflush(stdout);
        dup2(nowhere, 1);
        text_sample_from(odds, batch);
        fflush(stdout);
        dup2(out, 1);
        assert_int_equal(asked, COUNT);
        const double p = probability[i];
        assert_true(fabs((double)ones / COUNT - p) <= 5 * sqrt(p * (1 - p) / COUNT));
    }
    close(out), close(nowhere);
    batch_free(batch);
}

/* ---- Memory, and numbers in words ---- */

static void memory_is_tracked(void **state)
{
    const int64_t total = memory_total().used;

    (void)state;
    assert_int_equal(memory_total().peak, total);               /* this test is the first to allocate */
    memory_track(MEM_MASTER, 100);
    memory_track(MEM_MASTER, -70);
    memory_track(MEM_MASTER, 20);
    assert_int_equal(memory_entry(MEM_MASTER).used, 50);
    assert_int_equal(memory_entry(MEM_MASTER).peak, 100);
    memory_track(MEM_MASTER, -50);
    memory_track(MEM_COMMUNICATION, 90);
    assert_int_equal(memory_entry(MEM_COMMUNICATION).peak, 90);
    assert_int_equal(memory_total().used, total + 90);
    assert_int_equal(memory_total().peak, total + 100);         /* the peak of the sum, not the sum of peaks (190) */
    memory_track(MEM_MASTER, 15);
    assert_int_equal(memory_total().peak, total + 105);
    assert_non_null(strstr(memory_in_use(), "master 15 B, communication 90 B"));
    assert_null(strstr(memory_in_use(), "gradients"));

    Tensor t = tensor_create(MEM_GRADIENTS, I32, "t", shape(3, 5));
    assert_int_equal(memory_entry(MEM_GRADIENTS).used, 60);
    tensor_free(&t, MEM_GRADIENTS);
    tensor_free(&t, MEM_GRADIENTS);                             /* no effect: t is NONE now */
    assert_null(t.data);
    assert_int_equal(memory_entry(MEM_GRADIENTS).used, 0);
    assert_int_equal(memory_entry(MEM_GRADIENTS).peak, 60);

    memory_predict(MEM_MASTER, 40);
    memory_predict(MEM_MASTER, 2);
    memory_predict(MEM_OPTIMIZER, 8);
    memory_estimate(MEM_MASTER, 44, "4 N");
    assert_true(memory_entry(MEM_MASTER).predicted == 42 && memory_total().predicted == 50);
    assert_true(memory_entry(MEM_MASTER).playbook == 44);
    assert_string_equal(memory_entry(MEM_MASTER).formula, "4 N");
    assert_null(memory_entry(MEM_GRADIENTS).formula);
    memory_track(MEM_MASTER, -15);
    memory_track(MEM_COMMUNICATION, -90);
}

/* Tensors of any size are zeroed, writable to their end, and begin at a cache line. */
static void memory_is_zero(void **state)
{
    static const int64_t sizes[] = {0, 1, 1000, 100000, (4 << 20) / 8 - 1, (4 << 20) / 8, (4 << 20) / 8 + 1, 3 << 20};

    (void)state;
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            const Tensor t = flat("t", sizes[i]);
            assert_int_equal((uintptr_t)t.data % 64, 0);
            for (int64_t k = 0; k < sizes[i]; k++) {
                assert_true(data(t)[k] == 0);
                data(t)[k] = 1;
            }
            drop(t);
        }
}

static void bytes_in_words(void **state)
{
    static const struct {
        double bytes;
        const char *text;
    } expected[] = {{0, "0 B"}, {1, "1 B"}, {999, "999 B"}, {1000, "1.0 kB"}, {1049, "1.0 kB"}, {99949, "99.9 kB"},
                    {99951, "100 kB"}, {999499, "999 kB"}, {999501, "1.0 MB"}, {17.3e6, "17.3 MB"}, {3.1e9, "3.1 GB"},
                    {141e9, "141 GB"}, {2.5e12, "2.5 TB"}, {7e15, "7.0 PB"}, {1e18, "1.0 EB"}, {5e21, "5000 EB"},
                    {-1500, "-1.5 kB"}};
    const char *texts[8];

    (void)state;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        assert_string_equal(bytes_text(expected[i].bytes), expected[i].text);
    for (int i = 0; i < 8; i++)
        texts[i] = bytes_text(i);
    for (int i = 0; i < 8; i++)                                 /* each text is valid for seven more calls */
        assert_int_equal(texts[i][0], '0' + i);
}

static void numbers_in_words(void **state)
{
    (void)state;
    assert_string_equal(number_text(0), "0");
    assert_string_equal(number_text(999), "999");
    assert_string_equal(number_text(1000), "1,000");
    assert_string_equal(number_text(-999), "-999");
    assert_string_equal(number_text(-123456), "-123,456");
    assert_string_equal(number_text(12345678), "12,345,678");
    assert_string_equal(number_text(INT64_MAX), "9,223,372,036,854,775,807");
    assert_string_equal(number_text(INT64_MIN), "-9,223,372,036,854,775,808");
}

/* Every preset's layout has the playbook's number of parameters, and about the size in its name. */
static void presets_have_their_size(void **state)
{
    static const struct {
        char *name;
        double least, most;
        int heads, seq, micro_batch, accumulate;
    } presets[] = {{"tiny", 1e5, 2e5, 2, 64, 4, 1}, {"small", 8e5, 9e5, 4, 128, 8, 4},
                   {"10m", 10e6, 11e6, 6, 256, 8, 4}, {"124m", 123e6, 125e6, 12, 1024, 4, 8},
                   {"350m", 345e6, 360e6, 16, 1024, 4, 8},
                   {"774m", 770e6, 780e6, 20, 1024, 4, 8}, {"1.3b", 1.25e9, 1.35e9, 16, 2048, 2, 16},
                   {"7b", 6.5e9, 7e9, 32, 4096, 1, 16}, {"13b", 12.5e9, 13.1e9, 40, 4096, 1, 16},
                   {"70b", 65e9, 70e9, 64, 4096, 1, 16}, {"175b", 173e9, 177e9, 96, 2048, 1, 16},
                   {"405b", 403e9, 410e9, 128, 8192, 1, 16}};
    const Options before = options;

    (void)state;
    for (unsigned i = 0; i < sizeof presets / sizeof *presets; i++) {
        char *argv[] = {"test", "--preset", presets[i].name, NULL};
        options_parse("test", "A test.", 3, argv, NULL);
        const int64_t h = options.config.hidden, L = options.config.layers;
        const int64_t N = h * options.config.vocab + L * (12 * h * h + 13 * h) + 2 * h;
        Layout l = layout_create(options.config, FULL_MODEL);
        if (l.count != N || N < presets[i].least || N > presets[i].most)
            fail_msg("--preset %s has %lld parameters, by the formula %lld", presets[i].name, (long long)l.count,
                     (long long)N);
        layout_free(l);
        assert_true(options.config.heads == presets[i].heads && options.config.seq == presets[i].seq);
        assert_true(options.micro_batch == presets[i].micro_batch && options.accumulate == presets[i].accumulate);
    }
    options = before;
}

static void pretend_sets_the_hardware(void **state)
{
    const Options before = options;
    char *argv[] = {"test", "--pretend", "2,3,4", NULL};

    (void)state;
    options_parse("test", "A test.", 3, argv, NULL);
    assert_true(options.pretend_flops == 2e9);
    assert_true(options.pretend_bandwidth == 3e9);
    assert_true(fabs(options.pretend_latency - 4e-6) < 1e-18);
    options = before;
}

/* Each module of common/ includes only modules below it. layers.sh finds an include that points up, and a module that
 * common/ultrascale.h does not list. */
static void includes_point_down(void **state)
{
    static const char *const planted[][3] = {
        {"tensor.h", "run.h", "common/tensor.h includes common/run.h, but run stands above tensor"},
        {"comm/mpi.c", "../optimizer.h",
         "common/comm/mpi.c includes common/optimizer.h, but optimizer stands above comm"},
        {"other.h", "error.h", "lists no other.h"}};

    (void)state;
    run_well(SOURCE "/tests/layers.sh");
    for (int i = 0; i < 3; i++) {
        run_well("sh -c 'rm -rf common && cp -r " SOURCE "/common . && echo \"#include \\\"%s\\\"\" >>common/%s'",
                 planted[i][1], planted[i][0]);
        Result r = run(SOURCE "/tests/layers.sh .");
        if (r.status != 1 || !strstr(r.out, planted[i][2]))
            fail_msg("status %d, and not \"%s\", but %s%s", r.status, planted[i][2], r.out, r.err);
        result_free(r);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_tracked),
        cmocka_unit_test(memory_is_zero),
        cmocka_unit_test(philox_is_the_published_one),
        cmocka_unit_test(streams_are_apart),
        cmocka_unit_test(uniform_is_uniform),
        cmocka_unit_test(normal_is_normal),
        cmocka_unit_test(shards_cover_all),
        cmocka_unit_test(parameters_are_counted),
        cmocka_unit_test(presets_have_their_size),
        cmocka_unit_test(pretend_sets_the_hardware),
        cmocka_unit_test(slices_cover),
        cmocka_unit_test(layers_divide),
        cmocka_unit_test(replicas_own_nothing),
        cmocka_unit_test(segments_cover),
        cmocka_unit_test(weights_depend_only_on_their_place),
        cmocka_unit_test(weights_have_their_standard_deviation),
        cmocka_unit_test(views_of_a_buffer),
        cmocka_unit_test(views_of_units),
        cmocka_unit_test(parameters_of_other_ranks_have_no_view),
        cmocka_unit_test(learning_rate_rises_and_falls),
        cmocka_unit_test(norms_are_clipped),
        cmocka_unit_test(sharding_changes_no_update),
        cmocka_unit_test(adamw_is_adamw),
        cmocka_unit_test(norms_count_each_element_once),
        cmocka_unit_test(batches_do_not_depend_on_their_split),
        cmocka_unit_test(validation_tokens_stay_apart),
        cmocka_unit_test(files_of_three_kinds),
        cmocka_unit_test(evaluations_have_their_size),
        cmocka_unit_test(tokens_are_printed),
        cmocka_unit_test(samples_have_their_odds),
        cmocka_unit_test(bytes_in_words),
        cmocka_unit_test(numbers_in_words),
        cmocka_unit_test(includes_point_down),
    };

    comm_begin(&argc, &argv);
    device_init(0, 1, 1);               /* the loops are too short for more than one thread */
    comm_exit(cmocka_run_group_tests_name("shards", tests, NULL, NULL));
}
