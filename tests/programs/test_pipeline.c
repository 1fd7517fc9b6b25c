/* 06: its schedules as data, without running them; the program against 01 (layouts.h); checkpoints; refusals. */
#define main stage_main
#include "../../06_pipeline_parallel/train.c"
#undef main
#include "../../06_pipeline_parallel/schedule.c"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../harness.h"
#include "../layouts.h"

enum { STEPS = LAYOUT_STEPS, RANKS = 16, MICROS = 64, CHUNKS = 4, STAGES = RANKS * CHUNKS };

static const char *const kind_name[] = {"afab", "1f1b", "interleaved", "zero-bubble"};

/* ---- Schedules as data ---- */

typedef void (*Check)(ScheduleKind kind, int p, int m, int v);

static void for_all_schedules(Check check)
{
    for (int p = 1; p <= RANKS; p++)
        for (int m = 1; m <= MICROS; m++) {
            check(AFAB, p, m, 1);
            check(ONE_F_ONE_B, p, m, 1);
            check(ZERO_BUBBLE, p, m, 1);
            for (int v = 1; v <= CHUNKS && m % p == 0; v++)
                check(INTERLEAVED, p, m, v);
        }
}

static void each_action_once(ScheduleKind kind, int p, int m, int v)
{
    for (int r = 0; r < p; r++) {
        static int seen[4][MICROS][CHUNKS];
        Schedule s = schedule_of(kind, r, p, m, v);
        memset(seen, 0, sizeof seen);
        for (const Action *a = s.list; a < s.list + s.count; a++) {
            if (a->micro < 0 || a->micro >= m || a->chunk < 0 || a->chunk >= v)
                fail_msg("%s, rank %d of %d, m %d, v %d: micro-batch %d, chunk %d", kind_name[kind], r, p, m, v,
                         a->micro, a->chunk);
            seen[a->kind][a->micro][a->chunk]++;
        }
        for (int i = 0; i < m; i++)
            for (int c = 0; c < v; c++) {
                const bool split = kind == ZERO_BUBBLE;
                if (seen[FORWARD][i][c] != 1 || seen[BACKWARD][i][c] != !split || seen[BACKWARD_INPUT][i][c] != split
                    || seen[BACKWARD_WEIGHT][i][c] != split)
                    fail_msg("%s, rank %d of %d, m %d, v %d: micro-batch %d, chunk %d is not computed once",
                             kind_name[kind], r, p, m, v, i, c);
            }
        assert_int_equal(s.count, (kind == ZERO_BUBBLE ? 3 : 2) * m * v);
        free(s.list);
    }
}

/* execute(), wait by wait, on a machine whose sends end only when their receive has begun. What computes only looks at
 * its buffers: a slot of activations is taken from forward to the last backward, one of the inbox from the receive's
 * start to the backward that reads x. */
static struct {
    ScheduleKind kind;
    int p, m, v, stages;
    bool sent[2][STAGES][MICROS], posted[2][STAGES][MICROS];    /* x and d_x into a stage */
    int slot[RANKS][CHUNKS][MICROS], box[RANKS][CHUNKS][MICROS + 1];    /* the micro-batch + 1 that is there */
    int keep[RANKS][CHUNKS];
} sim;

static void take(int *place, int micro, const char *what, int r)
{
    if (*place)
        fail_msg("%s, rank %d of %d, m %d, v %d: %s of micro-batch %d comes where %d's still is", kind_name[sim.kind],
                 r, sim.p, sim.m, sim.v, what, micro, *place - 1);
    *place = micro + 1;
}

/* False: it would wait. */
static bool sim_receive(int r, Action a)
{
    const int stage = a.chunk * sim.p + r, n = sim.keep[r][a.chunk], before = a.micro - n;

    if (a.kind == FORWARD) {
        take(&sim.box[r][a.chunk][a.micro % (n + 1)], a.micro, "x", r);
        sim.posted[0][stage][a.micro] = true;
    } else if (a.kind != BACKWARD_WEIGHT && stage < sim.stages - 1) {
        if (before >= 0 && stage > 0 && !sim.posted[1][stage - 1][before])
            return false;
        sim.posted[1][stage][a.micro] = true;
    }
    return true;
}

