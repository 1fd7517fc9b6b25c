#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../base/error.h"
#include "../base/formats.h"
#include "../base/random.h"

const Placement FULL_MODEL = {.slices = 1, .embedding = true, .head = true};

Placement replica(int number)
{
    Placement p = FULL_MODEL;

    p.replica = number;
    return p;
}

static int unit_count(Config c)
{
    return c.experts ? 2 * c.layers + 2 : c.layers + 2;
}

static int64_t gpt_neox_parameters(Config c)
{
    const int64_t h = c.hidden, f = c.expert_width, dense = 12 * h * h + 13 * h;
    const int64_t mixture = 4 * h * h + 8 * h + c.experts * h + c.experts * (2 * f * h + f + h);

    return h * c.vocab + c.layers * (c.experts ? mixture : dense) + 2 * h;
}

int64_t model_parameters(Config c)
{
    return model->parameters(c);
}

int64_t model_active_parameters(Config c)
{
    const int64_t idle = c.experts ? c.experts - c.top_k : 0;

    c.experts -= idle;
    return model_parameters(c) + c.layers * idle * c.hidden;            /* but the router has all its rows */
}

double model_flops_per_token(Config c)
{
    const double looked_up = c.untied ? (double)c.hidden * c.vocab : 0;

    return 6.0 * (model_active_parameters(c) - looked_up) + 12.0 * c.layers * c.hidden * c.seq;
}

/* ---- The layout ---- */

/* Appends a parameter to the table and the unit; a vector has no p.cols yet. local: it is on this rank. */
static void add(Layout *l, int unit, Placement at, bool local, ParamInfo p)
{
    p.vector = p.cols == 0;
    p.cols = p.vector ? 1 : p.cols;
    Range rows = {0, p.rows}, cols = {0, p.cols}, *split = p.row_group ? &rows : &cols;
    const int64_t group = p.row_group + p.col_group, groups = group ? split->count / group : 1;
    const int copies = at.slices > groups ? at.slices / groups : 1;

    if (group) {
        const Range slice = range_split(groups, at.slice / copies, at.slices / copies);
        *split = (Range){slice.first * group, slice.count * group};
    }
    p.first_row = rows.first, p.local_rows = rows.count;
    p.first_col = cols.first, p.local_cols = cols.count;
    p.range = (Range){l->count, local ? p.local_rows * p.local_cols : 0};
    p.owned = local && at.replica == 0 && at.slice % copies == 0;
    p.decay = !p.vector;
    if (!l->units[unit].count)
        l->units[unit].first = l->count;
    l->units[unit].count += p.range.count;
    l->count += p.range.count;
    l->table[l->parameters++] = p;
}

static ModelTable gpt_neox(Config c)
{
    enum { DOWN_BIAS = 5, UP_WEIGHT = 9 };      /* places in .block */
    const int64_t H = c.hidden, D = H / c.heads, F = c.experts ? c.expert_width : 4 * H;
    const double std = 0.02, into_residual = 0.02 / sqrt(2.0 * c.layers);
    ModelTable t = {
        .layers = "gpt_neox.layers",
        .experts = "mlp.experts",
        .embedding = {"gpt_neox.embed_in.weight", VIEW(Params, embedding), c.vocab, H, .row_group = 1, .std = std},
        .block = {
            {"input_layernorm.weight", VIEW(BlockParams, ln1_weight), H, .mean = 1},
            {"input_layernorm.bias", VIEW(BlockParams, ln1_bias), H},
            {"attention.dense.bias", VIEW(BlockParams, proj_bias), H},
            {"post_attention_layernorm.weight", VIEW(BlockParams, ln2_weight), H, .mean = 1},
            {"post_attention_layernorm.bias", VIEW(BlockParams, ln2_bias), H},
            {"mlp.dense_4h_to_h.bias", VIEW(BlockParams, down_bias), H},
            {"attention.query_key_value.weight", VIEW(BlockParams, qkv_weight), 3 * H, H, .row_group = 3 * D,
             .std = std},
            {"attention.query_key_value.bias", VIEW(BlockParams, qkv_bias), 3 * H, .row_group = 3 * D},
            {"attention.dense.weight", VIEW(BlockParams, proj_weight), H, H, .col_group = D, .std = into_residual},
            {"mlp.dense_h_to_4h.weight", VIEW(BlockParams, up_weight), F, H, .row_group = 1, .std = std},
            {"mlp.dense_h_to_4h.bias", VIEW(BlockParams, up_bias), F, .row_group = 1},
            {"mlp.dense_4h_to_h.weight", VIEW(BlockParams, down_weight), H, F, .col_group = 1, .std = into_residual}},
        .final = {
            {"gpt_neox.final_layer_norm.weight", VIEW(Params, final_weight), H, .mean = 1},
            {"gpt_neox.final_layer_norm.bias", VIEW(Params, final_bias), H}},
        .expert = {
            {"dense_h_to_4h.weight", VIEW(ExpertParams, up_weight), F, H, .row_group = 1, .std = std},
            {"dense_h_to_4h.bias", VIEW(ExpertParams, up_bias), F, .row_group = 1},
            {"dense_4h_to_h.weight", VIEW(ExpertParams, down_weight), H, F, .col_group = 1, .std = into_residual},
            {"dense_4h_to_h.bias", VIEW(ExpertParams, down_bias), H}}};

    if (c.experts) {                            /* the router, but no MLP: each expert is one */
        t.block[DOWN_BIAS] = (ParamInfo){"mlp.gate.weight", VIEW(BlockParams, router), c.experts, H, .std = std};
        t.block[UP_WEIGHT].name = NULL;
    }
    return t;
}

