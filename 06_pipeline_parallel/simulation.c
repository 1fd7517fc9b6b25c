/* One step of any schedule, simulated and drawn; the bubble of a run, measured. */
#include "simulation.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../common/base/device.h"
#include "../common/base/error.h"
#include "../common/base/print.h"
#include "../common/run/report.h"
#include "../common/base/trace.h"

/* ---- When can each action begin? ---- */

Times times_of(const char *text)
{
    Times t = {1, 1, 1, 0};
    char rest;

    if (text && (sscanf(text, "%d,%d,%d,%d%c", &t.forward, &t.input, &t.weight, &t.transfer, &rest) != 4
                 || t.forward < 1 || t.input < 1 || t.weight < 1 || t.transfer < 0
                 || t.forward > 99 || t.input > 99 || t.weight > 99 || t.transfer > 99))
        fail_usage("--times: expected T_F,T_B,T_W,TRANSFER, time slots from 1 to 99 (TRANSFER from 0), got '%s'; try "
                   "2,3,2,1", text);
    return t;
}

static int slots_of(Times t, ActionKind kind)
{
    return kind == FORWARD ? t.forward : (kind != BACKWARD_WEIGHT) * t.input + (kind != BACKWARD_INPUT) * t.weight;
}

/* Time slots that each rank computes per step. */
static int busy_slots(Pipeline pipe, Times t)
{
    return pipe.m * pipe.v_c * (t.forward + t.input + t.weight);
}

/* The time slot in which an action has ended; 0: not yet. BACKWARD shares BACKWARD_INPUT's place: both give d_x. */
static int *ended_at(const Simulation *s, int stage, int micro, ActionKind kind)
{
    const int column = kind == FORWARD ? 0 : kind == BACKWARD_WEIGHT ? 2 : 1;

    return &s->ended[((size_t)stage * s->pipe.m + micro) * 3 + column];
}

/* Performs the next action of rank r, if it has one and its dependency has finished. */
static bool advance(Simulation *s, int r)
{
    if (s->done[r] == s->ranks[r].count)
        return false;
    const Action a = s->ranks[r].list[s->done[r]];
    const int stage = stage_of(s->pipe, r, a.chunk);
    const Dependency need = dependency_of(stage, a.kind, s->pipe.p * s->pipe.v_c);
    int begin = s->clock[r];
    if (need.stage >= 0) {
        const int ended = *ended_at(s, need.stage, a.micro, need.kind);
        const int ready = ended + (rank_of(s->pipe, need.stage) != r) * s->times.transfer;
        if (!ended)
            return false;
        begin = ready > begin ? ready : begin;
    }
    s->clock[r] = begin + slots_of(s->times, a.kind);
    *ended_at(s, stage, a.micro, a.kind) = s->clock[r];
    s->done[r]++;
    return true;
}

/* Performs every action that can begin, until none can. */
static void play(Simulation *s)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < s->pipe.p; r++)
            while (advance(s, r))
                moved = true;
    }
    for (int r = 0; r < s->pipe.p; r++)
        s->slots = s->clock[r] > s->slots ? s->clock[r] : s->slots;
}

/* "B0"; with several model chunks, "B0 (chunk 1)". */
static void action_text(Pipeline pipe, Action a, char text[32])
{
    const int length = snprintf(text, 32, "%c%d", "FBBW"[a.kind], a.micro);

    if (pipe.v_c > 1)
        snprintf(text + length, 32 - length, " (chunk %d)", a.chunk);
}

/* Fails if an action of rank r doesn't exist. */
static void check_actions(Pipeline pipe, Schedule s, int r)
{
    for (int i = 0; i < s.count; i++) {
        const Action a = s.list[i];
        if (a.micro < 0 || a.micro >= pipe.m || a.chunk < 0 || a.chunk >= pipe.v_c)
            fail("rank %d, action %d: expected micro-batch 0 to %d in model chunk 0 to %d, got %d in %d", r, i,
                 pipe.m - 1, pipe.v_c - 1, a.micro, a.chunk);
    }
}

