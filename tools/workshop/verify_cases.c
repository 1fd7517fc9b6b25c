#include "verify_cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "process.h"

const char *stage, *given_options = "";
bool own;
const double CLIP = 0.05;

/* What runs without ARGS: every option of a program; in 08, each set of fused operators in fp32 as well, because
 * rounding to 16 bits hides much. */
const Case cases[] = {
    {"01_single_gpu", "", 1},
    {"01_single_gpu", "--recompute selective --clip 100", 1},       /* clips nothing */
    {"01_single_gpu", "--recompute full --layers 1", 1, .kind = SANITIZED},
    {"01_single_gpu", "", 1, .kind = FAR},
    {"02_mixed_precision", "--dtype fp32", 1},
    {"02_mixed_precision", "--dtype bf16 --gradients bf16", 1, 0.04},
    {"02_mixed_precision", "--dtype bf16 --master none --recompute full", 1, 0.04, SANITIZED},
    {"02_mixed_precision", "--dtype fp16", 1, 0.01},
    {"02_mixed_precision", "--dtype fp16", 1, .kind = OVERFLOWS},
    {"02_mixed_precision", "--dtype fp8 --seq 48", 1, 0.25},            /* rows: a multiple of 16 */
    {"02_mixed_precision", "--dtype fp8 --fp8-scaling tile --heads 4 --hidden 128 --seq 128", 1, 0.25, SANITIZED},
    /* fewer rows than columns */
    {"02_mixed_precision",
     "--dtype fp8 --fp8-scaling mx --heads 4 --hidden 256 --seq 128 --micro-batch 1 --layers 1", 1, 0.25, SANITIZED},
    {"02_mixed_precision", "--dtype fp8 --seq 48", 1, .kind = INFINITE},
    {"02_mixed_precision", "--dtype fp16 --gradients bf16", 1, .kind = REFUSED},
    {"02_mixed_precision", "--dtype fp32 --recompute selective", 1, .kind = FAR},
    {"03_data_parallel", "--sync naive", 2, .kind = SANITIZED},
    {"03_data_parallel", "--sync overlap --recompute full", 3},
    {"03_data_parallel", "--sync bucket --bucket-mb 0.3", 4, .kind = SANITIZED},
    {"03_data_parallel", "--sync bucket --accumulate 1 --recompute selective", 2, .kind = SANITIZED},
    {"03_data_parallel", "--sync overlap --accumulate 1", 3},
    {"03_data_parallel", "--sync naive --accumulate 1", 3, .kind = FULL},
    {"04_zero", "--zero 1", 2},
    {"04_zero", "--zero 2 --recompute selective --layers 1", 3, .kind = SANITIZED},
    {"04_zero", "--zero 3 --heads 5 --hidden 50", 4},               /* shards of unequal sizes */
    {"04_zero", "--zero 3 --accumulate 1 --recompute full", 2, .kind = SANITIZED},
    {"04_zero", "--zero 3 --replicate 2 --heads 5 --hidden 50", 6, .kind = SANITIZED},
    {"04_zero", "--replicate 2", 3, .kind = REFUSED},
    {"04_zero", "--zero 2 --replicate 2 --recompute full", 4},
    {"04_zero", "--zero 1 --accumulate 1 --heads 5 --hidden 50", 3, .kind = FULL},
    {"04_zero", "--zero 2 --accumulate 1", 4, .kind = FULL},
    {"05_tensor_parallel", "", 2, .kind = SANITIZED},
    {"05_tensor_parallel", "--recompute full", 4},
    {"05_tensor_parallel", "--sequence-parallel", 3},
    {"05_tensor_parallel", "--sequence-parallel --recompute selective", 2, .kind = SANITIZED},
    {"05_tensor_parallel", "--sequence-parallel --overlap --recompute full", 4},
    {"05_tensor_parallel", "--overlap", 2, .kind = REFUSED},
    {"05_tensor_parallel", "", 3, .kind = FAR},
    {"05_tensor_parallel", "--sequence-parallel --recompute full", 4, .kind = FULL},
    {"06_pipeline_parallel", "--schedule afab --recompute full", 2, .kind = SANITIZED},
    {"06_pipeline_parallel", "--schedule 1f1b --layers 4 --accumulate 2", 4},       /* fewer micro-batches than ranks */
    {"06_pipeline_parallel", "--schedule 1f1b --recompute selective", 3, .kind = SANITIZED},
    {"06_pipeline_parallel", "--schedule interleaved --chunks 2", 3, .kind = SANITIZED},
    {"06_pipeline_parallel", "--schedule zero-bubble --recompute selective", 4},
    {"06_pipeline_parallel", "--schedule zb-v", 3, .kind = SANITIZED},
    {"06_pipeline_parallel", "--schedule dualpipe-v --recompute selective", 2, .kind = SANITIZED},
    {"06_pipeline_parallel", "--schedule zero-bubble --recompute full", 2, .kind = REFUSED},
    {"06_pipeline_parallel", "--schedule zb-v --recompute full", 2, .kind = REFUSED},
    {"06_pipeline_parallel", "--schedule interleaved --chunks 2 --accumulate 3", 2, .kind = REFUSED},
    {"06_pipeline_parallel", "--schedule 1f1b", 2, .kind = FAR | FULL},
    {"07_context_parallel", "--attention ring", 3},
    {"07_context_parallel", "--attention zigzag --recompute full", 4},
    {"07_context_parallel", "--attention allgather --recompute full", 2},
    {"07_context_parallel", "--attention ulysses --recompute full", 3},
    {"07_context_parallel", "--attention ring --seq 260 --layers 1 --accumulate 1", 2, .kind = SANITIZED | LONG},
    {"07_context_parallel", "--attention ulysses --heads 3", 2, .kind = REFUSED},
    {"07_context_parallel", "--attention ring", 2, .kind = FAR},
    {"07_context_parallel", "--attention zigzag", 3, .kind = FAR},
    {"07_context_parallel", "--attention allgather --recompute selective", 3, .kind = FULL},
    {"08_fused_kernels", "--dtype fp32 --fuse none --recompute selective", 1},
    {"08_fused_kernels", "--dtype fp32 --fuse attention", 1},
    {"08_fused_kernels", "--dtype fp32 --fuse layernorm,gelu --recompute full --clip 100", 1, .kind = SANITIZED},
    {"08_fused_kernels", "--dtype fp32 --fuse cross-entropy,adamw", 1},
    {"08_fused_kernels", "--dtype fp32 --fuse all", 1, .kind = SANITIZED},
    {"08_fused_kernels", "--dtype fp8 --fuse all --seq 48", 1, 0.25, SANITIZED},    /* rows: a multiple of 16 */
    {"08_fused_kernels", "--dtype fp8 --fp8-scaling tile --fuse all --heads 4 --hidden 128 --seq 64", 1, 0.25},
    {"08_fused_kernels", "--dtype fp16 --fuse all --layers 3 --seq 26 --accumulate 7", 1, .kind = OVERFLOWS},
    {"08_fused_kernels", "--dtype fp32 --fuse all", 1, .kind = FAR},
    {"08_fused_kernels", "--dtype fp32 --fuse none", 1, .kind = FAR},
    {"08_fused_kernels", "--dtype fp32 --fuse layernorm,gelu,cross-entropy,adamw", 1, .kind = FULL},
    {"08_fused_kernels", "--dtype bf16 --master none --fuse layernorm,gelu,cross-entropy,adamw", 1, 0.04},
    {"09_combined", "--dtype fp32 --tp 2 --cp 2 --pp 2 --accumulate 3", 8},
    /* groups of unequal sizes, so that a factor has one name; shards of unequal sizes */
    {"09_combined", "--dtype fp32 --cp 3 --heads 5 --hidden 50 --layers 3 --accumulate 4", 6},
    {"09_combined", "--dtype fp32 --cp 2", 8, .kind = FULL},
    {"09_combined", "--dtype fp32 --tp 2 --cp 2 --zero 0 --clip 100 --layers 3 --accumulate 3", 4},
    {"09_combined", "--dtype fp32 --cp 2 --layers 1 --heads 2 --seq 1040 --accumulate 1", 2, .kind = SANITIZED | LONG},
    {"09_combined", "--dtype fp32 --cp 2 --pp 3 --layers 3 --micro-batch 2 --accumulate 5 --recompute full", 6},
    {"09_combined", "--dtype fp32 --tp 4 --pp 2", 8, .kind = FULL},
    {"09_combined", "--dtype fp32 --tp 2", 4, .kind = FULL},
    {"09_combined", "--dtype fp32 --pp 2", 2, .kind = FULL},
    {"09_combined", "--dtype fp32 --tp 2 --cp 2 --pp 2", 8, .kind = FAR | FULL},
    {"09_combined", "--dtype bf16 --tp 2 --recompute full", 2, 0.04, FULL},
    {"09_combined", "--dtype bf16 --tp 2 --cp 2 --layers 4 --micro-batch 3 --accumulate 2", 4, 0.04},
    {"10_expert_parallel", "--ep 2", 4},
    {"10_expert_parallel", "--ep 3 --top-k 1 --recompute full", 3, .kind = SANITIZED},
    {"10_expert_parallel", "--ep 2", 3, .kind = REFUSED},
    /* capacity * top-k * span / experts is 8 and a rounding error */
    {"10_expert_parallel", "--ep 1 --seq 20 --span 10 --top-k 3 --capacity 1.6 --recompute selective", 2, 0, SANITIZED},
    {"11_five_dimensions", "--dtype fp32 --tp 2 --cp 2 --pp 2 --ep 2 --span 3 --accumulate 2", 8},
    {"11_five_dimensions", "--dtype fp32 --pp 2 --ep 2 --accumulate 2", 4},
    {"11_five_dimensions", "--dtype fp32 --tp 2 --pp 2 --zero 0 --span 3 --accumulate 2", 4},
    {"11_five_dimensions", "--dtype fp32 --tp 2 --ep 2 --span 12 --recompute full", 4, .kind = FULL},
    {"11_five_dimensions", "--dtype fp32 --cp 2 --ep 3 --span 6 --zero 0 --layers 2 --accumulate 3", 6},
    {"11_five_dimensions", "--dtype fp32 --cp 2 --layers 1 --heads 2 --seq 1040 --accumulate 1 --span 52", 2, 0, LONG},
    {"11_five_dimensions",
     "--dtype fp32 --pp 2 --ep 2 --accumulate 3 --seq 20 --span 10 --top-k 3 --capacity 1.6 --clip 100", 4, 0,
     SANITIZED},
    {"12_llama", "--kv-heads 3 --untied", 1},
    {"12_llama", "--kv-heads 2 --seq 70 --accumulate 2", 2, .kind = SANITIZED | LONG},
    {"12_llama", "--kv-heads 2 --recompute full", 4},               /* two copies of each KV head */
    {"12_llama", "--kv-heads 1 --untied --sequence-parallel", 3},
    {"12_llama", "--kv-heads 6 --sequence-parallel --recompute selective", 2},
    {"12_llama", "--kv-heads 3 --sequence-parallel --overlap", 3, .kind = SANITIZED},
    {"12_llama", "--kv-heads 5", 1, .kind = REFUSED},
    {"12_llama", "--kv-heads 3", 3, .kind = FAR},
    {"12_llama", "--kv-heads 2 --untied --sequence-parallel --recompute full", 4, .kind = FULL},
    {"", "", 1}, {"", "", 2}, {"", "", 4},              /* any other program: the user's own */
};
const int case_count = sizeof cases / sizeof *cases;

