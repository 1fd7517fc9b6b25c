/* Where each pipeline stage is, what each action waits for, and the schedules. */
#include "schedule.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../common/base/error.h"
#include "../common/base/options.h"
#include "../common/base/print.h"

/* ---- Where each pipeline stage is ---- */

static bool is_v(Pipeline pipe)
{
    return pipe.kind == ZB_V || pipe.kind == DUALPIPE_V;
}

/* The rank of a chunk's i-th pipeline stage, and also, as reversing twice changes nothing, the inverse. */
static int mirror(Pipeline pipe, int chunk, int i)
{
    return is_v(pipe) && chunk % 2 ? pipe.p - 1 - i : i;
}

int stage_of(Pipeline pipe, int rank, int chunk)
{
    return chunk * pipe.p + mirror(pipe, chunk, rank);
}

int rank_of(Pipeline pipe, int stage)
{
    return mirror(pipe, chunk_of(pipe, stage), stage % pipe.p);
}

int chunk_of(Pipeline pipe, int stage)
{
    return stage / pipe.p;
}

Range layers_of(Pipeline pipe, int stage)
{
    const Config c = options.config;

    return range_split_last(c.layers, c.vocab / (12.0 * c.hidden + 2.0 * c.seq), stage, pipe.p * pipe.v_c);
}

/* ---- What an action waits for ---- */

Dependency dependency_of(int stage, ActionKind kind, int stages)
{
    if (kind == FORWARD)
        return (Dependency){stage - 1, FORWARD};              /* x; pipeline stage 0 has tokens */
    if (kind == BACKWARD_WEIGHT)
        return (Dependency){stage, BACKWARD_INPUT};
    if (stage == stages - 1)
        return (Dependency){stage, FORWARD};                  /* the loss */
    return (Dependency){stage + 1, BACKWARD_INPUT};           /* d_x */
}

/* A tag names the tensor that is sent: x or d_x of this micro-batch, into this pipeline stage. Tags repeat after 1024
 * micro-batches, long after the earlier transfer with the same tag has arrived. */
static int tag_of(Action a, int into, int stages)
{
    return (a.micro % 1024 * stages + into) * 2 + (a.kind != FORWARD);
}

/* For an action of rank r: between r and the rank of pipeline stage `other`, if that is another rank. */
static Message message(Pipeline pipe, Action a, int r, int other, int into)
{
    const bool sent = other >= 0 && other < pipe.p * pipe.v_c && rank_of(pipe, other) != r;

    return (Message){sent ? rank_of(pipe, other) : -1, tag_of(a, into, pipe.p * pipe.v_c)};
}

Message message_in(Pipeline pipe, Action a, int r)
{
    const int stage = stage_of(pipe, r, a.chunk);

    return message(pipe, a, r, dependency_of(stage, a.kind, pipe.p * pipe.v_c).stage, stage);
}

Message message_out(Pipeline pipe, Action a, int r)
{
    const int stage = stage_of(pipe, r, a.chunk), into = a.kind == FORWARD ? stage + 1 : stage - 1;

    return message(pipe, a, r, a.kind == BACKWARD_WEIGHT ? -1 : into, into);
}

/* ---- Schedules: each is a list of actions, made from rank and counts alone ---- */

