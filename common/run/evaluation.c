#include "evaluation.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../comm/comm.h"
#include "../base/device.h"
#include "../base/error.h"
#include "../base/formats.h"
#include "../transformer/ops.h"
#include "../base/options.h"
#include "../base/random.h"
#include "command_line.h"
#include "run.h"

int64_t evaluation_batches(void)
{
    enum { SEQUENCES = 64 };                    /* enough for two digits; all of them would take longer than training */
    const int64_t B = options.micro_batch, all = data_file.validation / (B * options.config.seq);
    const int64_t enough = (SEQUENCES + B - 1) / B, most = all < 1 ? 1 : all;

    return most < enough ? most : enough;
}

void text_evaluate(LossFunction loss_of, Tensor loss, Batch batch)
{
    const int64_t pieces = evaluation_batches();

    tensor_zero(loss);
    for (int64_t i = 0; i < pieces; i++) {
        batch_validation(batch, i, pieces, 0);
        loss_of(batch);
    }
    run_report_validation(tensor_item(loss) / pieces);
}

/* Draws a token from softmax(logits / temperature); at temperature 0, takes the most likely. u is uniform in (0, 1). */
static int draw(const real *logits, int64_t count, double temperature, double u)
{
    double max = -INFINITY, sum = 0;
    int best = 0;

    for (int64_t i = 0; i < count; i++)
        if (logits[i] > max)
            max = logits[i], best = i;
    if (temperature == 0)
        return best;
    for (int64_t i = 0; i < count; i++)
        sum += exp((logits[i] - max) / temperature);
    for (int64_t i = 0; i < count; i++) {
        u -= exp((logits[i] - max) / temperature) / sum;
        if (u < 0)
            return i;
    }
    return best;                                        /* by rounding, a little of u may remain */
}

/* Prints a token: a byte as text, one of a larger vocabulary as a number. */
static void print_token(int token)
{
    const bool control = token == 127 || (token < 32 && token != '\n' && token != '\t');     /* for a terminal */

    if (options.config.vocab > 256)
        printf("%d ", token);
    else
        putchar(control ? '?' : token);
    fflush(stdout);
}

/* Writes the logits of a row of `final`, over the whole vocabulary, to `all`. */
static void logits_of(real *all, Tensor final, Tensor embedding, Tensor row)
{
    const int64_t V = options.config.vocab;
    const int slices = tensor_rows(embedding) < V ? comm_size(world) : 1;
    const int64_t widest = (V + slices - 1) / slices;
    real *mine = host_alloc((1 + slices) * widest * sizeof *mine, "a sample"), *gathered = mine + widest;

    linear_forward(row, final, embedding, NONE);
    tensor_to_host(slices == 1 ? all : mine, row);
    if (slices > 1)
        comm_gather_host(world, gathered, mine, widest * sizeof *mine);
    for (int s = 0; s < slices && slices > 1; s++) {
        const Range ids = range_split(V, s, slices);
        memcpy(all + ids.first, gathered + s * widest, ids.count * sizeof *all);
    }
    free(mine);
}

void text_sample(LossFunction loss_of, Tensor final, Tensor embedding, Tensor logits, Batch batch)
{
    const int64_t B = batch.inputs.shape[0], T = batch.inputs.shape[1], V = options.config.vocab;

    if (options.sample == 0)
        return;
    const int64_t prompt = prompt_ids(NULL), total = prompt + options.sample;
    Tensor row = tensor_range(tensor_view(logits, shape(tensor_rows(logits), tensor_rows(embedding))), 0, 1);
    int32_t *tokens = host_alloc(total * sizeof *tokens, "a sample");
    int32_t *window = host_alloc(B * T * sizeof *window, "a sample");
    real *last = host_alloc(V * sizeof *last, "a sample");
    prompt_ids(tokens);
    if (comm_rank(world) == 0)
        printf("\nsample after the prompt \"%s\":\n", !strcmp(options.prompt, "\n") ? "\\n" : options.prompt);
    for (int64_t i = 0; i < prompt && comm_rank(world) == 0; i++)
        print_token(tokens[i]);
    for (int64_t n = prompt; n < total; n++) {
        /* the last T tokens, or all; what follows them in the window has no effect, since attention is causal */
        const int64_t first = n > T ? n - T : 0;
        memcpy(window, tokens + first, (n - first) * sizeof *window);
        device_upload(batch.inputs.data, window, tensor_bytes(batch.inputs));
        loss_of(batch);
        logits_of(last, tensor_range(final, n - first - 1, 1), embedding, row);
        tokens[n] = draw(last, V, options.temperature, random_uniform(options.seed, STREAM_SAMPLING, 0, n));
        if (comm_rank(world) == 0)
            print_token(tokens[n]);
    }
    if (comm_rank(world) == 0)
        printf("\n");
    free(tokens);
    free(window);
    free(last);
}