static int rows_of(const ParamInfo *table)
{
    int n = 0;

    while (table[n].name)
        n++;
    return n;
}

const Model *model = &(const Model){gpt_neox, gpt_neox_parameters};

Layout layout_create(Config config, Placement at)
{
    const ModelTable table = model->table(config);

    return layout_create_of(&table, config, at);
}

Layout layout_create_of(const ModelTable *table, Config config, Placement at)
{
    const int final = config.layers + 1;
    Layout l = {.config = config, .of_block = rows_of(table->block), .of_final = rows_of(table->final),
                .of_expert = rows_of(table->expert)};
    const int64_t per_layer = l.of_block + config.experts * l.of_expert;

    l.units = host_alloc(unit_count(config) * sizeof *l.units, "a layout");
    l.table = host_alloc((1 + config.layers * per_layer + l.of_final) * sizeof *l.table, "a layout");
    l.first_id = range_split(config.vocab, at.slice, at.slices).first;

    add(&l, 0, at, at.embedding || (at.head && !config.untied), table->embedding);
    l.table[0].owned &= at.embedding;           /* a copy that only the output projection uses has another owner */
    for (int layer = 0; layer < config.layers; layer++)
        for (int i = 0; i < l.of_block; i++) {
            ParamInfo p = table->block[i];
            p.name = new_text("%s.%d.%s", table->layers, layer, p.name);
            p.label = new_text("blocks.%d.%s", layer, p.label);
            add(&l, layer + 1, at, !at.layer || at.layer[layer], p);
        }
    for (int i = 0; i < l.of_final; i++)
        add(&l, final, at, at.head, table->final[i]);
    at.replica = at.expert_replica;
    at.slice = 0, at.slices = 1;                /* an expert is whole */
    for (int layer = 0; layer < config.layers; layer++)
        for (int i = 0; i < config.experts * l.of_expert; i++) {
            const int e = i / l.of_expert;
            ParamInfo p = table->expert[i % l.of_expert];
            p.name = new_text("%s.%d.%s.%d.%s", table->layers, layer, table->experts, e, p.name);
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

/* Returns `count` consecutive parameters of a unit as one flat tensor. */
static Tensor view_from(const Layout *layout, int parameter, int count, int unit, Tensor buffer, const char *name)
{
    const Range first = layout->table[parameter].range, last = layout->table[parameter + count - 1].range;

    if (!buffer.data || !first.count)
        return NONE;
    Tensor t = tensor_range(buffer, first.first - layout->units[unit].first, last.first + last.count - first.first);
    t.name = name;
    return t;
}

/* Sets the tensors of the struct `views` to `count` parameters of a unit. */
static void set_views(void *views, const Layout *layout, int parameter, int count, int unit, Tensor buffer)
{
    for (const ParamInfo *p = &layout->table[parameter], *end = p + count; p < end; p++, parameter++) {
        if (p->view == NO_VIEW)
            continue;
        const char *name = p->spans ? new_text("%.*s", (int)strcspn(p->label, " "), p->label) : p->label;
        const Tensor t = view_from(layout, parameter, p->spans ? p->spans : 1, unit, buffer, name);
        *(Tensor *)((char *)views + p->view) = p->vector || !t.data ? t
                                             : tensor_view(t, shape(tensor_count(t) / p->local_cols, p->local_cols));
    }
}

/* The first rows of a list that are not split. */
static int replicated_rows(const ParamInfo *table, int rows)
{
    int n = 0;

    while (n < rows && !table[n].row_group && !table[n].col_group)
        n++;
    return n;
}

Params params_view_units(const Layout *layout, const Tensor *units)
{
    const Config c = layout->config;
    const int layers = c.layers, final = layers + 1, at_final = 1 + layers * layout->of_block;
    const int at_experts = at_final + layout->of_final, per_layer = c.experts * layout->of_expert;
    Params p = {.blocks = host_alloc(layers * sizeof(BlockParams), "views"),
                .units = host_alloc(unit_count(c) * sizeof(Tensor), "views")};

    memcpy(p.units, units, unit_count(c) * sizeof(Tensor));
    set_views(&p, layout, 0, 1, 0, units[0]);
    for (int l = 0; l < layers; l++) {
        const int first = 1 + l * layout->of_block;
        const int replicated = replicated_rows(&layout->table[first], layout->of_block);
        BlockParams *b = &p.blocks[l];
        set_views(b, layout, first, layout->of_block, l + 1, units[l + 1]);
        b->replicated = view_from(layout, first, replicated, l + 1, units[l + 1], "replicated");
        b->experts = c.experts ? host_alloc(c.experts * sizeof(ExpertParams), "views") : NULL;
        for (int e = 0; e < c.experts; e++)
            set_views(&b->experts[e], layout, at_experts + l * per_layer + e * layout->of_expert, layout->of_expert,
                      final + 1 + l, units[final + 1 + l]);
    }
    set_views(&p, layout, at_final, layout->of_final, final, units[final]);
    p.final = view_from(layout, at_final, replicated_rows(&layout->table[at_final], layout->of_final), final,
                        units[final], "final");
    if (!p.head.data)
        p.head = p.embedding;
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
