/* Tests of the modules of common/ without a test program of their own: random numbers, initial weights, the optimizer,
 * batches, samples, the trace, the memory tracker. What the programs' tests against 01 prove (tests/programs) is not
 * repeated: that weights and batches do not depend on the ranks, that views and segments are of the right elements.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../common/ultrascale.h"
#include "../../common/base/random.h"
#include "../harness.h"
#include "../tensors.h"

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

    for (int i = 0; i < 3; i++) {
        const Philox p = philox(known[i].key, known[i].high, known[i].low);
        assert_memory_equal(p.word, known[i].word, sizeof p.word);
    }
}

/* ---- Initial weights ---- */

static void weights_have_their_standard_deviation(void **state)
{
    const Config c = {3, 64, 4, 97, 8};
    const Layout l = layout_create(c, FULL_MODEL);
    const Tensor all = empty("all", shape(l.count));

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
    guarded_release();
}

/* A model of other blocks than GPT's: its views, names and initial weights are those of its rows. */
static void a_program_brings_its_own_blocks(void **state)
{
    enum { H = 6, F = 10, V = 7 };
    const ModelTable model = {
        .layers = "model.layers",
        .embedding = {"model.embed.weight", VIEW(Params, embedding), V, H, .row_group = 1, .std = 1},
        .block = {{"norm.weight", VIEW(BlockParams, ln2_weight), H, .mean = 3},
                  {"gate.weight", VIEW(BlockParams, up_weight), F, H, .row_group = 2, .std = 1},
                  {"down.weight", VIEW(BlockParams, down_weight), H, F, .col_group = 1, .std = 1}},
        .final = {{"model.norm.weight", VIEW(Params, final_weight), H, .mean = 5}}};
    const Layout l = layout_create_of(&model, (Config){2, H, 1, V, 8},
                                      (Placement){1, 2, .embedding = true, .head = true});
    const Tensor all = empty("all", shape(l.count));
    const Params p = params_view(&l, all);
    const BlockParams *b = &p.blocks[1];

    params_init(&l, 0, all, 1);
    assert_int_equal(l.parameters, 8);
    /* slice 1 of 2: 4 of the vocabulary's 7 rows, 6 of 10 rows (groups of 2), 5 of 10 columns */
    assert_int_equal(l.count, 4 * H + 2 * (H + 6 * H + H * 5) + H);
    assert_string_equal(l.table[5].name, "model.layers.1.gate.weight");
    assert_string_equal(b->up_weight.name, "blocks.1.up_weight");
    assert_true(p.embedding.shape[0] == 4 && b->up_weight.shape[0] == 6 && b->down_weight.shape[1] == 5);
    assert_true(!b->ln1_weight.data && !b->qkv_weight.data && !p.final_bias.data && !b->experts);
    assert_true(data(b->ln2_weight)[0] == 3 && data(p.final_weight)[H - 1] == 5);
    assert_true(b->replicated.data == b->ln2_weight.data && tensor_count(b->replicated) == H);
    guarded_release();
}

/* ---- The optimizer ---- */

static void learning_rate_rises_and_falls(void **state)
{
    const struct {
        int warmup, decay;
        int64_t step;
        double rate;
    } expected[] = {{20, 120, 0, 0.04}, {20, 120, 9, 0.4}, {20, 120, 18, 0.76}, {20, 120, 19, 0.8},
                    {20, 120, 44, 0.2 + 0.3 * (1 + sqrt(0.5))}, {20, 120, 69, 0.5}, {20, 120, 119, 0.2},
                    {20, 120, 120, 0.2}, {20, 120, 1000000, 0.2}, {20, 0, 9, 0.4}, {20, 0, 19, 0.8}, {20, 0, 20, 0.8},
                    {20, 0, 100000, 0.8}, {0, 0, 0, 0.8}, {0, 0, 50, 0.8}, {1, 0, 0, 0.8}, {1, 0, 1, 0.8},
                    {1, 11, 0, 0.8}, {1, 11, 5, 0.5}, {0, 10, 4, 0.5}, {0, 10, 9, 0.2}};

    options.lr = 0.8, options.min_lr = 0.2;
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        options.warmup = expected[i].warmup, options.decay_steps = expected[i].decay;
        assert_true(fabs(learning_rate(expected[i].step) - expected[i].rate) < 1e-14);
    }
}

