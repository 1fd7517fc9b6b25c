#include "optimizer.h"

#include <math.h>

#include "ops.h"
#include "options.h"

/* As GPT-3's (Brown et al. 2020, appendix B), and those of most models since. */
static const double BETA1 = 0.9, BETA2 = 0.95, EPS = 1e-8;

/* The elements of a parameter that a part holds, counted from the part's first. */
static Range overlap(const ParamInfo *info, const Part *part)
{
    const int64_t begin = part->first, end = begin + tensor_count(part->params);
    const int64_t first = info->range.first > begin ? info->range.first : begin;
    const int64_t after = info->range.first + info->range.count < end ? info->range.first + info->range.count : end;

    return (Range){first - begin, after > first ? after - first : 0};
}

void adamw_step(AdamW *o, double lr, double gradient_scale)
{
    AdamWArguments a = {.lr = lr, .beta1 = BETA1, .beta2 = BETA2, .eps = EPS, .gradient_scale = gradient_scale};
    const ParamInfo *table = o->layout->table;

    o->step++;
    a.correction1 = 1 - pow(BETA1, o->step);
    a.correction2 = 1 - pow(BETA2, o->step);
    for (int i = 0; i < o->count; i++) {
        const Part *p = &o->parts[i];
        for (int k = 0; k < o->layout->parameters;) {
            Range r = overlap(&table[k], p);
            const bool decay = table[k].decay;
            for (k++; k < o->layout->parameters && table[k].decay == decay; k++)
                r.count += overlap(&table[k], p).count;         /* neighbours that decay alike: one call */
            a.weight_decay = decay ? options.weight_decay : 0;
            if (r.count)
                adamw_update(tensor_range(p->params, r.first, r.count), tensor_range(p->m, r.first, r.count),
                             tensor_range(p->v, r.first, r.count), tensor_range(p->gradients, r.first, r.count), a);
        }
    }
}

double gradient_square_sum(const AdamW *o)
{
    double sum = 0;

    for (int i = 0; i < o->count; i++)
        for (int k = 0; k < o->layout->parameters; k++) {
            const Range r = overlap(&o->layout->table[k], &o->parts[i]);
            if (o->layout->table[k].owned && r.count)
                sum += square_sum(tensor_range(o->parts[i].gradients, r.first, r.count));
        }
    return sum;
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