/* Fails if rank r computes a pass twice, or not at all. Before the latter it draws to `to`, unless NULL. */
static void check_complete(const Simulation *s, int r, FILE *to)
{
    enum { PASSES = 3 };                    /* the forward, and the two of a backward */
    static const int passes[] = {[FORWARD] = 1, [BACKWARD] = 2 + 4, [BACKWARD_INPUT] = 2, [BACKWARD_WEIGHT] = 4};
    static const ActionKind kinds[PASSES] = {FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT};
    const Pipeline pipe = s->pipe;
    unsigned char *seen = host_alloc((int64_t)pipe.v_c * pipe.m, "the passes of a rank");       /* [v_c][m] */
    int computed = 0;
    char missing[32] = "", text[32];

    for (const Action *a = s->ranks[r].list; a < s->ranks[r].list + s->ranks[r].count; a++) {
        action_text(pipe, *a, text);
        if (seen[a->chunk * pipe.m + a->micro] & passes[a->kind])
            fail("rank %d: %s comes twice", r, text);
        seen[a->chunk * pipe.m + a->micro] |= passes[a->kind];
    }
    for (int pass = 0; pass < PASSES; pass++)
        for (int i = 0; i < pipe.m * pipe.v_c; i++) {
            const Action a = {kinds[pass], i % pipe.m, i / pipe.m};
            if (seen[i] & passes[a.kind])
                computed++;
            else if (!*missing)
                action_text(pipe, a, missing);
        }
    free(seen);
    if (!*missing)
        return;
    if (to)
        simulation_draw(s, to);
    fail("rank %d computes %d of the %d forward, input-gradient and weight-gradient passes of a step: %s is missing", r,
         computed, busy_slots(pipe, times_of(NULL)), missing);
}

void simulation_free(Simulation *s)
{
    for (int r = 0; r < s->pipe.p; r++)
        schedule_free(&s->ranks[r]);
    free(s->ranks), free(s->done), free(s->clock), free(s->ended);
}

/* ---- Charts and formulas ---- */

/* With few micro-batches, the bubble is larger: there are too few W passes to fill it, and in a V too few forwards. */
double bubble_formula(Pipeline pipe, const char **text)
{
    const int p = pipe.p, m = pipe.m;
    const char *formula = "(p-1)/(v_c m)";
    double bubble = (p - 1.0) / pipe.v_c / m;

    if (pipe.kind == ZERO_BUBBLE) {
        formula = m < p ? "(p-1 + p-m)/(3 m)" : "(p-1)/(3 m)";
        bubble = (p - 1.0 + (m < p ? p - m : 0)) / 3 / m;
    }
    if (pipe.kind == ZB_V) {
        formula = 2 * m < 3 * p - 1 ? "(4p-2 - 2m)/(6 m)" : "(p-1)/(6 m)";
        bubble = (2 * m < 3 * p - 1 ? 4.0 * p - 2 - 2 * m : p - 1.0) / 6 / m;
    }
    if (pipe.kind == DUALPIPE_V) {
        formula = m <= p ? "(p-1 + 4p-2 - 2m)/(6 m)" : m < 2 * p ? "(p-1 + 4p - 2m)/(6 m)" : "(p-1)/(6 m)";
        bubble = (p - 1.0 + (m <= p ? 4 * p - 2 - 2 * m : m < 2 * p ? 4 * p - 2 * m : 0)) / 6 / m;
    }
    if (text)
        *text = formula;
    return bubble;
}