static void norms_are_clipped(void **state)
{
    options.clip = 1;
    assert_true(clip_scale(0) == 1 && clip_scale(0.5) == 1 && clip_scale(1 - 2e-6) == 1);
    assert_true(fabs(clip_scale(1) - 1 / 1.000001) < 1e-15);
    assert_true(fabs(clip_scale(8) - 1 / 8.000001) < 1e-15);
    options.clip = 0.25;
    assert_true(fabs(clip_scale(8) - 0.25 / 8.000001) < 1e-15);
    options.clip = 0;
    assert_true(clip_scale(1e30) == 1);
}

/* Random weights and gradients for all of a layout; every third gradient is 0, every fifth small enough for AdamW's eps
 * to matter. */
static ParamShard random_shard(const Layout *l)
{
    const Shape all = shape(l->count);
    ParamShard p = {.params = empty("params", all), .gradients = empty("gradients", all),
                    .m = zeroed(REAL, "m", all), .v = zeroed(REAL, "v", all)};

    for (int64_t i = 0; i < l->count; i++) {
        data(p.params)[i] = random_normal(1, 0, 1, i);
        data(p.gradients)[i] = i % 3 ? random_normal(1, 0, 2, i) * (i % 5 ? 1 : 1e-8) : 0;
    }
    return p;
}

/* Betas are 0.9 and 0.95, eps is 1e-8. Only matrices and the embedding decay. The update is the same, bit for bit, for
 * any split of the layout into shards and any order of them. */
static void adamw_is_adamw(void **state)
{
    enum { SHARDS = 5 };
    static const Config configs[] = {{1, 2, 1, 2, 8}, {4, 24, 3, 53, 8}};
    const double scale = 0.3, lr = 0.01;

    options.weight_decay = 0.25;
    for (int trial = 0; trial < 12; trial++) {          /* the full model, or the last of one to three slices */
        const int slices = trial % 2 ? trial / 2 % 3 + 1 : 0;
        const Layout l = layout_create(configs[trial / 6], slices ? (Placement){slices - 1, slices, .embedding = true}
                                                                  : FULL_MODEL);
        ParamShard full = random_shard(&l), same = random_shard(&l), shards[SHARDS];
        AdamW one = {&l, &full, 1, 0}, many = {&l, shards, SHARDS, 0};
        double *w = malloc(l.count * sizeof *w), *m = calloc(l.count, sizeof *m), *v = calloc(l.count, sizeof *v);
        int64_t first = 0;

        for (int i = SHARDS - 1; i >= 0; i--) {
            const int64_t count = i ? random_below((l.count - first) / 2 + 1) : l.count - first;
            shards[i] = (ParamShard){first, tensor_range(same.params, first, count),
                                     tensor_range(same.gradients, first, count), tensor_range(same.m, first, count),
                                     tensor_range(same.v, first, count)};
            first += count;
        }
        for (int64_t i = 0; i < l.count; i++)
            w[i] = data(full.params)[i];
        for (int t = 1; t <= 4; t++) {
            for (int k = 0; k < l.parameters; k++)
                for (int64_t i = l.table[k].range.first; i < l.table[k].range.first + l.table[k].range.count; i++) {
                    const double g = scale * data(full.gradients)[i];
                    m[i] = 0.9 * m[i] + 0.1 * g;
                    v[i] = 0.95 * v[i] + 0.05 * g * g;
                    w[i] *= l.table[k].vector ? 1 : 1 - lr * 0.25;
                    w[i] -= lr * m[i] / (1 - pow(0.9, t)) / (sqrt(v[i] / (1 - pow(0.95, t))) + 1e-8);
                }
            adamw_step(&one, lr, scale);
            adamw_step(&many, lr, scale);
            for (int64_t i = 0; i < l.count; i++) {
                assert_true(fabs(data(full.params)[i] - w[i]) <= 1e-14 * (1 + fabs(w[i])));
                data(full.gradients)[i] = data(same.gradients)[i] *= -0.7;      /* constant: the betas would cancel */
            }
        }
        assert_int_equal(one.step, 4);
        assert_memory_equal(full.params.data, same.params.data, l.count * sizeof(real));
        assert_memory_equal(full.m.data, same.m.data, l.count * sizeof(real));
        assert_memory_equal(full.v.data, same.v.data, l.count * sizeof(real));
        assert_true(fabs(gradient_square_sum(&one) - gradient_square_sum(&many)) <= 1e-13 * gradient_square_sum(&one));
        free(w), free(m), free(v);
        guarded_release();
    }
}

