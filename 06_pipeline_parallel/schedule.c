/* Where stages lie, what each action waits for, and the schedules. */
#include "schedule.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../common/error.h"
#include "../common/options.h"
#include "../common/print.h"

/* ---- Where a stage lies ---- */

static bool is_v(Pipeline pipe)
{
    return pipe.kind == ZB_V || pipe.kind == DUALPIPE_V;
}

/* The i-th rank that a chunk's stages come to. Going back is its own inverse: so it is also the place of rank i. */
static int along(Pipeline pipe, int chunk, int i)
{
    return is_v(pipe) && chunk % 2 ? pipe.p - 1 - i : i;
}

int stage_of(Pipeline pipe, int rank, int chunk)
{
    return chunk * pipe.p + along(pipe, chunk, rank);
}

int rank_of(Pipeline pipe, int stage)
{
    return along(pipe, chunk_of(pipe, stage), stage % pipe.p);
}

int chunk_of(Pipeline pipe, int stage)
{
    return stage / pipe.p;
}

Range layers_of(Pipeline pipe, int stage)
{
    return range_part(pipe.layers, stage, pipe.p * pipe.v);
}

/* ---- What an action waits for ---- */

Need need_of(int stage, ActionKind kind, int stages)
{
    if (kind == FORWARD)
        return (Need){stage - 1, FORWARD};              /* x; the first stage begins with tokens, which are there */
    if (kind == BACKWARD_WEIGHT)
        return (Need){stage, BACKWARD_INPUT};
    if (stage == stages - 1)
        return (Need){stage, FORWARD};                  /* the loss */
    return (Need){stage + 1, BACKWARD_INPUT};           /* d_x */
}

/* A message is known by what it carries: x or d_x of this micro-batch, into this stage. Long before a tag repeats, the
 * message that had the same one has arrived. */
static int tag_of(Action a, int into, int stages)
{
    return (a.micro % 1024 * stages + into) * 2 + (a.kind != FORWARD);
}

/* Of an action of rank r, with a stage that may be on r itself. */
static Message message(Pipeline pipe, Action a, int r, int other, int into)
{
    const bool sent = other >= 0 && other < pipe.p * pipe.v && rank_of(pipe, other) != r;

    return (Message){sent ? rank_of(pipe, other) : -1, tag_of(a, into, pipe.p * pipe.v)};
}

Message message_in(Pipeline pipe, Action a, int r)
{
    const int stage = stage_of(pipe, r, a.chunk);

    return message(pipe, a, r, need_of(stage, a.kind, pipe.p * pipe.v).stage, stage);
}

Message message_out(Pipeline pipe, Action a, int r)
{
    const int stage = stage_of(pipe, r, a.chunk), into = a.kind == FORWARD ? stage + 1 : stage - 1;

    return message(pipe, a, r, a.kind == BACKWARD_WEIGHT ? -1 : into, into);
}

/* ---- Schedules: each is a list of calls, made from rank and counts alone ---- */

static void schedule_add(Schedule *s, ActionKind kind, int micro, int chunk)
{
    if (s->count == s->capacity)
        fail("this schedule has more than %d actions: a micro-batch has at most three in each chunk", s->capacity);
    s->list[s->count++] = (Action){kind, micro, chunk};
}

/* All forward, all backward (GPipe, Huang et al. 2019). */
static void afab(Schedule *s, int m)
{
    for (int i = 0; i < m; i++)
        schedule_add(s, FORWARD, i, 0);
    for (int i = 0; i < m; i++)
        schedule_add(s, BACKWARD, i, 0);
}

/* One forward, one backward (PipeDream-Flush, Narayanan et al. 2021a): each backward as soon as it can be. */
static void one_f_one_b(Schedule *s, int r, int p, int m)
{
    const int warmup = p - r - 1 < m ? p - r - 1 : m;

    for (int i = 0; i < warmup; i++)
        schedule_add(s, FORWARD, i, 0);
    for (int i = 0; i < m; i++) {
        if (warmup + i < m)
            schedule_add(s, FORWARD, warmup + i, 0);
        schedule_add(s, BACKWARD, i, 0);
    }
}

