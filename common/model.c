#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "formats.h"
#include "random.h"

const Placement FULL_MODEL = {.slices = 1, .embedding = true, .head = true};

Placement replica(int number)
{
    Placement p = FULL_MODEL;

    p.replica = number;
    return p;
}

/* Of a block, and the first of them, which are replicated; of a block with experts; of an expert. */
enum { BLOCK_PARAMETERS = 12, REPLICATED = 6, ROUTED_PARAMETERS = 9, EXPERT_PARAMETERS = 4 };

static int unit_count(Config c)
{
    return c.experts ? 2 * c.layers + 2 : c.layers + 2;
}

int64_t model_parameters(Config c)
{
    const int64_t h = c.hidden, f = c.expert_width, dense = 12 * h * h + 13 * h;
    const int64_t mixture = 4 * h * h + 8 * h + c.experts * h + c.experts * (2 * f * h + f + h);

    return h * c.vocab + c.layers * (c.experts ? mixture : dense) + 2 * h;
}

int64_t model_active_parameters(Config c)
{
    const int64_t idle = c.experts ? c.experts - c.top_k : 0;

    c.experts -= idle;
    return model_parameters(c) + c.layers * idle * c.hidden;            /* but the router has all its rows */
}

double model_flops_per_token(Config c)
{
    return 6.0 * model_active_parameters(c) + 12.0 * c.layers * c.hidden * c.seq;
}

/* ---- The layout ---- */

/* Appends a parameter to the table and the unit; a vector has no p.cols yet. local: it is on this rank. */
static void add(Layout *l, int unit, Placement at, bool local, ParamInfo p)
{
    p.vector = p.cols == 0;
    p.cols = p.vector ? 1 : p.cols;
    Range rows = {0, p.rows}, cols = {0, p.cols}, *split = p.row_group ? &rows : &cols;
    const int64_t group = p.row_group + p.col_group;

    if (group) {
        const Range slice = range_split(split->count / group, at.slice, at.slices);
        *split = (Range){slice.first * group, slice.count * group};
    }
    p.first_row = rows.first, p.local_rows = rows.count;
    p.first_col = cols.first, p.local_cols = cols.count;
    p.range = (Range){l->count, local ? p.local_rows * p.local_cols : 0};
    p.owned = local && at.replica == 0 && (group || at.slice == 0);
    p.decay = !p.vector;
    if (!l->units[unit].count)
        l->units[unit].first = l->count;
    l->units[unit].count += p.range.count;
    l->count += p.range.count;
    l->table[l->parameters++] = p;
}

