#include "command_line.h"

#include <argp.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../comm/comm.h"
#include "../base/error.h"
#include "../base/print.h"
#include "../transformer/model.h"

static void set_preset(const char *name)
{
    const Preset *p = preset_named(name);

    if (!p)
        fail_usage("--preset: expected one of %s, got '%s'", preset_names(), name);
    const Config c = options.config;
    options.config = p->config;                 /* but presets have no experts */
    options.config.experts = c.experts, options.config.top_k = c.top_k, options.config.expert_width = c.expert_width;
    options.micro_batch = p->micro_batch, options.accumulate = p->accumulate;
}

/* ---- The table ---- */

enum { MODEL = 1, TRAINING, PROGRAM, FILES, MACHINE };

static const struct {
    int group;
    ProgramOption option;
} table[] = {
    {MODEL, {"layers", OPTION_INT, &options.config.layers, "transformer blocks", "N", 1, 10000}},
    {MODEL, {"hidden", OPTION_INT, &options.config.hidden, "width of the residual stream", "N", 2, 1 << 20}},
    {MODEL, {"heads", OPTION_INT, &options.config.heads, "attention heads of size hidden/heads", "N", 1, 1 << 16}},
    {MODEL, {"vocab", OPTION_INT, &options.config.vocab, "tokens in the vocabulary", "N", 2, 1 << 24}},
    {MODEL, {"seq", OPTION_INT, &options.config.seq, "tokens per sequence", "N", 1, 1 << 24}},
    {TRAINING, {"micro-batch", OPTION_INT, &options.micro_batch, "sequences per micro-batch", "N", 1, 1 << 16}},
    {TRAINING, {"accumulate", OPTION_INT, &options.accumulate, "micro-batches per step and rank", "N", 1, 1 << 20}},
    {TRAINING, {"recompute", OPTION_CHOICE, &options.recompute,
                "what backward recomputes instead of saving it: nothing, attention's scores, or full blocks",
                "none|selective|full"}},
    {TRAINING, {"steps", OPTION_INT, &options.steps, "step to stop after, counted from the start of training", "N", 0,
                1e9}},
    {TRAINING, {"lr", OPTION_DOUBLE, &options.lr, "learning rate", "X", 0, 1e3}},
    {TRAINING, {"min-lr", OPTION_DOUBLE, &options.min_lr, "learning rate at the end of its decay", "X", 0, 1e3}},
    {TRAINING, {"warmup", OPTION_INT, &options.warmup, "steps until the learning rate is reached", "N", 0, 1e9}},
    {TRAINING, {"lr-decay-steps", OPTION_INT, &options.decay_steps,
                "step at which the learning rate's decay, half a cosine, ends; 0: no decay", "N", 0, 1e9}},
    {TRAINING, {"weight-decay", OPTION_DOUBLE, &options.weight_decay, "weight decay of matrices and the embedding", "X",
                0, 1e3}},
    {TRAINING, {"clip", OPTION_DOUBLE, &options.clip, "largest norm of gradients; 0: no clipping", "X", 0, 1e30}},
    {TRAINING, {"seed", OPTION_SEED, &options.seed,
                "seed of initial weights, batches and samples; with --load the checkpoint's, if it has one", "N"}},
    {TRAINING, {"eval-every", OPTION_INT, &options.eval_every,
                "validation loss on 64 sequences (in whole micro-batches) every N steps; 0: never", "N", 0, 1e9}},
    {FILES, {"data", OPTION_TEXT, &options.data,
             "text, one token per byte; or tokens if with llm.c's header, or named *.bin: uint16, uint32 if "
             "--vocab exceeds 65536; by default this project's own text", "FILE"}},
    {FILES, {"save", OPTION_TEXT, &options.save, "where to write checkpoints, each as DIR/step-N, at the end and when "
             "interrupted; room and rights are tried at the start", "DIR"}},
    {FILES, {"save-every", OPTION_INT, &options.save_every, "steps between checkpoints; 0: at the end only", "N", 0,
             1e9}},
    {FILES, {"keep", OPTION_INT, &options.keep, "checkpoints to keep in DIR: the last N", "N", 1, 1e6}},
    {FILES, {"load", OPTION_TEXT, &options.load, "what to resume from, of any program with this model: the last "
             "checkpoint that --save DIR completed, or one, DIR/step-N; or a GPT-NeoX model from Hugging Face's "
             "save_pretrained", "DIR"}},
    {FILES, {"metrics", OPTION_TEXT, &options.metrics, "CSV with a row per step; --load appends to it", "FILE"}},
    {FILES, {"report", OPTION_TEXT, &options.report, "memory, traffic and time, as JSON, at the end", "FILE"}},
    {FILES, {"trace", OPTION_TEXT, &options.trace, "timeline for ui.perfetto.dev", "FILE"}},
    {FILES, {"timeline", OPTION_MAYBE, &options.timeline, "draw a step of all ranks in the terminal: the last one, or "
             "this one; with a time such as 30ms for each letter, so that two runs have one scale; or draw the last "
             "one to a file", "STEP|TIMEms|FILE.svg"}},
    {FILES, {"dump-gradients", OPTION_TEXT, &options.dump_gradients,
             "the first step's gradients and batch, as safetensors", "FILE"}},
    {MACHINE, {"comm", OPTION_CHOICE, &options.comm, "library that carries tensors between ranks", "auto|mpi|nccl"}},
    {MACHINE, {"tf32", OPTION_CHOICE, &options.tf32,
               "F32 matmuls in TF32; auto: on GPUs that have it, except with --dump-gradients", "auto|on|off"}},
    {MACHINE, {"threads", OPTION_INT, &options.threads,
               "CPU threads per rank; 0: OMP_NUM_THREADS if it is set, otherwise the machine's cores per rank", "N", 0,
               4096}},
    {MACHINE, {"timeout", OPTION_INT, &options.timeout, "longest wait for another rank; 0: no limit", "SECONDS", 0,
               1e6}},
    {MACHINE, {"pretend", OPTION_TEXT, &options.pretend,
               "simulated hardware: operators and transfers take at least as long as at this speed, link bandwidth and "
               "latency", "GFLOPS,GB/S,MICROSECONDS"}},
    {MACHINE, {"check", OPTION_FLAG, &options.check,
               "find calls that differ between ranks, and buffers that are used while in flight"}},
    {MACHINE, {"quiet", OPTION_FLAG, &options.quiet, "print only errors and the sample"}},
};
enum { OPTIONS = sizeof table / sizeof *table, MORE = 16 };
enum { FIRST_KEY = 256, KEY_PRESET = 1000, KEY_HELP, KEY_VERSION };