void simulation_draw(const Simulation *s, FILE *to)
{
    char *micros = malloc(s->slots + 1), *chunks = malloc(s->slots + 1);

    if (!micros || !chunks)
        fail("not enough memory to draw %d time slots", s->slots);
    for (int r = 0; r < s->pipe.p; r++) {
        memset(micros, '.', s->slots);
        memset(chunks, '.', s->slots);
        for (int i = 0; i < s->done[r]; i++) {
            const Action a = s->ranks[r].list[i];
            const char first = a.kind == FORWARD ? '0' : a.kind == BACKWARD_WEIGHT ? 'A' : 'a';
            const int end = *ended_at(s, stage_of(s->pipe, r, a.chunk), a.micro, a.kind);
            const int slots = slots_of(s->times, a.kind);
            memset(micros + end - slots, first + a.micro % 10, slots);
            memset(chunks + end - slots, '0' + a.chunk % 10, slots);
        }
        fprintf(to, "rank %-3d %.*s\n", r, s->slots, micros);
        if (s->pipe.v_c > 1)
            fprintf(to, "  chunk  %.*s\n", s->slots, chunks);
    }
    free(micros), free(chunks);
}

void simulation_print(const Simulation *s)
{
    const Times t = s->times;
    const char *formula;
    const double expected = bubble_formula(s->pipe, &formula);

    if (comm_rank(world))
        return;
    simulation_draw(s, stdout);
    printf("bubble %.4f (idle over busy time); %s%s = %.4f\n", s->bubble,
           t.input != t.forward || t.weight != t.forward || t.transfer ? "with T_F = T_B = T_W and no transfer time "
                                                                       : "", formula, expected);
    printf("from a rank's first action to its last: at most %.4f\n", s->inside);
    printf("%s in flight at most, per rank:", s->pipe.v_c > 1 ? "model chunks" : "micro-batches");
    for (int r = 0; r < s->pipe.p; r++)
        printf(" %d", most_in_flight(s->ranks[r], -1));
    printf("\n");
}

/* The rank that rank r, which has not ended, waits for. */
static int awaited(const Simulation *s, int r)
{
    const Action a = s->ranks[r].list[s->done[r]];
    const int stages = s->pipe.p * s->pipe.v_c;

    return rank_of(s->pipe, dependency_of(stage_of(s->pipe, r, a.chunk), a.kind, stages).stage);
}

static const char *wait_text(const Simulation *s, int r)
{
    char waiting[32], needed[32];
    const Action a = s->ranks[r].list[s->done[r]];
    const Dependency need = dependency_of(stage_of(s->pipe, r, a.chunk), a.kind, s->pipe.p * s->pipe.v_c);

    action_text(s->pipe, a, waiting);
    action_text(s->pipe, (Action){need.kind, a.micro, chunk_of(s->pipe, need.stage)}, needed);
    return format_text("rank %d waits at its action %s for %s of rank %d", r, waiting, needed, awaited(s, r));
}

/* Fails if some rank's list has not ended: a deadlock, a cycle of ranks that wait for each other. */
static void check_ended(const Simulation *s, FILE *to)
{
    int stuck = 0;

    while (stuck < s->pipe.p && s->done[stuck] == s->ranks[stuck].count)
        stuck++;
    if (stuck >= s->pipe.p)
        return;
    if (to)
        simulation_draw(s, to);
    for (int r = stuck; r < s->pipe.p && to; r++)
        if (s->done[r] < s->ranks[r].count)
            fprintf(to, "%s\n", wait_text(s, r));
    for (int i = 0; i < s->pipe.p; i++)                    /* so many hops end in the cycle */
        stuck = awaited(s, stuck);
    char text[1024] = "";
    int r = stuck, length = 0;
    do {
        length += snprintf(text + length, sizeof text - length, "%s%s", length ? "; " : "", wait_text(s, r));
        r = awaited(s, r);
    } while (r != stuck && length < 800);
    fail("this schedule deadlocks: %s%s", text, r == stuck ? "" : "; and so on");
}