/* Rounds of p micro-batches through chunk 0, then the same p through chunk 1, ... (Narayanan et al. 2021b). */
static void interleaved(Schedule *s, int r, int p, int m, int v)
{
    const int total = m * v, most = 2 * (p - r - 1) + (v - 1) * p, warmup = most < total ? most : total;

    for (int f = 0, b = 0; b < total;) {
        if (f < total) {
            schedule_add(s, FORWARD, f / (p * v) * p + f % p, f / p % v);
            f++;
        }
        if (f > warmup || f == total) {
            schedule_add(s, BACKWARD, b / (p * v) * p + b % p, v - 1 - b / p % v);
            b++;
        }
    }
}

/* 1F1B whose weights' gradients come r micro-batches later, where 1F1B would wait (ZB-H1, Qi et al. 2023). */
static void zero_bubble(Schedule *s, int r, int p, int m)
{
    const int warmup = p - r - 1 < m ? p - r - 1 : m;
    int w = 0;

    for (int i = 0; i < warmup; i++)
        schedule_add(s, FORWARD, i, 0);
    for (int i = 0; i < m; i++) {
        if (warmup + i < m)
            schedule_add(s, FORWARD, warmup + i, 0);
        schedule_add(s, BACKWARD_INPUT, i, 0);
        if (i >= r)
            schedule_add(s, BACKWARD_WEIGHT, w++, 0);
    }
    while (w < m)
        schedule_add(s, BACKWARD_WEIGHT, w++, 0);
}

/* A list in words: F0 is chunk 0's next forward, B0 its next BACKWARD_INPUT, BW0 its next BACKWARD; W, of either chunk,
 * the weights' gradients that have waited longest. */
typedef struct {
    Schedule *list;
    int m, next[2][2];              /* [forward, backward][chunk]  micro-batches; from m on they are left out */
    int waited;                     /* up to here the list's weights' gradients have come */
} Words;

static void add_word(Words *w, const char *word)
{
    const Schedule *s = w->list;
    const bool back = word[0] == 'B', both = word[1] == 'W';

    if (word[0] == 'W') {
        while (w->waited < s->count && s->list[w->waited].kind != BACKWARD_INPUT)
            w->waited++;
        if (w->waited < s->count)
            schedule_add(w->list, BACKWARD_WEIGHT, s->list[w->waited].micro, s->list[w->waited].chunk), w->waited++;
        return;
    }
    const int chunk = word[1 + both] - '0';
    if ((word[0] != 'F' && !back) || chunk < 0 || chunk > 1)
        fail("a schedule's words are F0, F1, B0, B1, BW0, BW1 and W, not \"%s\"", word);
    const int micro = w->next[back][chunk]++;
    if (micro < w->m)
        schedule_add(w->list, both ? BACKWARD : back ? BACKWARD_INPUT : FORWARD, micro, chunk);
}

static void repeat(Words *w, int times, const char *words)
{
    for (int i = 0; i < times; i++)
        for (const char *word = words; *word; word += strcspn(word, " "), word += *word == ' ')
            add_word(w, word);
}

/* ZB-V (Qi et al. 2023, section 6): forwards until x has come back through the V; then all kinds of actions in turn, of
 * both chunks; at the end, when there are no forwards left, weights' gradients that were put off. F0 comes after B0 and
 * W, so it takes the buffers that they leave. The rule is for 2p - 1 micro-batches or more: where there are fewer, the
 * others are left out of it. */
static void zb_v(Schedule *s, int r, int p, int m)
{
    const int n = m > 2 * p - 1 ? m : 2 * p - 1;
    Words w = {.list = s, .m = m};

    repeat(&w, 2 * (p - r) - 1, "F0");
    repeat(&w, r,               "F1 F0");
    repeat(&w, p - r,           "F1 B1 W");
    repeat(&w, n - p,           "B0 W F0 F1 B1 W");
    repeat(&w, r,               "B0 B1");
    repeat(&w, p - r,           "B0 W");
    repeat(&w, 2 * r,           "W");
}