Layout layout_create(Config config, Placement at)
{
    const int64_t H = config.hidden, D = H / config.heads, F = config.experts ? config.expert_width : 4 * H;
    const double std = 0.02, into_residual = 0.02 / sqrt(2.0 * config.layers);
    const ParamInfo router = {"mlp.gate.weight", "router", config.experts, H, .std = std};
    const ParamInfo block[BLOCK_PARAMETERS] = {
        {"input_layernorm.weight", "ln1_weight", H, .mean = 1},
        {"input_layernorm.bias", "ln1_bias", H},
        {"attention.dense.bias", "proj_bias", H},
        {"post_attention_layernorm.weight", "ln2_weight", H, .mean = 1},
        {"post_attention_layernorm.bias", "ln2_bias", H},
        config.experts ? router : (ParamInfo){"mlp.dense_4h_to_h.bias", "down_bias", H},
        {"attention.query_key_value.weight", "qkv_weight", 3 * H, H, .row_group = 3 * D, .std = std},
        {"attention.query_key_value.bias", "qkv_bias", 3 * H, .row_group = 3 * D},
        {"attention.dense.weight", "proj_weight", H, H, .col_group = D, .std = into_residual},
        {"mlp.dense_h_to_4h.weight", "up_weight", F, H, .row_group = 1, .std = std},
        {"mlp.dense_h_to_4h.bias", "up_bias", F, .row_group = 1},
        {"mlp.dense_4h_to_h.weight", "down_weight", H, F, .col_group = 1, .std = into_residual}};
    const ParamInfo expert[EXPERT_PARAMETERS] = {
        {"dense_h_to_4h.weight", "up_weight", F, H, .row_group = 1, .std = std},
        {"dense_h_to_4h.bias", "up_bias", F, .row_group = 1},
        {"dense_4h_to_h.weight", "down_weight", H, F, .col_group = 1, .std = into_residual},
        {"dense_4h_to_h.bias", "down_bias", H}};
    const int per_block = config.experts ? ROUTED_PARAMETERS : BLOCK_PARAMETERS;
    const int of_experts = config.experts * EXPERT_PARAMETERS;
    Layout l = {.config = config};

    l.units = host_alloc(unit_count(config) * sizeof *l.units, "a layout");
    l.table = host_alloc(((int64_t)config.layers * (per_block + of_experts) + 3) * sizeof *l.table, "a layout");
    l.first_id = range_split(config.vocab, at.slice, at.slices).first;

    add(&l, 0, at, at.embedding || at.head, (ParamInfo){"gpt_neox.embed_in.weight", "embedding", config.vocab, H,
                                                        .row_group = 1, .std = std});
    l.table[0].owned &= at.embedding;           /* a copy that only the output projection uses has another owner */
    for (int layer = 0; layer < config.layers; layer++)
        for (int i = 0; i < per_block; i++) {
            ParamInfo p = block[i];
            p.name = new_text("gpt_neox.layers.%d.%s", layer, p.name);
            p.label = new_text("blocks.%d.%s", layer, p.label);
            add(&l, layer + 1, at, !at.layer || at.layer[layer], p);
        }
    const int final = config.layers + 1;
    add(&l, final, at, at.head, (ParamInfo){"gpt_neox.final_layer_norm.weight", "final_weight", H, .mean = 1});
    add(&l, final, at, at.head, (ParamInfo){"gpt_neox.final_layer_norm.bias", "final_bias", H});
    at.replica = at.expert_replica;
    at.slice = 0, at.slices = 1;                /* an expert is whole */
    for (int layer = 0; layer < config.layers; layer++)
        for (int i = 0; i < of_experts; i++) {
            const int e = i / EXPERT_PARAMETERS;
            ParamInfo p = expert[i % EXPERT_PARAMETERS];
            p.name = new_text("gpt_neox.layers.%d.mlp.experts.%d.%s", layer, e, p.name);
            p.label = new_text("blocks.%d.experts.%d.%s", layer, e, p.label);
            add(&l, final + 1 + layer, at, (!at.layer || at.layer[layer]) && (!at.expert || at.expert[e]), p);
        }
    return l;
}

bool layout_next(const Layout *layout, Range range, Segment *s)
{
    /* the first element after the previous segment */
    const int64_t at = s->param ? s->in_range + s->count : 0, element = range.first + at;

    if (at >= range.count)
        return false;
    while (element >= layout->table[s->parameter].range.first + layout->table[s->parameter].range.count)
        s->parameter++;
    const ParamInfo *p = s->param = &layout->table[s->parameter];
    const int64_t in_param = element - p->range.first, row = in_param / p->local_cols, col = in_param % p->local_cols;
    /* full rows are consecutive in the full parameter too; a part of each row is a segment of its own */
    const int64_t longest = p->local_cols == p->cols ? p->range.count - in_param : p->local_cols - col;
    s->in_full = (p->first_row + row) * p->cols + p->first_col + col;
    s->in_range = at;
    s->count = longest < range.count - at ? longest : range.count - at;
    return true;
}

/* ---- Views ---- */

/* Returns `count` consecutive parameters as one flat tensor. */
static Tensor view_from(const Layout *layout, int parameter, int count, int unit, Tensor buffer, const char *name)
{
    const Range first = layout->table[parameter].range, last = layout->table[parameter + count - 1].range;

    if (!buffer.data || !first.count)
        return NONE;
    Tensor t = tensor_range(buffer, first.first - layout->units[unit].first, last.first + last.count - first.first);
    t.name = name;
    return t;
}