bool starts_with(const char *text, const char *with)
{
    return !strncmp(text, with, strlen(with));
}

const char *given(const char *name)
{
    for (const char *at = given_options; (at = strstr(at, name)); at += strlen(name))
        if (at[strlen(name)] == ' ' || at[strlen(name)] == '=')
            return at + strlen(name) + 1;
    return NULL;
}

int option(const Case *c, const char *name, int otherwise)
{
    const char *at = strstr(c->options, name);
    const bool in_case = at && strchr(" =", at[strlen(name)]);          /* --seq, not --sequence-parallel */

    return given(name) ? atoi(given(name)) : in_case ? atoi(at + strlen(name) + 1) : otherwise;
}

double tolerance_of(const char *dtype)
{
    if (!dtype || starts_with(dtype, "fp32"))
        return 0;
    if (starts_with(dtype, "fp16"))
        return 0.01;
    return starts_with(dtype, "bf16") ? 0.04 : 0.25;
}

bool stage_is(const char *name)
{
    return !strcmp(stage, name);
}

bool has_experts(void)
{
    return stage_is("10_expert_parallel") || stage_is("11_five_dimensions");
}

bool has_llama(void)
{
    return stage_is("12_llama");
}

bool has_grid(void)
{
    return stage_is("09_combined") || stage_is("11_five_dimensions");
}