Simulation simulate_lists(Pipeline pipe, Schedule *ranks, Times times, FILE *to)
{
    const int p = pipe.p;
    const double busy = busy_slots(pipe, times);
    Simulation s = {.pipe = pipe, .times = times, .ranks = ranks, .done = calloc(p, sizeof(int)),
                    .clock = calloc(p, sizeof(int)), .ended = calloc(3 * (size_t)p * pipe.v_c * pipe.m, sizeof(int))};

    if (!s.done || !s.clock || !s.ended)
        fail("not enough memory to simulate %d ranks and %d micro-batches", p, pipe.m);
    for (int r = 0; r < p; r++)
        check_actions(pipe, ranks[r], r);
    play(&s);
    for (int r = 0; r < p; r++)
        check_complete(&s, r, to);
    check_ended(&s, to);
    s.bubble = (s.slots - busy) / busy;
    for (int r = 0; r < p; r++) {
        const Action first = s.ranks[r].list[0];
        const int ended = *ended_at(&s, stage_of(pipe, r, first.chunk), first.micro, first.kind);
        s.inside = fmax(s.inside, (s.clock[r] - ended + slots_of(times, first.kind) - busy) / busy);
    }
    return s;
}

Simulation simulate(Pipeline pipe, Times times, FILE *to)
{
    Schedule *ranks = host_alloc(pipe.p * sizeof *ranks, "the schedules of all ranks");

    for (int r = 0; r < pipe.p; r++)
        ranks[r] = schedule_of(pipe, r);
    return simulate_lists(pipe, ranks, times, to);
}

/* ---- The bubble of a run ---- */

static DeviceEvent *events;                 /* begin and end of each action of the step */
static int event_count, measured_steps;
static double step_start;
static double idle, inside, busy;           /* seconds of all steps but the first; inside: from first to last action */

void bubble_step_begin(Comm *pp, int actions)
{
    events = realloc(events, 2 * (size_t)actions * sizeof *events);
    if (!events)
        fail("not enough memory to time %d actions", actions);
    event_count = 0;
    comm_barrier(pp);
    step_start = clock_seconds();
}

void measure_begin(ActionKind kind)
{
    static const char *const name[] = {"forward", "backward", "backward_input", "backward_weight"};

    events[event_count++] = device_event();
    trace_begin(name[kind]);
}

void measure_end(void)
{
    trace_end();
    events[event_count++] = device_event();
}

void bubble_step_end(Comm *pp)
{
    double computed = 0, first = 0, last = 0;

    for (int i = 0; i < event_count; i += 2) {
        const double begin = device_event_seconds(&events[i]);
        last = device_event_seconds(&events[i + 1]);
        first = i ? first : begin;
        computed += last - begin;
    }
    comm_barrier(pp);
    if (measured_steps++ == 0)
        return;
    idle += clock_seconds() - step_start - computed;
    inside += last - first - computed;
    busy += computed;
}

static void print_ranks(Comm *pp, double own)
{
    double all[comm_size(pp)];

    comm_gather_host(pp, all, &own, sizeof own);
    for (int r = 0; r < comm_size(pp); r++)
        print_rank_0(" %.3f", all[r]);
}

void bubble_report(Comm *pp, const Simulation *simulated)
{
    const Times t = simulated->times;

    report_number("in_flight", most_in_flight(simulated->ranks[comm_rank(pp)], -1));
    report_number("bubble_simulated", simulated->bubble);
    report_number("bubble_formula", bubble_formula(simulated->pipe, NULL));
    if (!busy)
        return;
    report_number("bubble", idle / busy);
    report_number("bubble_inside", inside / busy);
    print_rank_0("bubble  idle over busy time, per rank:");
    print_ranks(pp, idle / busy);
    print_rank_0("; simulated, with --times %d,%d,%d,%d, %.3f\n        from a rank's first action to its last:",
                 t.forward, t.input, t.weight, t.transfer, simulated->bubble);
    print_ranks(pp, inside / busy);
    print_rank_0("; simulated, at most %.3f\n", simulated->inside);
}