static bool sim_compute(int r, Action a)
{
    const int stage = a.chunk * sim.p + r, n = sim.keep[r][a.chunk], i = a.micro, before = i - n;
    const bool first = stage == 0, last = stage == sim.stages - 1;
    int *slot = &sim.slot[r][a.chunk][i % n];

    if (a.kind == FORWARD) {
        if (!first && !sim.sent[0][stage][i])
            return false;
        take(slot, i, "activations", r);
        if (!last)
            sim.sent[0][stage + 1][i] = true;
        return true;
    }
    if (a.kind != BACKWARD_WEIGHT) {
        if (!last && (!sim.sent[1][stage][i] || !sim.posted[0][stage + 1][i]))
            return false;
        if (before >= 0 && !first && !sim.posted[1][stage - 1][before])
            return false;
        sim.box[r][a.chunk][i % (n + 1)] = 0;
        if (!first)
            sim.sent[1][stage - 1][i] = true;
    }
    if (*slot != i + 1)
        fail_msg("%s, rank %d of %d, m %d, v %d: action %d of micro-batch %d finds %d's activations",
                 kind_name[sim.kind], r, sim.p, sim.m, sim.v, a.kind, i, *slot - 1);
    if (a.kind != BACKWARD_INPUT)
        *slot = 0;
    return true;
}

static void runs_with_rendezvous(ScheduleKind kind, int p, int m, int v)
{
    Schedule s[RANKS];
    int next[RANKS] = {0};
    bool ahead[RANKS] = {0};

    memset(&sim, 0, sizeof sim);
    sim.kind = kind, sim.p = p, sim.m = m, sim.v = v, sim.stages = p * v;
    for (int r = 0; r < p; r++) {
        s[r] = schedule_of(kind, r, p, m, v);
        for (int c = 0; c < v; c++)
            sim.keep[r][c] = most_in_flight(s[r], c);
        sim_receive(r, s[r].list[0]);
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < p; r++)
            while (next[r] < s[r].count) {
                const int i = next[r];
                if (!ahead[r] && i + 1 < s[r].count && !sim_receive(r, s[r].list[i + 1]))
                    break;
                ahead[r] = true;
                if (!sim_compute(r, s[r].list[i]))
                    break;
                next[r]++, ahead[r] = false, moved = true;
            }
    }
    for (int r = 0; r < p; r++) {
        if (next[r] < s[r].count)
            fail_msg("%s, p %d, m %d, v %d: all wait for each other, rank %d at its action %d", kind_name[kind], p, m,
                     v, r, next[r]);
        free(s[r].list);
    }
}

static void bubble_is_the_formula(ScheduleKind kind, int p, int m, int v)
{
    Simulation s = simulate(kind, p, m, v, NULL);
    const double bubble = s.bubble;
    const double formula = kind == ZERO_BUBBLE ? (p - 1 + fmax(0, p - m)) / (3.0 * m) : (p - 1.0) / ((double)v * m);

    if (!(fabs(bubble - formula) < 1e-12))
        fail_msg("%s, p %d, m %d, v %d: a bubble of %g, not %g", kind_name[kind], p, m, v, bubble, formula);
    simulation_free(&s);
}

static void in_flight_is_bounded(ScheduleKind kind, int p, int m, int v)
{
    for (int r = 0; r < p; r++) {
        Schedule s = schedule_of(kind, r, p, m, v);
        int now = 0, most = 0, bound = m;
        for (const Action *a = s.list; a < s.list + s.count; a++) {     /* over all chunks together */
            now += a->kind == FORWARD ? 1 : a->kind == BACKWARD_INPUT ? 0 : -1;
            most = now > most ? now : most;
        }
        if (kind == ONE_F_ONE_B)
            bound = p - r;
        if (kind == ZERO_BUBBLE)
            bound = p;
        if (kind == INTERLEAVED)
            bound = 2 * (p - r - 1) + (v - 1) * p + 1;              /* Megatron's warm-up, and the one it then runs */
        bound = bound < m * v ? bound : m * v;
        if (most != bound)
            fail_msg("%s, rank %d of %d, m %d, v %d: %d in flight, not %d", kind_name[kind], r, p, m, v, most, bound);
        if (v == 1)
            assert_int_equal(most_in_flight(s, 0), most);
        free(s.list);
    }
}

static void schedules_do_each_once(void **state)
{
    (void)state;
    for_all_schedules(each_action_once);
}

static void schedules_never_deadlock(void **state)
{
    (void)state;
    for_all_schedules(runs_with_rendezvous);
}

static void bubbles_are_the_formulas(void **state)
{
    (void)state;
    for_all_schedules(bubble_is_the_formula);
}

static void activations_are_bounded(void **state)
{
    (void)state;
    for_all_schedules(in_flight_is_bounded);
}

static void end_child(const char *line, int status)
{
    fprintf(stderr, "%s\n", line);
    fflush(stderr);
    _exit(status);
}