bool options_train = true;

/* ---- One option's argument ---- */

static int place_of(const char *word, const char *words)        /* word's index in "a|b|c"; -1: absent */
{
    for (int at = 0;; at++) {
        const size_t n = strcspn(words, "|");
        if (n == strlen(word) && !strncmp(word, words, n))
            return at;
        if (!words[n])
            return -1;
        words += n + 1;
    }
}

static void parse_option(const ProgramOption *o, const char *text)
{
    char *end;

    errno = 0;
    switch (o->kind) {
    case OPTION_FLAG:
        *(bool *)o->value = true;
        break;
    case OPTION_INT: {
        const long long n = strtoll(text, &end, 10);
        if (end == text || *end || errno || n < o->min || n > o->max)
            fail_usage("--%s: expected an integer from %.0f to %.0f, got '%s'", o->name, o->min, o->max, text);
        *(int *)o->value = n;
        break;
    }
    case OPTION_SEED:
        *(uint64_t *)o->value = strtoull(text, &end, 10);
        if (end == text || *end || errno || strchr(text, '-'))
            fail_usage("--%s: expected an integer from 0 to 2^64 - 1, got '%s'", o->name, text);
        break;
    case OPTION_DOUBLE: {
        const double x = strtod(text, &end);
        if (end == text || *end || errno || !isfinite(x) || x < o->min || x > o->max)
            fail_usage("--%s: expected a number from %g to %g, got '%s'", o->name, o->min, o->max, text);
        *(double *)o->value = x;
        break;
    }
    case OPTION_TEXT:
        if (!*text)
            fail_usage("--%s: expected %s, got an empty string", o->name, o->argument);
        *(const char **)o->value = text;
        break;
    case OPTION_MAYBE:
        *(const char **)o->value = text ? text : "";
        break;
    case OPTION_CHOICE: {
        const int at = place_of(text, o->argument);
        if (at < 0)
            fail_usage("--%s: expected one of %s, got '%s'", o->name, o->argument, text);
        *(int *)o->value = at;
        break;
    }
    }
}

