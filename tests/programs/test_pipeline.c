/* 06: its schedules as data, without running them; its bubble. (test_equivalence runs them with --check, under which a
 * send lasts until its receive begins, and no buffer may change in flight.) */
#define main program_main
#include "../../06_pipeline_parallel/train.c"
#undef main
#include "../../06_pipeline_parallel/schedule.c"
#include "../../06_pipeline_parallel/simulation.c"

#include <string.h>

#include "../harness.h"

enum { RANKS = 16, MICROS = 64, CHUNKS = 4 };

static const char *const kind_name[] = {"afab", "1f1b", "interleaved", "zero-bubble", "zb-v", "dualpipe-v"};

/* ---- Schedules as data ---- */

static const Times ALIKE = {1, 1, 1, 0};

static const char *name_of(Pipeline pipe)
{
    static char text[64];

    snprintf(text, sizeof text, "%s, p %d, m %d, v %d", kind_name[pipe.kind], pipe.p, pipe.m, pipe.v_c);
    return text;
}

static void each_action_once(Pipeline pipe)
{
    for (int r = 0; r < pipe.p; r++) {
        static int seen[4][MICROS][CHUNKS];
        Schedule s = schedule_of(pipe, r);
        memset(seen, 0, sizeof seen);
        for (const Action *a = s.list; a < s.list + s.count; a++) {
            if (a->micro < 0 || a->micro >= pipe.m || a->chunk < 0 || a->chunk >= pipe.v_c)
                fail_msg("%s, rank %d: micro-batch %d, chunk %d", name_of(pipe), r, a->micro, a->chunk);
            seen[a->kind][a->micro][a->chunk]++;
        }
        for (int i = 0; i < pipe.m; i++)
            for (int c = 0; c < pipe.v_c; c++) {
                const int both = seen[BACKWARD][i][c], input = seen[BACKWARD_INPUT][i][c];
                const bool split = pipe.kind == DUALPIPE_V ? input : pipe.kind >= ZERO_BUBBLE;
                if (seen[FORWARD][i][c] != 1 || both != !split || input != split
                    || seen[BACKWARD_WEIGHT][i][c] != split)
                    fail_msg("%s, rank %d: micro-batch %d, chunk %d is not computed once", name_of(pipe), r, i, c);
            }
        schedule_free(&s);
    }
}

/* NCCL has no tags, so each rank posts receives from a peer in the order of that peer's sends: x in one group, d_x in
 * the other. */
static void receives_are_in_the_order_of_sends(Pipeline pipe)
{
    static int sent[2][RANKS][RANKS][MICROS * CHUNKS], count[2][RANKS][RANKS];

    memset(count, 0, sizeof count);
    for (int receives = 0; receives < 2; receives++) {
        static int next[2][RANKS][RANKS];
        memset(next, 0, sizeof next);
        for (int r = 0; r < pipe.p; r++) {
            Schedule s = schedule_of(pipe, r);
            for (const Action *a = s.list; a < s.list + s.count; a++) {
                const Message t = receives ? message_in(pipe, *a, r) : message_out(pipe, *a, r);
                const int way = a->kind != FORWARD, from = receives ? t.peer : r, to = receives ? r : t.peer;
                if (t.peer < 0)
                    continue;
                if (!receives)
                    sent[way][from][to][count[way][from][to]++] = t.tag;
                else if (sent[way][from][to][next[way][from][to]++] != t.tag)
                    fail_msg("%s: rank %d receives from rank %d in another order than it sends", name_of(pipe), to,
                             from);
            }
            schedule_free(&s);
        }
        if (receives)
            assert_memory_equal(next, count, sizeof next);
    }
}

/* Idle time slots of a rank that computes for 3 m v_c slots. */
static int idle_slots(Pipeline pipe)
{
    const int p = pipe.p, m = pipe.m;

    if (pipe.kind == ZERO_BUBBLE)
        return p - 1 + (m < p ? p - m : 0);
    if (pipe.kind == ZB_V)
        return m < 2 * p && 4 * p - 2 - 2 * m > p - 1 ? 4 * p - 2 - 2 * m : p - 1;
    if (pipe.kind == DUALPIPE_V)
        return p - 1 + (m < 2 * p ? 2 * (2 * p - m - (m <= p)) : 0);
    return 3 * (p - 1);
}

static void bubble_is_the_formula(Pipeline pipe)
{
    Simulation s = simulate(pipe, ALIKE, NULL);
    const double formula = idle_slots(pipe) / (3.0 * pipe.v_c * pipe.m);
    const char *text;

    if (!(fabs(s.bubble - formula) < 1e-12) || !(fabs(bubble_formula(pipe, &text) - formula) < 1e-12))
        fail_msg("%s: a bubble of %g, not %g; by %s %g", name_of(pipe), s.bubble, formula, text,
                 bubble_formula(pipe, NULL));
    if (pipe.kind == ZB_V && pipe.m >= 2 * pipe.p - 1 && s.inside != 0)     /* the paper's zero bubble */
        fail_msg("%s: a rank is idle for %g between its first action and its last", name_of(pipe), s.inside);
    if (pipe.kind <= ONE_F_ONE_B)               /* rank 0 begins and ends the step */
        assert_true(fabs(s.inside - s.bubble) < 1e-12);
    simulation_free(&s);
}