/* DualPipe-V. In DualPipe (DeepSeek-V3) micro-batches come from both ends, and two ranks have each stage; cut in half
 * (Sea AI Lab 2025), one end is left, and a V. A forward of one chunk stands beside a backward of the other: what one
 * of them sends is in flight while the other computes. For 2p micro-batches or more, as above. */
static void dualpipe_v(Schedule *s, int r, int p, int m)
{
    const int n = m > 2 * p ? m : 2 * p;
    Words w = {.list = s, .m = m};

    repeat(&w, 2 * (p - r - 1),   "F0");
    repeat(&w, r + 1,             "F0 F1");
    repeat(&w, p - r - 1,         "B1 W F1");
    repeat(&w, n - 2 * p + r + 1, "F0 BW1 F1 BW0");
    repeat(&w, p - r - 1,         "BW1 F1 BW0");
    repeat(&w, (r + 1) / 2,       "BW1 BW0");       /* of 2 (r + 1) backwards the second half puts W off */
    repeat(&w, (r + 1) % 2,       "BW1 B0");
    repeat(&w, (r + 1) / 2,       "B1 B0");
    repeat(&w, p - r - 1,         "W B0");
    repeat(&w, r + 1,             "W");
}

void pipeline_check(Pipeline *pipe)
{
    if (pipe->kind != INTERLEAVED && pipe->v > 1)
        fail_usage("--chunks %d, but only --schedule interleaved has a choice; zb-v and dualpipe-v have 2, the others "
                   "1", pipe->v);
    if ((pipe->kind == ZERO_BUBBLE || is_v(*pipe)) && options.recompute == RECOMPUTE_FULL)
        fail_usage("--recompute full with --schedule zero-bubble, zb-v or dualpipe-v: the weights' gradients come "
                   "later, and need what full recomputation has overwritten by then; --recompute selective works");
    if (pipe->kind == INTERLEAVED && pipe->m % pipe->p)
        fail("--accumulate %d is not a multiple of the %d ranks, in whose number --schedule interleaved takes "
             "micro-batches", pipe->m, pipe->p);
    if (pipe->kind == INTERLEAVED && pipe->v == 1 && pipe->p > 1)
        print_rank_0("interleaved with 1 chunk is 1f1b with more micro-batches in flight; --chunks 2 halves the "
                     "bubble\n");
    if (pipe->kind == INTERLEAVED && pipe->p == 1)
        pipe->v = 1;                                /* nobody to hand chunks to */
    if (is_v(*pipe))
        pipe->v = 2;
    if (pipe->layers < (long long)pipe->p * pipe->v)
        fail("--layers %d, but %d ranks x %d chunks need at least %lld", pipe->layers, pipe->p, pipe->v,
             (long long)pipe->p * pipe->v);
}

Schedule schedule_of(Pipeline pipe, int r)
{
    const int p = pipe.p, m = pipe.m, v = pipe.v;
    const size_t most = 3 * (size_t)m * v;
    Schedule s = {.list = most < INT32_MAX ? calloc(most, sizeof(Action)) : NULL, .capacity = most,
                  .in_flight = calloc(v, sizeof(int))};

    if (!s.list || !s.in_flight)
        fail("no room for a schedule of %d micro-batches in %d chunks", m, v);
    switch (pipe.kind) {
    case AFAB:        afab(&s, m); break;
    case ONE_F_ONE_B: one_f_one_b(&s, r, p, m); break;
    case INTERLEAVED: interleaved(&s, r, p, m, v); break;
    case ZERO_BUBBLE: zero_bubble(&s, r, p, m); break;
    case ZB_V:        zb_v(&s, r, p, m); break;
    case DUALPIPE_V:  dualpipe_v(&s, r, p, m); break;
    }
    for (int c = 0; c < v; c++)
        s.in_flight[c] = most_in_flight(s, c);
    return s;
}

void schedule_free(Schedule *s)
{
    free(s->list), free(s->in_flight);
}

int most_in_flight(Schedule s, int chunk)
{
    int now = 0, most = 0;

    for (const Action *a = s.list; a < s.list + s.count; a++)
        if ((a->chunk == chunk || chunk < 0) && a->kind != BACKWARD_INPUT) {
            now += a->kind == FORWARD ? 1 : -1;
            most = now > most ? now : most;
        }
    return most;
}