static void parse_pretend(void)
{
    double gflops, gigabytes, microseconds;
    char rest;

    if (!options.pretend)
        return;
    if (sscanf(options.pretend, "%lf,%lf,%lf%c", &gflops, &gigabytes, &microseconds, &rest) != 3 || !(gflops >= 1e-3)
        || !(gigabytes >= 1e-6) || !(microseconds >= 0) || !(microseconds <= 1e6) || gflops > 1e9 || gigabytes > 1e9)
        fail_usage("--pretend: expected GFLOPS,GB/S,MICROSECONDS, such as 1000,50,5, got '%s': a device's speed (0.001 "
                   "to 1e9), its link's bandwidth (1e-6 to 1e9) and latency (0 to 1e6)", options.pretend);
    options.pretend_flops = 1e9 * gflops;
    options.pretend_bandwidth = 1e9 * gigabytes;
    options.pretend_latency = 1e-6 * microseconds;
}

/* ---- Checks of several options together ---- */

int64_t prompt_ids(int32_t *ids)
{
    const int vocab = options.config.vocab;
    const bool bytes = vocab <= 256;
    int64_t count = 0;
    char *end;

    for (const char *at = options.prompt; *at; at = end + (bytes ? 0 : strspn(end, " ")), count++) {
        const long id = bytes ? (unsigned char)*at : strtol(at, &end, 10);
        end = bytes ? (char *)at + 1 : end;
        if (bytes && id >= vocab)
            fail_usage("--sample %d: --prompt (by default a line feed) has byte %ld at position %lld, but tokens must "
                       "be below --vocab %d", options.sample, id, (long long)count, vocab);
        if (end == at || id < 0 || id >= vocab || (!bytes && *end && *end != ' '))
            fail_usage("--prompt: expected ids below --vocab %d with spaces between them, because such tokens are no "
                       "bytes, got '%s'; tools/data/tokens.py prompt makes them of a text", vocab, options.prompt);
        if (ids)
            ids[count] = id;
    }
    return count;
}

static void check_together(void)
{
    Config *c = &options.config;
    if (model->complete)
        model->complete(c);
    const double B = options.micro_batch, T = c->seq, L = c->layers, H = c->hidden, A = c->heads, V = c->vocab;

    if (c->hidden % c->heads)
        fail_usage("--hidden: expected a multiple of --heads %d, got %d", c->heads, c->hidden);
    if (c->hidden / c->heads % 2)
        fail_usage("--hidden %d / --heads %d: expected an even head size, since rotary positions rotate pairs, got %d",
                   c->hidden, c->heads, c->hidden / c->heads);
    if (c->experts && c->top_k > c->experts)
        fail_usage("--top-k: expected at most --experts %d, got %d", c->experts, c->top_k);
    if (c->experts && !c->expert_width)
        c->expert_width = (4 * c->hidden + c->top_k - 1) / c->top_k;
    const double rows = B * T * fmax(1, c->experts), width = c->experts ? H + c->expert_width : 16 * H + 2.0 * c->mlp;
    const double largest = fmax(fmax(B * T * V, L * B * A * T * T), L * fmax(rows * width, B * T * 16 * H));
    const double limit = 1e15;              /* elements: far below overflow, far above any machine */
    if (rows > INT32_MAX || largest > limit)
        fail_usage("--micro-batch %d x --seq %d with --layers %d --hidden %d --heads %d --vocab %d%s gives %.3g rows "
                   "and tensors of %.3g elements; the limits are %.3g and %.3g", options.micro_batch, c->seq, c->layers,
                   c->hidden, c->heads, c->vocab, c->experts ? format_text(" --experts %d --expert-width %d",
                   c->experts, c->expert_width) : "", rows, largest, (double)INT32_MAX, limit);
    if (options.decay_steps && options.decay_steps <= options.warmup)
        fail_usage("--lr-decay-steps: expected more than --warmup %d, got %d", options.warmup, options.decay_steps);
    if (options.min_lr > options.lr && options.decay_steps)
        fail_usage("--min-lr: expected at most --lr %g, got %g", options.lr, options.min_lr);
    if (options.save_every && !options.save)
        fail_usage("--save-every %d: --save DIR is missing", options.save_every);
    if (options.keep > 1 && !options.save)
        fail_usage("--keep %d: --save DIR is missing", options.keep);
    if (!options.prompt)
        options.prompt = c->vocab > 256 ? "0" : "\n";
    if (options.sample)
        prompt_ids(NULL);
}

/* ---- argp ---- */