/* ---- Data ---- */

static void open_data(const char *path, int vocab, int seq)
{
    options.data = path;
    options.config = (Config){.layers = 1, .hidden = 2, .heads = 1, .vocab = vocab, .seq = seq};
    data_open();
}

static Batch batch_of(int64_t sequences, int64_t tokens)
{
    return (Batch){guarded(I32, "inputs", shape(sequences, tokens)), guarded(I32, "targets", shape(sequences, tokens))};
}

static int32_t token_at(Tensor t, int64_t sequence, int64_t i)
{
    return ((const int32_t *)t.data)[sequence * t.shape[1] + i];
}

/* A batch depends on seed, step and sequence, and on nothing else. */
static void batches_are_a_function(void **state)
{
    enum { T = 20 };
    const int64_t step = 3;

    options.seed = 9;
    open_data(token_file(3000, 1000), 1000, T);
    options.micro_batch = 5;
    const Batch one = batch_create(), other = batch_create();
    assert_true(one.inputs.shape[0] == 5 && one.targets.shape[1] == T);
    batch_load(one, step, 0, 0);
    for (int i = 0; i < 4; i++) {               /* seed, step or sequence differ; the last batch is the same */
        options.seed = 9 + (i == 0);
        batch_load(other, step + (i == 1), 5 * (i == 2), 0);
        assert_true(!memcmp(one.inputs.data, other.inputs.data, tensor_bytes(one.inputs)) == (i == 3));
    }
    assert_memory_equal(one.targets.data, other.targets.data, tensor_bytes(one.targets));
}

/* Each token is its own place in the file. Batches reach every training token, to the last, and no other. Validation
 * batches begin at the first token of the last tenth and stay inside it. */
static void validation_tokens_stay_apart(void **state)
{
    enum { TOKENS = 1009, VALIDATION = 100, TRAINING = 909 };
    static const int lengths[] = {1, 7, 99};
    uint16_t tokens[TOKENS];

    for (int i = 0; i < TOKENS; i++)
        tokens[i] = i;
    const char *path = write_file("places.bin", tokens, sizeof tokens);
    for (int k = 0; k < 3; k++) {
        const int T = lengths[k];
        const Batch batch = batch_of(7, T);
        bool reached[TRAINING] = {false};

        open_data(path, TOKENS, T);
        assert_int_equal(data_file.training, TRAINING);
        assert_int_equal(data_file.validation, VALIDATION);
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
        guarded_release();
    }
}

/* Text; and tokens of 2 and 4 bytes, named *.bin or with llm.c's headers. Their numbers reach the largest that the
 * bytes or --vocab can have. */