/* Micro-batches in flight per rank: over all its model chunks, and in each chunk of a V. Chunks of a V have half the
 * layers, so 2p micro-batches in flight in ZB-V take the memory of p in 1F1B. */
static void in_flight_is_bounded(Pipeline pipe)
{
    const int p = pipe.p, m = pipe.m, v = pipe.v_c;

    for (int r = 0; r < p; r++) {
        Schedule s = schedule_of(pipe, r);
        const int most = most_in_flight(s, -1);
        int now = 0, bound = m, seen = 0;
        for (const Action *a = s.list; a < s.list + s.count; a++) {
            now += a->kind == FORWARD ? 1 : a->kind == BACKWARD_INPUT ? 0 : -1;
            seen = now > seen ? now : seen;
        }
        assert_int_equal(most, seen);
        if (pipe.kind == ONE_F_ONE_B)
            bound = p - r;
        if (pipe.kind == ZERO_BUBBLE)
            bound = p;
        if (pipe.kind == INTERLEAVED)
            bound = 2 * (p - r - 1) + (v - 1) * p + 1;              /* Megatron's warm-up, and the next forward */
        if (pipe.kind >= ZB_V) {
            const int each[2] = {2 * p - r - (pipe.kind == ZB_V), r + 1};
            for (int c = 0; c < 2; c++)
                assert_int_equal(s.in_flight[c], each[c] < m ? each[c] : m);
            bound = m >= 2 * p ? each[0] + each[1] : most;          /* with fewer micro-batches: per chunk only */
            assert_true(most <= 2 * p + (pipe.kind == DUALPIPE_V));
        }
        bound = bound < m * v ? bound : m * v;
        if (most != bound)
            fail_msg("%s, rank %d: %d in flight, not %d", name_of(pipe), r, most, bound);
        if (v == 1)
            assert_int_equal(s.in_flight[0], most);
        schedule_free(&s);
    }
}

/* Computed by hand for two ranks: T_F = 2 time slots, T_B = 3, T_W = 1, a transfer 1. Rank 1 has x at 3, and rank 0 d_x
 * at 9. */
static void times_are_simulated(void **state)
{
    Simulation s = simulate((Pipeline){ZERO_BUBBLE, 2, 1, 1}, times_of("2,3,1,1"), NULL);
    assert_int_equal(s.clock[0], 2 + 1 + 2 + 3 + 1 + 3 + 1);
    assert_int_equal(s.clock[1], 2 + 1 + 2 + 3 + 1);
    assert_true(s.bubble == (13 - 6) / 6.0 && s.inside == (13 - 6) / 6.0);
    simulation_free(&s);
    /* F and B of four pipeline stages, two W before the next B, and four transfers: at the V's turn nothing is sent */
    s = simulate((Pipeline){ZB_V, 2, 1, 2}, times_of("2,3,1,5"), NULL);
    assert_int_equal(s.slots, 4 * 2 + 4 * 3 + 2 * 1 + 4 * 5);
    simulation_free(&s);
    /* ZB-V has no bubble if transfers take no time and T_F = T_B = T_W */
    static const struct {
        const char *times;
        bool zero;
    } cases[] = {{"3,3,3,0", true}, {"3,3,3,1", false}, {"3,4,3,0", false}, {"3,3,2,0", false}};
    for (int i = 0; i < 4; i++) {
        s = simulate((Pipeline){ZB_V, 4, 12, 2}, times_of(cases[i].times), NULL);
        assert_true((s.inside == 0) == cases[i].zero);
        simulation_free(&s);
    }
}

static void check(ScheduleKind kind, int p, int m, int chunks)
{
    const Pipeline pipe = {kind, p, m, chunks};

    each_action_once(pipe);
    receives_are_in_the_order_of_sends(pipe);
    bubble_is_the_formula(pipe);
    in_flight_is_bounded(pipe);
}

static void every_schedule_is_right(void **state)
{
    for (int p = 1; p <= RANKS; p++)
        for (int m = 1; m <= MICROS; m++) {
            for (int kind = AFAB; kind <= DUALPIPE_V; kind++)
                if (kind != INTERLEAVED)
                    check(kind, p, m, kind >= ZB_V ? 2 : 1);
            for (int v = 1; v <= CHUNKS && m % p == 0; v++)
                check(INTERLEAVED, p, m, v);
        }
}