static struct argp parser;
enum { LINES = OPTIONS + MORE + MACHINE + 5 };  /* and titles, --preset, --help, --usage, --version */
static struct argp_option list[LINES];
static const ProgramOption *known[LINES];       /* by line; its key is FIRST_KEY and the line */
static int listed;

static error_t parse(int key, char *text, struct argp_state *state)
{
    if (key == KEY_HELP) {
        if (comm_rank(world) == 0)
            argp_help(&parser, stdout, ARGP_HELP_LONG | ARGP_HELP_USAGE | ARGP_HELP_DOC, (char *)error_name());
        comm_exit(0);
    }
    if (key == KEY_VERSION) {
        if (comm_rank(world) == 0)
            printf("%s of ultrascale.c " VERSION "\n", error_name());
        comm_exit(0);
    }
    const ProgramOption *o = key >= FIRST_KEY && key < FIRST_KEY + listed ? known[key - FIRST_KEY] : NULL;
    if (o && o->kind == OPTION_MAYBE && !text && state->next < state->argc && *state->argv[state->next] != '-')
        text = state->argv[state->next++];      /* "--timeline 3" as well as "--timeline=3" */
    if (key == KEY_PRESET)
        set_preset(text);
    else if (o)
        parse_option(o, text);
    else if (key == ARGP_KEY_ARG)
        fail_usage("\"%s\" is not an option: options begin with --; see --help", state->argv[state->next - 1]);
    else
        return ARGP_ERR_UNKNOWN;
    return 0;
}

/* "learning rate (0.001)": with the default as the user would type it. */
static char *help_of(const ProgramOption *o)
{
    const char *word = o->argument;

    switch (o->kind) {
    case OPTION_INT:
        return new_text("%s (%d)", o->help, *(int *)o->value);
    case OPTION_SEED:
        return new_text("%s (%llu)", o->help, (unsigned long long)*(uint64_t *)o->value);
    case OPTION_DOUBLE:
        return new_text("%s (%g)", o->help, *(double *)o->value);
    case OPTION_CHOICE:
        for (int i = *(int *)o->value; i > 0; i--)
            word += strcspn(word, "|") + 1;
        return new_text("%s (%.*s)", o->help, (int)strcspn(word, "|"), word);
    default:
        return new_text("%s", o->help);
    }
}

/* Appends an option to argp's list. */
static void append(const ProgramOption *o, int group)
{
    known[listed] = o;
    list[listed] = (struct argp_option){o->name, FIRST_KEY + listed, o->argument,
                                        o->kind == OPTION_MAYBE ? OPTION_ARG_OPTIONAL : 0, help_of(o), group};
    listed++;
}

void options_parse(const char *summary, int argc, char **argv, const ProgramOption *more)
{
    static const char *titles[] = {[MODEL] = "The model:", "Training:", "This program:", "Files:", "The machine:"};

    listed = 0;
    for (int group = options_train ? MODEL : MACHINE; group <= MACHINE; group++)
        if (group != PROGRAM)
            list[listed++] = (struct argp_option){.doc = titles[group], .group = group};
    for (int i = 0; i < OPTIONS; i++)
        if (options_train || table[i].group == MACHINE)
            append(&table[i].option, table[i].group);
    if (more && more->name)
        list[listed++] = (struct argp_option){.doc = titles[PROGRAM], .group = PROGRAM};
    for (; more && more->name; more++)
        append(more, PROGRAM);
    if (options_train)
        list[listed++] = (struct argp_option){"preset", KEY_PRESET, preset_names(), 0, "a known model's sizes and a "
                                              "small batch; later options override it", MODEL};
    list[listed++] = (struct argp_option){"help", KEY_HELP, NULL, 0, "this text", -1};
    list[listed++] = (struct argp_option){"usage", .flags = OPTION_ALIAS};          /* argp's hint names it too */
    list[listed++] = (struct argp_option){"version", KEY_VERSION, NULL, 0, "this program's version", -1};
    list[listed] = (struct argp_option){0};

    parser = (struct argp){.options = list, .parser = parse, .doc = summary};
    argv[0] = (char *)error_name();             /* argp's own messages begin with it */
    const int flags = ARGP_NO_HELP | ARGP_NO_EXIT | (comm_rank(world) ? ARGP_NO_ERRS : 0);
    if (argp_parse(&parser, argc, argv, flags, NULL, NULL))
        comm_exit(2);
    parse_pretend();
    check_together();
}