static void files_of_all_kinds(void **state)
{
    enum { TOKENS = 100 };
    static const char *const kinds[] = {"text, one token per byte", "uint16 tokens", "uint32 tokens"};
    uint8_t text[TOKENS];
    struct {
        int32_t header[256];
        uint16_t tokens[TOKENS];
    } gpt2 = {.header = {20240520, 1, TOKENS}};
    struct {
        int32_t header[256];
        uint32_t tokens[TOKENS];
    } llama3 = {.header = {20240801, 7, TOKENS}};
    int64_t sequence[6];

    for (int i = 0; i < TOKENS; i++) {
        text[i] = i % 5 ? 127 - i : 255 - i;
        gpt2.tokens[i] = 65535 - i;
        llama3.tokens[i] = 128255 - i;
    }
    const struct {
        const char *path;
        int bytes, vocab;
    } files[] = {
        {write_file("plain", text, sizeof text), 1, 256},
        {write_file("words.bin", gpt2.tokens, sizeof gpt2.tokens), 2, 65536},
        {write_file("llm_c.tokens", &gpt2, sizeof gpt2), 2, 65536},
        {write_file("llm_c.bin", &gpt2, sizeof gpt2), 2, 100000},
        {write_file("long_words.bin", llama3.tokens, sizeof llama3.tokens), 4, 128256},
        {write_file("llama3.tokens", &llama3, sizeof llama3), 4, 128256},
        {write_file("llama3.bin", &llama3, sizeof llama3), 4, 128256},
    };
    for (size_t k = 0; k < sizeof files / sizeof *files; k++) {
        open_data(files[k].path, files[k].vocab, 5);
        assert_string_equal(data_file.kind, kinds[files[k].bytes / 2]);
        assert_int_equal(data_file.training, 90);
        assert_int_equal(data_file.validation, 10);
        const int64_t start = random_bits(options.seed, STREAM_BATCHES, 4, 2) % 85;
        data_sequence(4, 2, sequence);
        for (int i = 0; i <= 5; i++)
            assert_int_equal(sequence[i], files[k].bytes == 1 ? text[start + i] : files[k].bytes == 2
                                          ? gpt2.tokens[start + i] : llama3.tokens[start + i]);
    }
}

/* ---- Samples ---- */

static int64_t asked, ones;             /* tokens that were asked for, and how many 1s came before them */

static Tensor final, embedding, logits; /* of a model with hidden size 1 */

/* Gives the last token in the window, and no other, odds of 3 to 1 for token 1. */
static void odds(Batch batch)
{
    const int64_t T = batch.inputs.shape[1], row = asked < T ? asked : T - 1;

    memset(data(final), 0, tensor_bytes(final));
    data(final)[row] = log(3);
    ones += token_at(batch.inputs, 0, row);
    asked++;
}

static void sample(double temperature)
{
    const Batch batch = batch_of(1, 8);
    const int out = dup(1);

    options.temperature = temperature;
    final = empty("final", shape(8, 1));
    embedding = zeroed(REAL, "embedding", shape(options.config.vocab, 1));
    logits = empty("logits", shape(1, options.config.vocab));
    data(embedding)[1] = 1;
    fflush(stdout);
    assert_non_null(freopen("/dev/null", "w", stdout));
    text_sample(odds, final, embedding, logits, batch);
    fflush(stdout);
    dup2(out, 1);
    close(out);
    guarded_release();
}

static void samples_have_their_odds(void **state)
{
    enum { COUNT = 4000 };
    static const double temperatures[] = {0, 1, 2}, probability[] = {1, 0.75, 0.633975};

    options.config.vocab = 2, options.prompt = "\1", options.sample = COUNT;
    for (int i = 0; i < 3; i++) {
        const double p = probability[i];
        asked = ones = 0;
        sample(temperatures[i]);
        assert_int_equal(asked, COUNT);
        assert_true(fabs((double)ones / COUNT - p) <= 5 * sqrt(p * (1 - p) / COUNT));
    }
}

/* ---- The trace ---- */

/* A transfer that began before the recorded step leaves its spans alone; one in flight at its end has an end. */
static void transfers_cross_a_recorded_step(void **state)
{
    TraceSpan *spans;

    trace_open(0, clock_seconds());
    const int before = trace_transfer_begin("all_gather", "dp");
    trace_step_begins();
    trace_transfer_end(before);
    const int after = trace_transfer_begin("send", "pp");
    trace_step_ends();
    assert_int_equal(trace_spans(&spans), 2);
    assert_string_equal(spans[0].name, "step");
    assert_string_equal(spans[1].name, "send");
    assert_true(trace_seconds(&spans[0].end) >= trace_seconds(&spans[0].begin));
    trace_transfer_end(after);
}

/* ---- Memory, and numbers in words ---- */