/* The last rank has two actions in the wrong order, B0 before F0, and then B1 of chunk 0 before F1 of chunk 1: the chart
 * so far, and what each rank waits for. */
static void waiting_for_itself_is_explained(void **state)
{
    static const char *const says[] = {
        "rank 0   01.\nrank 1   .01\nrank 2   ...\n"
        "rank 0 waits at its action B0 for B0 of rank 1\n"
        "rank 1 waits at its action B0 for B0 of rank 2\n"
        "rank 2 waits at its action B0 for F0 of rank 2\n"
        "ultrascale: this schedule waits for itself: rank 0 waits at its action B0 for B0 of rank 1\n",
        "rank 0   0101..aa\n  chunk  0011..11\nrank 1   .010aa..\n  chunk  .00111..\n"
        "rank 0 waits at its action B1 (chunk 1) for B1 (chunk 1) of rank 1\n"
        "rank 1 waits at its action B1 (chunk 0) for B1 (chunk 1) of rank 0\n"
        "ultrascale: this schedule waits for itself: "
        "rank 0 waits at its action B1 (chunk 1) for B1 (chunk 1) of rank 1\n"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        Simulation s = simulate(i ? INTERLEAVED : ONE_F_ONE_B, 3 - i, 2, 1 + i, NULL);
        Action *list = s.ranks[2 - i].list;
        int one = i ? 4 : 0, other = i ? 7 : 1, status;
        const Action swapped = list[one];
        list[one] = list[other], list[other] = swapped;
        memset(s.ended, 0, 3 * s.p * s.v * s.m * sizeof(int));
        memset(s.done, 0, s.p * sizeof(int)), memset(s.clock, 0, s.p * sizeof(int));
        s.slots = 0;
        play(&s);
        const char *path = in_temporary("stuck");
        const pid_t child = fork();
        if (child == 0) {
            error_end_with(end_child);
            if (freopen(path, "w", stderr))
                check_ended(&s, stderr);
            _exit(0);
        }
        waitpid(child, &status, 0);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 1);
        char *text = read_file(path);
        assert_string_equal(text, says[i]);
        free(text);
        simulation_free(&s);
    }
}

/* ---- The program against 01 ---- */

#define STAGE "06_pipeline_parallel"
#define SMALL true, 8, 16, 2, 97                /* the whole batch on all ranks; sequence, hidden, heads, vocabulary */

/* A covering subset: every schedule, rank count, recomputation somewhere; m below p, at it, above it; layers that ranks
 * don't divide; micro-batches of one sequence and of more. Few global batches, so that references are shared. */
static const LayoutCase cases[] = {
    {STAGE, "--schedule afab", 1, 3, 2, 3, "full", SMALL},
    {STAGE, "--schedule afab", 2, 3, 1, 6, "none", SMALL},
    {STAGE, "--schedule afab", 4, 5, 3, 2, "selective", SMALL},
    {STAGE, "--schedule 1f1b", 2, 3, 3, 2, "selective", SMALL},
    {STAGE, "--schedule 1f1b", 3, 5, 1, 6, "full", SMALL},
    {STAGE, "--schedule 1f1b", 4, 5, 6, 1, "none", SMALL},
    {STAGE, "--schedule 1f1b", 8, 9, 3, 2, "full", SMALL},
    {STAGE, "--schedule interleaved --chunks 3", 1, 3, 1, 6, "full", SMALL},
    {STAGE, "--schedule interleaved --chunks 3", 2, 9, 1, 6, "none", SMALL},
    {STAGE, "--schedule interleaved --chunks 2", 3, 9, 1, 6, "selective", SMALL},
    {STAGE, "--schedule interleaved --chunks 2", 4, 9, 1, 16, "full", SMALL},
    {STAGE, "--schedule zero-bubble", 1, 3, 1, 6, "selective", SMALL},
    {STAGE, "--schedule zero-bubble", 2, 3, 6, 1, "none", SMALL},
    {STAGE, "--schedule zero-bubble", 3, 5, 1, 6, "none", SMALL},
    {STAGE, "--schedule zero-bubble --pretend 1e6,1e6,0", 8, 9, 1, 16, "selective", SMALL},
};

static void layouts_agree(void **state)
{
    (void)state;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        layout_compare(&cases[i]);
}