/* The size of one dimension of the grid of 09 and 11, from the options of a case; 1 if not given. */
static int grid_size(const Case *c, const char *name)
{
    const int size = option(c, name, 1);

    return size < 1 ? 1 : size;
}

int data_ranks(const Case *c)
{
    if (has_grid())
        return c->ranks / (grid_size(c, "--tp") * grid_size(c, "--cp") * grid_size(c, "--pp"));
    return stage_is("03_data_parallel") || stage_is("04_zero") || stage_is("10_expert_parallel") ? c->ranks : 1;
}

bool fits(const Case *c, int ranks)
{
    const int pp = grid_size(c, "--pp");

    return ranks % (grid_size(c, "--tp") * grid_size(c, "--cp") * pp) == 0 && ranks / pp % grid_size(c, "--ep") == 0;
}

/* For 09 and 11: tp divides heads and rows, 2 * cp divides the tokens. With neither cp nor pp there are enough rows for
 * more than one slice of the loss. */
static Shape grid_shape(const Case *c)
{
    const int tp = grid_size(c, "--tp"), cp = grid_size(c, "--cp"), pp = grid_size(c, "--pp"), unit = 2 * tp * cp;
    const bool rows = cp == 1 && pp == 1, threes = tp == 3 || cp == 3 || pp == 3;

    return (Shape){.layers = pp > 1 ? pp + 1 : rows ? 4 : 5, .heads = 12 % tp ? tp : 12,
                   .seq = (23 + unit) / unit * unit,
                   .micro_batch = rows ? 11 : threes ? 5 : pp > 1 ? 3 : 1,
                   .accumulate = rows ? 2 : pp == 2 ? 5 : 7};
}