static void schedule_add(Schedule *s, ActionKind kind, int micro, int chunk)
{
    if (s->count == s->capacity)
        fail("this schedule has more than %d actions, three per micro-batch and model chunk", s->capacity);
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

/* One forward, one backward (PipeDream-Flush, Narayanan et al. 2021a): each backward as early as it can be. */
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

/* Rounds of p micro-batches: through model chunk 0, then the same p through chunk 1, ... (Narayanan et al. 2021b). */
static void interleaved(Schedule *s, int r, int p, int m, int v_c)
{
    const int total = m * v_c, all = 2 * (p - r - 1) + (v_c - 1) * p, warmup = all < total ? all : total;

    for (int f = 0, b = 0; b < total;) {
        if (f < total) {
            schedule_add(s, FORWARD, f / (p * v_c) * p + f % p, f / p % v_c);
            f++;
        }
        if (f > warmup || f == total) {
            schedule_add(s, BACKWARD, b / (p * v_c) * p + b % p, v_c - 1 - b / p % v_c);
            b++;
        }
    }
}

/* 1F1B whose weight-gradient passes come r micro-batches later, where 1F1B would be idle (ZB-H1, Qi et al. 2023). */
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

/* Schedules from patterns such as "F1 B1 W". F0 is chunk 0's next FORWARD, B0 its next BACKWARD_INPUT, BW0 its next
 * BACKWARD. W is the BACKWARD_WEIGHT, of either chunk, that has been pending longest. */
typedef struct {
    Schedule *list;
    int m, next[2][2];              /* [forward, backward][chunk]  micro-batches; from m on they are left out */
    int weights_done;               /* the list has the BACKWARD_WEIGHT of every action before this one */
} Pattern;

static void add_code(Pattern *w, const char *code)
{
    const Schedule *s = w->list;
    const bool back = code[0] == 'B', both = code[1] == 'W';

    if (code[0] == 'W') {
        while (w->weights_done < s->count && s->list[w->weights_done].kind != BACKWARD_INPUT)
            w->weights_done++;
        if (w->weights_done < s->count) {
            const Action input = s->list[w->weights_done++];
            schedule_add(w->list, BACKWARD_WEIGHT, input.micro, input.chunk);
        }
        return;
    }
    const int chunk = code[1 + both] - '0';
    if ((code[0] != 'F' && !back) || chunk < 0 || chunk > 1)
        fail("a schedule's pattern: expected F0, F1, B0, B1, BW0, BW1 or W, got \"%s\"", code);
    const int micro = w->next[back][chunk]++;
    if (micro < w->m)
        schedule_add(w->list, both ? BACKWARD : back ? BACKWARD_INPUT : FORWARD, micro, chunk);
}

static void repeat(Pattern *w, int times, const char *codes)
{
    for (int i = 0; i < times; i++)
        for (const char *code = codes; *code; code += strcspn(code, " "), code += *code == ' ')
            add_code(w, code);
}

/* ZB-V (Qi et al. 2023, section 6). Forwards until x has come back through the V; then all kinds of actions of both
 * chunks in turn; at the end, when no forwards are left, the pending weight-gradient passes. F0 comes after B0 and W,
 * and so reuses their buffers. The pattern needs 2p - 1 micro-batches; with fewer, the others' actions are left out. */
static void zb_v(Schedule *s, int r, int p, int m)
{
    const int micros = m > 2 * p - 1 ? m : 2 * p - 1;
    Pattern w = {.list = s, .m = m};

    repeat(&w, 2 * (p - r) - 1, "F0");
    repeat(&w, r,               "F1 F0");
    repeat(&w, p - r,           "F1 B1 W");
    repeat(&w, micros - p,      "B0 W F0 F1 B1 W");
    repeat(&w, r,               "B0 B1");
    repeat(&w, p - r,           "B0 W");
    repeat(&w, 2 * r,           "W");
}

/* DualPipe-V (Sea AI Lab 2025). DualPipe (DeepSeek-V3) feeds micro-batches from both ends, and two ranks hold each
 * pipeline stage. Half of its ranks form a V with one end. A forward of one chunk is paired with a backward of the
 * other: what one of them sends is in flight while the other computes. Needs 2p micro-batches; with fewer: zb_v. */
static void dualpipe_v(Schedule *s, int r, int p, int m)
{
    const int micros = m > 2 * p ? m : 2 * p;
    Pattern w = {.list = s, .m = m};

    repeat(&w, 2 * (p - r - 1),        "F0");
    repeat(&w, r + 1,                  "F0 F1");
    repeat(&w, p - r - 1,              "B1 W F1");
    repeat(&w, micros - 2 * p + r + 1, "F0 BW1 F1 BW0");
    repeat(&w, p - r - 1,              "BW1 F1 BW0");
    repeat(&w, (r + 1) / 2,            "BW1 BW0");      /* of 2 (r + 1) backwards the second half defers W */
    repeat(&w, (r + 1) % 2,            "BW1 B0");
    repeat(&w, (r + 1) / 2,            "B1 B0");
    repeat(&w, p - r - 1,              "W B0");
    repeat(&w, r + 1,                  "W");
}

void pipeline_check(Pipeline *pipe)
{
    const int p = pipe->p, m = pipe->m;

    if (pipe->kind != INTERLEAVED && pipe->v_c > 1)
        fail_usage("--chunks: expected 1 unless --schedule is interleaved, got %d; zb-v and dualpipe-v always have 2",
                   pipe->v_c);
    if ((pipe->kind == ZERO_BUBBLE || is_v(*pipe)) && options.recompute == RECOMPUTE_FULL)
        fail_usage("--recompute full: cannot be combined with --schedule zero-bubble, zb-v or dualpipe-v, whose weight-"
                   "gradient passes read what recomputation has overwritten by then; try --recompute selective");
    if (pipe->kind == INTERLEAVED && m % p)
        fail("--accumulate: expected a multiple of the %d ranks with --schedule interleaved, got %d; try %d", p, m,
             (m / p + 1) * p);
    if (pipe->kind == INTERLEAVED && pipe->v_c == 1 && p > 1)
        print_rank_0("interleaved with 1 model chunk is 1f1b with more micro-batches in flight; --chunks 2 halves the "
                     "bubble\n");
    if (pipe->kind == INTERLEAVED && p == 1)
        pipe->v_c = 1;                              /* with one rank chunks change nothing */
    if (is_v(*pipe))
        pipe->v_c = 2;
    if (pipe->layers < (long long)p * pipe->v_c)
        fail("--layers: expected at least %lld for %d ranks x %d model chunk%s, got %d", (long long)p * pipe->v_c,
             p, pipe->v_c, pipe->v_c == 1 ? "" : "s", pipe->layers);
}

Schedule schedule_of(Pipeline pipe, int r)
{
    const int p = pipe.p, m = pipe.m, v_c = pipe.v_c;
    const size_t capacity = 3 * (size_t)m * v_c;
    Schedule s = {.list = capacity < INT32_MAX ? calloc(capacity, sizeof(Action)) : NULL, .capacity = capacity,
                  .in_flight = calloc(v_c, sizeof(int))};

    if (!s.list || !s.in_flight)
        fail("not enough memory for a schedule of %d micro-batches in %d model chunks", m, v_c);
    switch (pipe.kind) {
    case AFAB:        afab(&s, m); break;
    case ONE_F_ONE_B: one_f_one_b(&s, r, p, m); break;
    case INTERLEAVED: interleaved(&s, r, p, m, v_c); break;
    case ZERO_BUBBLE: zero_bubble(&s, r, p, m); break;
    case ZB_V:        zb_v(&s, r, p, m); break;
    case DUALPIPE_V:  dualpipe_v(&s, r, p, m); break;
    }
    for (int c = 0; c < v_c; c++)
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