static void all_layouts_agree(void **state)
{
    static const int ranks[] = {1, 2, 3, 4, 8}, micros[] = {1, 2, 3, 4, 5, 7, 8, 12, 16};
    static const char *const recompute[] = {"none", "selective", "full"};

    (void)state;
    if (!full_tests())
        skip();
    for (int n = 0; n < 5; n++)
        for (int i = 0; i < 9; i++)
            for (int k = 0; k < 3; k++)
                for (int kind = AFAB; kind <= ZERO_BUBBLE; kind++)
                    for (int v = 1; v <= (kind == INTERLEAVED ? 3 : 1); v++) {
                        const int p = ranks[n], m = micros[i];
                        char text[64];
                        if ((kind == INTERLEAVED && m % p) || (kind == ZERO_BUBBLE && k == RECOMPUTE_FULL))
                            continue;
                        snprintf(text, sizeof text, "--schedule %s --chunks %d", kind_name[kind], v);
                        layout_compare(&(LayoutCase){STAGE, text, p, p * v + (m % 2 && p > 1), 1 + (m % 3 == 0), m,
                                                     recompute[k], SMALL});
                    }
}

/* Evaluation goes through all stages: the same number as in 01. */
static void evaluations_agree(void **state)
{
    static const char *const ways[] = {"mpiexec -n 3 " BUILD "/cpu64/" STAGE " --schedule 1f1b",
                                       "mpiexec -n 3 " BUILD "/cpu64/" STAGE " --schedule interleaved --chunks 2",
                                       "mpiexec -n 3 " BUILD "/cpu64/" STAGE " --schedule zero-bubble"};
    const char *shape = "--layers 7 --hidden 16 --heads 2 --vocab 97 --seq 8 --micro-batch 1 --accumulate 6 --steps 4 "
                        "--eval-every 2 --quiet --report r.json --pretend 1e6,1e6,0";

    (void)state;
    run_well(BUILD "/cpu64/01_single_gpu %s --data %s", shape, token_file(20000, 97));
    const double expected = json_number(in_temporary("r.json"), "held_out.1.loss");
    for (int i = 0; i < 3; i++) {
        run_well("%s --check %s --data %s", ways[i], shape, token_file(20000, 97));
        const double loss = json_number(in_temporary("r.json"), "held_out.1.loss");
        if (!(fabs(loss - expected) <= 1e-9 * expected))
            fail_msg("%s: %.17g on held-out data, but 01 has %.17g", ways[i], loss, expected);
    }
}

/* Saved with one layout, continued with another: the losses of a run that was never interrupted. */
static void checkpoints_cross(void **state)
{
    static const struct {
        int ranks, accumulate;
        const char *program;
    } ways[] = {
        {1, 12, "01_single_gpu"}, {3, 12, STAGE}, {2, 6, "04_zero --zero 3"}, {2, 12, STAGE " --schedule zero-bubble"},
        {3, 12, STAGE " --schedule interleaved --chunks 2"}, {1, 12, "01_single_gpu"}};
    const char *shape = "--layers 7 --hidden 16 --heads 2 --vocab 97 --seq 8 --lr 1e-3 --warmup 3 --quiet "
                        "--pretend 1e6,1e6,0";
    char gradients[256], losses[256];
    double a[STEPS], b[STEPS];

    (void)state;
    layout_reference(&(LayoutCase){.ranks = 1, .layers = 7, .micro_batch = 12, .accumulate = 1, .seq = 8, .hidden = 16,
                                   .heads = 2, .vocab = 97}, gradients, losses);
    for (int i = 0; i < 6; i++)
        run_well("mpiexec -n %d " BUILD "/cpu64/%s %s --micro-batch 1 --accumulate %d --steps %d --data %s "
                 "--save crossing --metrics crossing.csv %s", ways[i].ranks, ways[i].program, shape, ways[i].accumulate,
                 3 * (i + 1), token_file(20000, 97), i ? "--load crossing" : "");
    assert_int_equal(read_column(in_temporary("crossing.csv"), "loss", a, STEPS), 18);
    assert_int_equal(read_column(losses, "loss", b, STEPS), STEPS);
    for (int s = 0; s < 18; s++)
        if (!(fabs(a[s] - b[s]) <= 1e-9 * b[s]))
            fail_msg("the loss of step %d is %.17g, but %.17g without interruptions", s + 1, a[s], b[s]);
}

/* ---- What is refused, and what is printed ---- */

