/* The schedules; below them the simulation and the drawing of any schedule. */
#include "schedule.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../common/device.h"
#include "../common/error.h"
#include "../common/print.h"
#include "../common/report.h"

/* ---- What an action waits for ---- */

const char *const action_name[] = {"forward", "backward", "backward_input", "backward_weight"};

/* What must have ended before an action of a stage begins: an action of the same micro-batch. */
typedef struct {
    int stage;                      /* -1: nothing must */
    ActionKind kind;                /* BACKWARD_INPUT: or BACKWARD, which makes the same d_x */
} Need;

static Need need_of(int stage, ActionKind kind, int stages)
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

Message message_in(Action a, int r, int p, int v)
{
    const int stage = stage_of(r, a.chunk, p), from = need_of(stage, a.kind, p * v).stage;

    return (Message){from >= 0 && from != stage ? rank_of(from, p) : -1, tag_of(a, stage, p * v)};
}

Message message_out(Action a, int r, int p, int v)
{
    const int stage = stage_of(r, a.chunk, p), into = a.kind == FORWARD ? stage + 1 : stage - 1;

    return (Message){a.kind != BACKWARD_WEIGHT && into >= 0 && into < p * v ? rank_of(into, p) : -1,
                     tag_of(a, into, p * v)};
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

void schedule_check(ScheduleKind kind, int p, int m, int v, int layers)
{
    if (kind != INTERLEAVED && v > 1)
        fail_usage("--chunks %d, but only --schedule interleaved has more than 1", v);
    if (kind == INTERLEAVED && m % p)
        fail("--accumulate %d is not a multiple of the %d ranks, in whose number --schedule interleaved takes "
             "micro-batches", m, p);
    if (layers < (long long)p * v)
        fail("--layers %d, but %d ranks x %d chunks need at least %lld", layers, p, v, (long long)p * v);
}

Schedule schedule_of(ScheduleKind kind, int r, int p, int m, int v)
{
    const size_t most = 3 * (size_t)m * v;
    Schedule s = {.list = most < INT32_MAX ? calloc(most, sizeof(Action)) : NULL, .capacity = most};

    if (!s.list)
        fail("no room for a schedule of %d micro-batches in %d chunks", m, v);
    switch (kind) {
    case AFAB:        afab(&s, m); break;
    case ONE_F_ONE_B: one_f_one_b(&s, r, p, m); break;
    case INTERLEAVED: interleaved(&s, r, p, m, v); break;
    case ZERO_BUBBLE: zero_bubble(&s, r, p, m); break;
    }
    return s;
}

int most_in_flight(Schedule s, int chunk)
{
    int now = 0, most = 0;

    for (const Action *a = s.list; a < s.list + s.count; a++)
        if (a->chunk == chunk && a->kind != BACKWARD_INPUT) {
            now += a->kind == FORWARD ? 1 : -1;
            most = now > most ? now : most;
        }
    return most;
}

/* ---- Simulation: when can each action begin? ---- */

static int slots_of(ActionKind kind)
{
    return kind == BACKWARD ? 2 : 1;
}

/* The table of when actions have ended; 0: not yet. BACKWARD stands where BACKWARD_INPUT does, as what waits for d_x
 * waits for either. */
static int *ended_at(const Simulation *s, int stage, int micro, ActionKind kind)
{
    const int column = kind == FORWARD ? 0 : kind == BACKWARD_WEIGHT ? 2 : 1;

    return &s->ended[((size_t)stage * s->m + micro) * 3 + column];
}

/* Does rank r's next action, as soon as what it needs has ended; false: there is none, or that has not. */
static bool advance(Simulation *s, int r)
{
    if (s->done[r] == s->ranks[r].count)
        return false;
    const Action a = s->ranks[r].list[s->done[r]];
    const int stage = stage_of(r, a.chunk, s->p);
    const Need need = need_of(stage, a.kind, s->p * s->v);
    const int ready = need.stage < 0 ? 0 : *ended_at(s, need.stage, a.micro, need.kind);
    if (need.stage >= 0 && !ready)
        return false;
    const int begin = ready > s->clock[r] ? ready : s->clock[r];
    s->clock[r] = begin + slots_of(a.kind);
    *ended_at(s, stage, a.micro, a.kind) = s->clock[r];
    s->done[r]++;
    return true;
}

/* All that can be done of the ranks' lists. */
static void play(Simulation *s)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < s->p; r++)
            while (advance(s, r))
                moved = true;
    }
    for (int r = 0; r < s->p; r++)
        s->slots = s->clock[r] > s->slots ? s->clock[r] : s->slots;
}

static void check_actions(Schedule s, int r, int m, int v)
{
    int slots = 0;

    for (int i = 0; i < s.count; i++) {
        const Action a = s.list[i];
        if (a.micro < 0 || a.micro >= m || a.chunk < 0 || a.chunk >= v)
            fail("rank %d's action %d is of micro-batch %d in chunk %d: there are %d in %d", r, i, a.micro, a.chunk, m,
                 v);
        slots += slots_of(a.kind);
    }
    if (slots != 3 * m * v)
        fail("rank %d computes %d of a step's %d forwards, input gradients and weights' gradients", r, slots,
             3 * m * v);
}

void simulation_free(Simulation *s)
{
    for (int r = 0; r < s->p; r++)
        free(s->ranks[r].list);
    free(s->ranks), free(s->done), free(s->clock), free(s->ended);
}

/* ---- For the reader ---- */

/* In ZB-H1 a micro-batch fewer than ranks is a W fewer to fill the bubble with. */
double bubble_formula(ScheduleKind kind, int p, int m, int v)
{
    return kind == ZERO_BUBBLE ? (p - 1.0 + (m < p ? p - m : 0)) / 3 / m : (p - 1.0) / v / m;
}