static Tensor view_of(const Layout *layout, int parameter, int unit, Tensor buffer)
{
    const ParamInfo *p = &layout->table[parameter];
    const Tensor t = view_from(layout, parameter, 1, unit, buffer, p->label);

    return p->vector || !t.data ? t : tensor_view(t, shape(p->local_rows, p->local_cols));
}

Params params_view_units(const Layout *layout, const Tensor *units)
{
    const Config c = layout->config;
    const int layers = c.layers, per_block = c.experts ? ROUTED_PARAMETERS : BLOCK_PARAMETERS;
    Params p = {.embedding = view_of(layout, 0, 0, units[0]),
                .blocks = host_alloc(layers * sizeof(BlockParams), "views"),
                .units = host_alloc(unit_count(c) * sizeof(Tensor), "views")};

    memcpy(p.units, units, unit_count(c) * sizeof(Tensor));
    for (int l = 0; l < layers; l++) {
        const int first = 1 + l * per_block;
        BlockParams *b = &p.blocks[l];
        Tensor *const views[BLOCK_PARAMETERS] = {
            &b->ln1_weight, &b->ln1_bias, &b->proj_bias, &b->ln2_weight, &b->ln2_bias,
            c.experts ? &b->router : &b->down_bias,
            &b->qkv_weight, &b->qkv_bias, &b->proj_weight, &b->up_weight, &b->up_bias, &b->down_weight};
        for (int i = 0; i < per_block; i++)
            *views[i] = view_of(layout, first + i, l + 1, units[l + 1]);
        b->replicated = view_from(layout, first, REPLICATED, l + 1, units[l + 1], "replicated");
    }
    const int first = 1 + layers * per_block, unit = layers + 1;
    p.final_weight = view_of(layout, first, unit, units[unit]);
    p.final_bias = view_of(layout, first + 1, unit, units[unit]);
    p.final = view_from(layout, first, 2, unit, units[unit], "final");
    for (int i = 0; i < layers * c.experts; i++) {
        const int l = i / c.experts, e = i % c.experts, of_layer = unit + 1 + l;
        if (e == 0)
            p.blocks[l].experts = host_alloc(c.experts * sizeof(ExpertParams), "views");
        ExpertParams *x = &p.blocks[l].experts[e];
        Tensor *const views[EXPERT_PARAMETERS] = {&x->up_weight, &x->up_bias, &x->down_weight, &x->down_bias};
        for (int k = 0; k < EXPERT_PARAMETERS; k++)
            *views[k] = view_of(layout, first + 2 + i * EXPERT_PARAMETERS + k, of_layer, units[of_layer]);
    }
    return p;
}

Params params_view(const Layout *layout, Tensor buffer)
{
    const int units = unit_count(layout->config);
    Tensor *ranges = host_alloc(units * sizeof *ranges, "views");

    for (int u = 0; u < units; u++)
        ranges[u] = tensor_range(buffer, layout->units[u].first, layout->units[u].count);
    Params p = params_view_units(layout, ranges);
    p.buffer = buffer;
    free(ranges);
    return p;
}

/* ---- Initial weights ---- */

void params_init(const Layout *layout, int64_t first, Tensor params, uint64_t seed)
{
    const Range range = {first, tensor_count(params)};
    real *host = host_alloc(range.count * sizeof *host, "initial weights");

    for (Segment s = {0}; layout_next(layout, range, &s);) {
        const double mean = s.param->mean, std = s.param->std;
#pragma omp parallel for if (s.count > 4096)
        for (int64_t i = 0; i < s.count; i++)
            host[s.in_range + i] = (real)(std == 0 ? mean : mean
                + std * random_normal(seed, STREAM_PARAMETERS, s.parameter, s.in_full + i));
    }
    tensor_from_host(params, host);
    free(host);
}