/* Lists of two ranks and two micro-batches: "F0 B0 W0"; B is a whole backward. */
static void simulate_texts(const void *texts)
{
    const char *const *text = texts;
    Schedule *ranks = calloc(2, sizeof *ranks);

    for (int r = 0; r < 2; r++) {
        ranks[r].list = calloc(8, sizeof(Action));
        for (const char *word = text[r]; *word; word += strlen(word) > 2 ? 3 : 2)
            ranks[r].list[ranks[r].count++] =
                (Action){*word == 'F' ? FORWARD : *word == 'B' ? BACKWARD : BACKWARD_WEIGHT, word[1] - '0'};
    }
    simulate_lists((Pipeline){ONE_F_ONE_B, 2, 2, 1}, ranks, ALIKE, NULL);
}

static void wrong_lists_fail(void **state)
{
    static const char *const cases[][3] = {
        {"F0 F1 B0 B1", "F0 B0 F0 B1", "rank 1: F0 comes twice"},
        {"F0 F1 B0 B1", "F0 B0 W0 F1", "rank 1: W0 comes twice"},
        {"F0 F1 B0 B2", "F0 B0 F1 B1", "rank 0, action 3: expected micro-batch 0 to 1"},
        {"F0 F1 B0 B1", "F0 B0", "rank 1 computes 3 of the 6 forward, input-gradient and weight-gradient passes of a "
                                 "step: F1 is missing"},
        {"F0 B0 F1 B1", "F0 F1 B0 B1", "this schedule deadlocks: rank 0 waits at its action B0 for B0 of rank 1; "
                                       "rank 1 waits at its action F1 for F1 of rank 0"},
        {"B0 F0 F1 B1", "F0 B0 F1 B1", "for B0 of rank 1; rank 1 waits at its action F0 for F0 of rank 0"}};

    for (int i = 0; i < 6; i++) {
        Result r = run_function(simulate_texts, cases[i]);
        if (r.status != 1 || !strstr(r.err, cases[i][2]))
            fail_msg("expected '%s', got status %d and '%s'", cases[i][2], r.status, r.err);
        result_free(r);
    }
}

/* ---- The printed schedule, and its bubble ---- */

#define PROGRAM BUILD "/cpu64/06_pipeline_parallel"

static void charts_are_printed(void **state)
{
    expect(run("mpiexec -n 2 " PROGRAM " --layers 2 --hidden 16 --heads 2 --seq 8 --accumulate 4 "
               "--schedule zero-bubble --print-schedule --report r2.json"), 0,
           "rank 0   01.aA2bB3cCdD|rank 1   .0a1bA2cB3dCD|bubble 0.0833");
    run_well("test ! -e r2.json");
    expect(run("mpiexec -n 4 " PROGRAM " --layers 4 --hidden 16 --heads 2 --seq 8 --accumulate 2 "
               "--schedule zero-bubble --print-schedule"), 0, "(p-1 + p-m)/(3 m) = 0.8333");
}

/* On simulated hardware, so slow that two cores can run four ranks, the measured idle time is the simulated one. */
static void bubbles_are_measured(void **state)
{
    static const char *const schedules[] = {"afab", "1f1b", "interleaved --chunks 2", "zero-bubble", "zb-v",
                                            "dualpipe-v"};

    if (!full_tests())
        skip();
    for (int i = 0, tries = 0; i < 6; ) {
        int wrong = 0;
        run_well("mpiexec -n 4 " BUILD "/cpu/06_pipeline_parallel --layers 16 --hidden 64 --heads 2 --vocab 4 --seq 8 "
                 "--micro-batch 2 --accumulate 8 --steps 2 --threads 1 --quiet --pretend 0.02,10,1 --data %s "
                 "--report r.json --schedule %s", token_file(2000, 4), schedules[i]);
        for (int r = 0; r < 4; r++) {
            const double measured = json_number("r.json", "ranks.%d.bubble", r);
            const double simulated = json_number("r.json", "ranks.0.bubble_simulated");
            print_message("%s, rank %d: idle %.4f of busy, simulated %.4f\n", schedules[i], r, measured, simulated);
            wrong += !(fabs(measured - simulated) <= fmax(0.1 * simulated, 0.01));
        }
        if (wrong && ++tries == 3)              /* other work on the machine may disturb the one measured step */
            fail_msg("%s: %d ranks are not idle as simulated, in three runs", schedules[i], wrong);
        if (!wrong)
            i++, tries = 0;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_schedule_is_right),
        cmocka_unit_test(times_are_simulated),
        cmocka_unit_test(wrong_lists_fail),
        cmocka_unit_test(charts_are_printed),
        cmocka_unit_test(bubbles_are_measured),
    };

    return cmocka_run_group_tests_name("pipeline", tests, NULL, NULL);
}