static void refusals_have_the_values(void **state)
{
    static const struct {
        int ranks, status;
        const char *options, *line;
    } wrong[] = {
        {2, 2, "--chunks 2", "--chunks 2, but only --schedule interleaved"},
        {2, 2, "--schedule zero-bubble --chunks 3", "--chunks 3, but only --schedule interleaved"},
        {2, 2, "--chunks 0", "--chunks 0, but it is a whole number from 1"},
        {2, 2, "--schedule gpipe", "--schedule gpipe, but it is one of afab|1f1b|interleaved|zero-bubble"},
        {2, 2, "--schedule zero-bubble --recompute full", "--recompute full with --schedule zero-bubble"},
        {3, 1, "--schedule interleaved --chunks 2 --accumulate 4 --layers 6",
         "--accumulate 4 is not a multiple of the 3 ranks"},
        {3, 1, "--layers 2", "--layers 2, but 3 ranks x 1 chunks need at least 3"},
        {2, 1, "--schedule interleaved --chunks 2 --layers 3 --accumulate 2",
         "--layers 3, but 2 ranks x 2 chunks need at least 4"},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        Result r = run("mpiexec -n %d " BUILD "/cpu64/" STAGE " --hidden 16 --heads 2 --seq 8 --quiet --metrics m.csv "
                       "--pretend 1e6,1e6,0 --save refused %s", wrong[i].ranks, wrong[i].options);
        if (r.status != wrong[i].status || strncmp(r.err, STAGE ": ", strlen(STAGE) + 2)
            || !strstr(r.err, wrong[i].line) || strchr(r.err, '\n') != r.err + strlen(r.err) - 1)
            fail_msg("%s: status %d and %s", wrong[i].options, r.status, r.err);
        result_free(r);
    }
}

static void charts_are_printed(void **state)
{
    (void)state;
    Result r = run("mpiexec -n 2 " BUILD "/cpu64/" STAGE " --layers 2 --hidden 16 --heads 2 --seq 8 --accumulate 4 "
                   "--schedule zero-bubble --print-schedule --report r2.json");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "rank 0   01.aA2bB3cCdD"));
    assert_non_null(strstr(r.out, "rank 1   .0a1bA2cB3dCD"));
    assert_non_null(strstr(r.out, "bubble 0.0833"));
    result_free(r);
    r = run("ls %s", temporary());
    assert_null(strstr(r.out, "r2.json"));
    result_free(r);
    r = run("mpiexec -n 4 " BUILD "/cpu64/" STAGE " --layers 4 --hidden 16 --heads 2 --seq 8 --accumulate 2 "
            "--schedule zero-bubble --print-schedule");
    assert_non_null(strstr(r.out, "(p-1 + p-m)/(3 m) = 0.8333"));
    result_free(r);
}

/* On pretended hardware, slow enough that two cores carry four ranks, the idle time is the simulation's. */
static void bubbles_are_measured(void **state)
{
    static const char *const schedules[] = {"afab", "1f1b", "interleaved --chunks 2", "zero-bubble"};

    (void)state;
    if (!full_tests())
        skip();
    for (int i = 0, tries = 0; i < 4; ) {
        int wrong = 0;
        run_well("mpiexec -n 4 " BUILD "/cpu/" STAGE " --layers 16 --hidden 64 --heads 2 --vocab 4 --seq 8 "
                 "--micro-batch 2 --accumulate 8 --steps 2 --threads 1 --quiet --pretend 0.04,10,1 --data %s "
                 "--report r.json --schedule %s", token_file(2000, 4), schedules[i]);
        for (int r = 0; r < 4; r++) {
            char path[64];
            snprintf(path, sizeof path, "ranks.%d.bubble", r);
            const double measured = json_number(in_temporary("r.json"), path);
            const double simulated = json_number(in_temporary("r.json"), "ranks.0.bubble_simulated");
            print_message("%s, rank %d: idle %.4f of busy, simulated %.4f\n", schedules[i], r, measured, simulated);
            wrong += !(fabs(measured - simulated) <= 0.1 * simulated);
        }
        if (wrong && ++tries == 3)              /* one step is measured, and something else may have run meanwhile */
            fail_msg("%s: %d ranks are not idle as simulated, in three runs", schedules[i], wrong);
        if (!wrong)
            i++, tries = 0;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules_do_each_once),
        cmocka_unit_test(schedules_never_deadlock),
        cmocka_unit_test(bubbles_are_the_formulas),
        cmocka_unit_test(activations_are_bounded),
        cmocka_unit_test(waiting_for_itself_is_explained),
        cmocka_unit_test(layouts_agree),
        cmocka_unit_test(evaluations_agree),
        cmocka_unit_test(checkpoints_cross),
        cmocka_unit_test(refusals_have_the_values),
        cmocka_unit_test(charts_are_printed),
        cmocka_unit_test(bubbles_are_measured),
        cmocka_unit_test(all_layouts_agree),
    };

    return cmocka_run_group_tests_name("pipeline", tests, NULL, layout_print_worst);
}