void simulation_draw(const Simulation *s, FILE *to)
{
    char *micros = malloc(s->slots + 1), *chunks = malloc(s->slots + 1);

    if (!micros || !chunks)
        fail("no memory to draw %d time slots", s->slots);
    for (int r = 0; r < s->p; r++) {
        memset(micros, '.', s->slots);
        memset(chunks, '.', s->slots);
        for (int i = 0; i < s->done[r]; i++) {
            const Action a = s->ranks[r].list[i];
            const char first = a.kind == FORWARD ? '0' : a.kind == BACKWARD_WEIGHT ? 'A' : 'a';
            const int end = *ended_at(s, stage_of(r, a.chunk, s->p), a.micro, a.kind);
            memset(micros + end - slots_of(a.kind), first + a.micro % 10, slots_of(a.kind));
            memset(chunks + end - slots_of(a.kind), '0' + a.chunk % 10, slots_of(a.kind));
        }
        fprintf(to, "rank %-3d %.*s\n", r, s->slots, micros);
        if (s->v > 1)
            fprintf(to, "  chunk  %.*s\n", s->slots, chunks);
    }
    free(micros), free(chunks);
}

void simulation_print(const Simulation *s, ScheduleKind kind)
{
    const char *formula = kind != ZERO_BUBBLE ? "(p-1)/(v m)" : s->m < s->p ? "(p-1 + p-m)/(3 m)" : "(p-1)/(3 m)";

    simulation_draw(s, stdout);
    printf("bubble %.4f of the time that is computed; %s = %.4f\n", s->bubble, formula,
           bubble_formula(kind, s->p, s->m, s->v));
}

/* "B0", or, where there are several chunks, "B0 (chunk 1)". */
static void action_text(const Simulation *s, Action a, char text[32])
{
    const int length = snprintf(text, 32, "%c%d", "FBBW"[a.kind], a.micro);

    if (s->v > 1)
        snprintf(text + length, 32 - length, " (chunk %d)", a.chunk);
}

static const char *wait_text(const Simulation *s, int r)
{
    static char text[128];
    char waiting[32], needed[32];
    const Action a = s->ranks[r].list[s->done[r]];
    const Need need = need_of(stage_of(r, a.chunk, s->p), a.kind, s->p * s->v);

    action_text(s, a, waiting);
    action_text(s, (Action){need.kind, a.micro, chunk_of(need.stage, s->p)}, needed);
    snprintf(text, sizeof text, "rank %d waits at its action %s for %s of rank %d", r, waiting, needed,
             rank_of(need.stage, s->p));
    return text;
}

/* If the schedule waits for itself, some ranks' lists have not ended. */
static void check_ended(const Simulation *s, FILE *to)
{
    int stuck = 0;

    while (stuck < s->p && s->done[stuck] == s->ranks[stuck].count)
        stuck++;
    if (stuck >= s->p)
        return;
    if (to)
        simulation_draw(s, to);
    for (int r = stuck; r < s->p && to; r++)
        if (s->done[r] < s->ranks[r].count)
            fprintf(to, "%s\n", wait_text(s, r));
    fail("this schedule waits for itself: %s", wait_text(s, stuck));
}

Simulation simulate(ScheduleKind kind, int p, int m, int v, FILE *to)
{
    Simulation s = {.p = p, .m = m, .v = v, .ranks = calloc(p, sizeof(Schedule)), .done = calloc(p, sizeof(int)),
                    .clock = calloc(p, sizeof(int)), .ended = calloc(3 * (size_t)p * v * m, sizeof(int))};

    if (!s.ranks || !s.done || !s.clock || !s.ended)
        fail("no memory to simulate %d ranks and %d micro-batches", p, m);
    for (int r = 0; r < p; r++) {
        s.ranks[r] = schedule_of(kind, r, p, m, v);
        check_actions(s.ranks[r], r, m, v);
    }
    play(&s);
    check_ended(&s, to);
    s.bubble = (s.slots - 3.0 * m * v) / (3.0 * m * v);
    return s;
}

/* ---- The bubble as it is ---- */

static DeviceEvent *moments;
static int moment_count, measured_steps;
static double began, idle, busy;            /* seconds: when the step began; of all steps but the first */

void bubble_step_begin(Comm *pp, int actions)
{
    moments = realloc(moments, 2 * (size_t)actions * sizeof *moments);
    if (!moments)
        fail("no memory to time %d actions", actions);
    moment_count = 0;
    comm_barrier(pp);
    began = clock_seconds();
}

void bubble_moment(void)
{
    moments[moment_count++] = device_event();
}

void bubble_step_end(Comm *pp)
{
    double computed = 0;

    for (int i = 0; i < moment_count; i += 2)
        computed += -device_event_seconds(&moments[i]) + device_event_seconds(&moments[i + 1]);
    comm_barrier(pp);
    if (measured_steps++ == 0)
        return;
    idle += clock_seconds() - began - computed;
    busy += computed;
}

void bubble_report(Comm *pp, double simulated)
{
    const double measured = idle / busy;
    double all[comm_size(pp)];

    if (isnan(measured))
        return;
    report_number("bubble", measured);
    comm_gather_host(pp, all, &measured, sizeof measured);
    print_rank_0("bubble  idle over busy time, rank by rank:");
    for (int r = 0; r < comm_size(pp); r++)
        print_rank_0(" %.3f", all[r]);
    print_rank_0("; simulated, all calls alike, %.3f\n", simulated);
}
