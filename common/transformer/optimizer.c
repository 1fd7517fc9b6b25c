#include "optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../comm/comm.h"
#include "../base/device.h"
#include "../base/error.h"
#include "ops.h"
#include "../base/options.h"

/* GPT-3's (Brown et al. 2020, appendix B), and most models' since. */
static const double BETA1 = 0.9, BETA2 = 0.95, EPS = 1e-8;

/* Returns the parameter's elements in the shard, counted from the shard's first. */
static Range overlap(const ParamInfo *info, const ParamShard *shard)
{
    const int64_t begin = shard->first, end = begin + tensor_count(shard->params);
    const int64_t first = info->range.first > begin ? info->range.first : begin;
    const int64_t after = info->range.first + info->range.count < end ? info->range.first + info->range.count : end;

    return (Range){first - begin, after > first ? after - first : 0};
}

/* Updates all shards. The caller sets a's learning rate and gradient scale. */
static void update(AdamW *o, AdamWArguments a)
{
    const ParamInfo *table = o->layout->table;

    o->step++;
    a.beta1 = BETA1, a.beta2 = BETA2, a.eps = EPS;
    a.correction1 = 1 - pow(BETA1, o->step);
    a.correction2 = 1 - pow(BETA2, o->step);
    for (int i = 0; i < o->count; i++) {
        const ParamShard *p = &o->shards[i];
        for (int k = 0; k < o->layout->parameters;) {
            Range r = overlap(&table[k], p);
            const bool decay = table[k].decay;
            for (k++; k < o->layout->parameters && table[k].decay == decay; k++)
                r.count += overlap(&table[k], p).count;         /* one call for neighbors with the same decay */
            a.weight_decay = decay ? options.weight_decay : 0;
            if (r.count)
                adamw_update(tensor_range(p->params, r.first, r.count),
                             p->copy.data ? tensor_range(p->copy, r.first, r.count) : NONE,
                             tensor_range(p->m, r.first, r.count), tensor_range(p->v, r.first, r.count),
                             tensor_range(p->gradients, r.first, r.count), a);
        }
    }
}

void adamw_step(AdamW *optimizer, double lr, double gradient_scale)
{
    update(optimizer, (AdamWArguments){.lr = lr, .gradient_scale = gradient_scale});
}

void adamw_step_scaled(AdamW *optimizer, double lr, Tensor gradient_scale)
{
    update(optimizer, (AdamWArguments){.lr = lr, .scale = gradient_scale});
}

void gradient_square_sum_into(Tensor sum, const AdamW *o)
{
    const Layout *layout = o->layout;
    const int64_t capacity = layout->parameters + o->count;     /* a shard may end within a parameter */
    Tensor *owned = host_alloc(capacity * sizeof *owned, "a list of gradients");
    int count = 0;

    for (int i = 0; i < o->count; i++)
        for (int k = 0; k < layout->parameters; k++) {
            const Range r = overlap(&layout->table[k], &o->shards[i]);
            if (layout->table[k].owned && r.count)
                owned[count++] = tensor_range(o->shards[i].gradients, r.first, r.count);
        }
    square_sum_into(sum, owned, count);
    free(owned);
}

double gradient_square_sum(const AdamW *optimizer)
{
    double total;
    const Tensor sum = {.data = device_alloc(sizeof total), .name = "squares", .dtype = F64};

    gradient_square_sum_into(sum, optimizer);
    device_download(&total, sum.data, sizeof total);
    device_free(sum.data, sizeof total);
    return total;
}

/* A rank's elements of one parameter: the first one in the full parameter, how many, and a hash of their bits. */
typedef struct {
    int64_t parameter, first, count, dtype;
    uint64_t hash;
} LocalElements;

static uint64_t hash_of(uint64_t hash, Tensor t)
{
    const int64_t bytes = tensor_bytes(t);
    char *host = host_alloc(bytes, "--check");

    device_download(host, t.data, bytes);
    for (int64_t i = 0; i < bytes; i += sizeof hash) {          /* FNV-1a, eight bytes at a time */
        uint64_t word = 0;
        memcpy(&word, host + i, bytes - i < (int64_t)sizeof word ? bytes - i : (int64_t)sizeof word);
        hash = (hash ^ word) * 1099511628211u;
    }
    free(host);
    return hash;
}

void adamw_check_replicas(const AdamW *o, const char *when)
{
    /* a shard may end within a parameter; full_params adds each parameter once more */
    const int64_t capacity = 2 * o->layout->parameters + o->count;
    const int ranks = comm_size(world);
    LocalElements *mine = host_alloc(capacity * sizeof *mine, "--check"), *e = mine;
    LocalElements *all = host_alloc(capacity * ranks * sizeof *all, "--check");

    for (int i = 0; i < o->count + (o->full_params.data != NULL); i++) {
        const ParamShard shard = i < o->count ? o->shards[i] : (ParamShard){.params = o->full_params};
        for (int k = 0; k < o->layout->parameters; k++) {
            const Range r = overlap(&o->layout->table[k], &shard);
            Segment s = {0};
            if (!r.count || !layout_next(o->layout, (Range){shard.first + r.first, r.count}, &s))
                continue;
            *e++ = (LocalElements){k, s.in_full, r.count, shard.params.dtype,
                                   hash_of(14695981039346656037u, tensor_range(shard.params, r.first, r.count))};
        }
    }
    comm_gather_host(world, all, mine, capacity * sizeof *mine);
    for (e = mine; e < mine + capacity; e++)
        for (const LocalElements *other = all; other < all + capacity * ranks; other++)
            if (e->count && e->parameter == other->parameter && e->first == other->first && e->count == other->count
                && e->dtype == other->dtype && e->hash != other->hash)
                fail("%s has drifted %s: ranks %d and %d hold the same elements of it, but different numbers",
                     o->layout->table[e->parameter].label, when, comm_rank(world), (int)((other - all) / capacity));
    free(mine);
    free(all);
}

double clip_scale(double norm)
{
    return options.clip > 0 && norm + 1e-6 > options.clip ? options.clip / (norm + 1e-6) : 1;
}

double learning_rate(int64_t step)
{
    const int64_t t = step + 1;
    const double pi = 3.141592653589793;

    if (t < options.warmup)
        return options.lr * t / options.warmup;
    if (!options.decay_steps)
        return options.lr;
    if (t >= options.decay_steps)
        return options.min_lr;
    const double done = (double)(t - options.warmup) / (options.decay_steps - options.warmup);
    return options.min_lr + (options.lr - options.min_lr) * 0.5 * (1 + cos(pi * done));
}