/* A small shape, divisible by the ranks where it must be. Ranks, layers, micro-batch size and accumulation differ where
 * possible, so that a wrong factor has one name; rows differ from widths, so that a buffer of the wrong shape shows. 08
 * gets more than one tile of attention and more than one slice of rows; the user's own program gets sizes that its
 * ranks can split in any way. */
Shape shape_for(const Case *c)
{
    const int n = c->ranks;
    const bool pipeline = stage_is("06_pipeline_parallel") || (own && n > 1);
    Shape s = {
        .layers = pipeline ? 2 * n + 1 : n == 2 || n == 3 ? 4 : stage_is("08_fused_kernels") ? 2 : 3,
        .heads = 12 % n ? n : 12,
        .seq = stage_is("08_fused_kernels") ? 300 : ((n <= 2 ? 26 : 24) + 2 * n - 1) / (2 * n) * 2 * n,
        .micro_batch = n == 2 || (own && n % 3 && n > 1) ? 3 : 2,
        .accumulate = pipeline ? 2 * n : stage_is("08_fused_kernels") ? 3 : 7};

    if (has_grid())
        s = grid_shape(c);
    s.ranks = n;
    s.layers = option(c, "--layers", s.layers);
    s.heads = option(c, "--heads", s.heads);
    s.seq = option(c, "--seq", s.seq);
    s.micro_batch = option(c, "--micro-batch", s.micro_batch);
    s.accumulate = option(c, "--accumulate", s.accumulate);
    const int hidden = option(c, "--hidden", (n == 1 ? 4 : 6) * s.heads);
    const double clip = strstr(c->options, "--clip") ? option(c, "--clip", 0) : CLIP;
    snprintf(s.model, sizeof s.model, "--layers %d --hidden %d --heads %d --vocab 97 --seq %d --lr 1e-3 "
             "--min-lr 1e-4 --warmup 5 --lr-decay-steps 8 --clip %g --threads 1 --quiet --data %s", s.layers, hidden,
             s.heads, s.seq, clip, token_file(20000, 97));
    if (has_llama()) {
        const bool untied = strstr(c->options, "--untied");
        s.kv_heads = option(c, "--kv-heads", s.heads), s.mlp = option(c, "--mlp", 3 * hidden / 2 + 1);
        add_text(s.model, sizeof s.model, " --kv-heads %d --mlp %d%s", s.kv_heads, s.mlp, untied ? " --untied" : "");
        s.tied = !untied;
    }
    const char *capacity = strstr(c->options, "--capacity ");
    s.top_k = option(c, "--top-k", 2), s.capacity = capacity ? atof(capacity + strlen("--capacity ")) : 0.9;
    snprintf(s.schedule, sizeof s.schedule, "--micro-batch %d --accumulate %d", s.micro_batch, s.accumulate);
    return s;
}