static void memory_is_tracked(void **state)
{
    const int64_t total = memory_total().used;

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

static void numbers_in_words(void **state)
{
    static const struct { double bytes; const char *text; } sizes[] = {
        {0, "0 B"}, {999, "999 B"}, {1000, "1.0 kB"}, {99951, "100 kB"}, {999501, "1.0 MB"}, {-1500, "-1.5 kB"}};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_string_equal(bytes_text(sizes[i].bytes), sizes[i].text);
    assert_string_equal(number_text(1000), "1,000");
    assert_string_equal(number_text(INT64_MIN), "-9,223,372,036,854,775,808");
}

/* Every preset's layout has the playbook's number of parameters, and about the size in its name. */
static void presets_have_their_size(void **state)
{
    static const struct {
        char *name;
        double least, most;
    } presets[] = {{"tiny", 1e5, 2e5}, {"small", 8e5, 9e5}, {"10m", 10e6, 11e6}, {"124m", 123e6, 125e6},
                   {"350m", 345e6, 360e6}, {"774m", 770e6, 780e6}, {"1.3b", 1.25e9, 1.35e9}, {"7b", 6.5e9, 7e9},
                   {"13b", 12.5e9, 13.1e9}, {"70b", 65e9, 70e9}, {"175b", 173e9, 177e9}, {"405b", 403e9, 410e9}};
    const Options before = options;

    for (unsigned i = 0; i < sizeof presets / sizeof *presets; i++) {
        char *argv[] = {"test", "--preset", presets[i].name, NULL};
        options_parse("A test.", 3, argv, NULL);
        const int64_t h = options.config.hidden, L = options.config.layers;
        const int64_t N = h * options.config.vocab + L * (12 * h * h + 13 * h) + 2 * h;
        Layout l = layout_create(options.config, FULL_MODEL);
        if (l.count != N || N < presets[i].least || N > presets[i].most)
            fail_msg("--preset %s has %lld parameters, by the formula %lld", presets[i].name, (long long)l.count,
                     (long long)N);
    }
    options = before;
}

/* Each module of common/ includes only modules below it. layers.sh finds an include that points up. */
static void includes_point_down(void **state)
{
    run_well(SOURCE "/tests/layers.sh");
    run_well("sh -c 'cp -r " SOURCE "/common . && echo \"#include \\\"../run/run.h\\\"\" >>common/base/tensor.h'");
    expect(run(SOURCE "/tests/layers.sh ."), 1,
           "common/base/tensor.h includes common/run/run.h, but run stands above tensor");
}

/* No source has a long line, a tab, or a blank at the end. lines.sh finds each. */
static void lines_fit(void **state)
{
    run_well(SOURCE "/tests/lines.sh");
    run_well("sh -c 'mkdir lines && printf \"%%121s\\n\\tint i;\\nint j; \\n\" x >lines/a.c'");
    expect(run(SOURCE "/tests/lines.sh lines"), 1,
           "./a.c:1: has more than 120 columns|./a.c:2: has a tab|./a.c:3: ends with a blank");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_tracked),
        cmocka_unit_test(philox_is_the_published_one),
        cmocka_unit_test(presets_have_their_size),
        cmocka_unit_test(weights_have_their_standard_deviation),
        cmocka_unit_test(a_program_brings_its_own_blocks),
        cmocka_unit_test(learning_rate_rises_and_falls),
        cmocka_unit_test(norms_are_clipped),
        cmocka_unit_test(adamw_is_adamw),
        cmocka_unit_test(batches_are_a_function),
        cmocka_unit_test(validation_tokens_stay_apart),
        cmocka_unit_test(files_of_all_kinds),
        cmocka_unit_test(transfers_cross_a_recorded_step),
        cmocka_unit_test(samples_have_their_odds),
        cmocka_unit_test(numbers_in_words),
        cmocka_unit_test(includes_point_down),
        cmocka_unit_test(lines_fit),
    };

    comm_begin(&argc, &argv);
    threads_set(1, 1);                  /* the loops are too short for more than one thread */
    device_init(0);
    comm_exit(cmocka_run_group_tests_name("parts", tests, NULL, NULL));
}
