/* 06: its schedules as data, without running them; the program against 01 (layouts.h); checkpoints; error messages. */
#define main program_main
#include "../../06_pipeline_parallel/train.c"
#undef main
#include "../../06_pipeline_parallel/schedule.c"
#include "../../06_pipeline_parallel/simulation.c"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../harness.h"
#include "../layouts.h"

enum { STEPS = LAYOUT_STEPS, RANKS = 16, MICROS = 64, CHUNKS = 4, STAGES = RANKS * CHUNKS };

static const char *const kind_name[] = {"afab", "1f1b", "interleaved", "zero-bubble", "zb-v", "dualpipe-v"};

/* ---- Schedules as data ---- */

static const Times ALIKE = {1, 1, 1, 0};

typedef void (*Check)(Pipeline);

static void for_all_schedules(Check check)
{
    for (int p = 1; p <= RANKS; p++)
        for (int m = 1; m <= MICROS; m++) {
            check((Pipeline){AFAB, p, m, 1});
            check((Pipeline){ONE_F_ONE_B, p, m, 1});
            check((Pipeline){ZERO_BUBBLE, p, m, 1});
            check((Pipeline){ZB_V, p, m, 2});
            check((Pipeline){DUALPIPE_V, p, m, 2});
            for (int v = 1; v <= CHUNKS && m % p == 0; v++)
                check((Pipeline){INTERLEAVED, p, m, v});
        }
}

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

/* Each pipeline stage is on one rank, and stage_of, rank_of and chunk_of agree. A V has both ends of the model on rank
 * 0. */
static void stages_are_on_one_rank(Pipeline pipe)
{
    bool seen[STAGES] = {0};

    for (int r = 0; r < pipe.p; r++)
        for (int c = 0; c < pipe.v_c; c++) {
            const int stage = stage_of(pipe, r, c);
            assert_in_range(stage, 0, pipe.p * pipe.v_c - 1);
            assert_false(seen[stage]);
            seen[stage] = true;
            assert_int_equal(rank_of(pipe, stage), r);
            assert_int_equal(chunk_of(pipe, stage), c);
        }
    if (pipe.kind >= ZB_V)
        for (int stage = 0; stage < 2 * pipe.p; stage++)
            assert_int_equal(rank_of(pipe, stage), rank_of(pipe, 2 * pipe.p - 1 - stage));
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
                const Transfer t = receives ? transfer_in(pipe, *a, r) : transfer_out(pipe, *a, r);
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

/* Simulates the waits of execute() on hardware whose sends complete only when the receive has started. Instead of
 * computing, it checks buffers. A slot of activations is in use from forward to the last backward. A slot of recv_x is
 * in use from the receive's start to the backward that reads x. */
static struct {
    Pipeline pipe;
    bool sent[2][STAGES][MICROS], posted[2][STAGES][MICROS];    /* x and d_x into a stage */
    int slot[RANKS][CHUNKS][MICROS], recv_x[RANKS][CHUNKS][MICROS + 1];     /* micro-batch + 1 in a slot; 0: free */
    int slots[RANKS][CHUNKS];                                   /* slots of activations per model chunk */
} sim;

/* Puts a micro-batch into a slot, which must be free. */
static void take(int *slot, int micro, const char *what, int r)
{
    if (*slot)
        fail_msg("%s, rank %d: %s of micro-batch %d would overwrite micro-batch %d's", name_of(sim.pipe), r, what,
                 micro, *slot - 1);
    *slot = micro + 1;
}

/* Expects a slot to hold the activations of the action's micro-batch. */
static void must_hold(int slot, int micro, Action a, int r)
{
    if (slot != micro + 1)
        fail_msg("%s, rank %d: action %d of micro-batch %d finds %d's activations", name_of(sim.pipe), r, a.kind, micro,
                 slot - 1);
}

/* Whether rank r's send of a micro-batch's x (way 0) or d_x (way 1) to a pipeline stage is complete. Within a rank, and
 * beyond the ends of the pipeline, nothing is sent. */
static bool has_left(int way, int r, int stage, int micro)
{
    return micro < 0 || stage < 0 || stage >= sim.pipe.p * sim.pipe.v_c || rank_of(sim.pipe, stage) == r
           || sim.posted[way][stage][micro];
}

/* Posts the receive of an action. False: the rank would wait. */
static bool sim_receive(int r, Action a)
{
    const int stage = stage_of(sim.pipe, r, a.chunk), n = sim.slots[r][a.chunk];

    if (a.kind == FORWARD) {
        take(&sim.recv_x[r][a.chunk][a.micro % (n + 1)], a.micro, "x", r);
        sim.posted[0][stage][a.micro] = true;
    } else if (transfer_in(sim.pipe, a, r).peer >= 0) {
        if (!has_left(1, r, stage - 1, a.micro - n))
            return false;
        sim.posted[1][stage][a.micro] = true;
    }
    return true;
}

/* Computes an action. False: the rank would wait. */
static bool sim_compute(int r, Action a)
{
    const int stage = stage_of(sim.pipe, r, a.chunk), n = sim.slots[r][a.chunk], i = a.micro;
    const bool first = stage == 0, last = stage == sim.pipe.p * sim.pipe.v_c - 1;
    const bool turns = !first && rank_of(sim.pipe, stage - 1) == r;     /* see copy_at_turn() */
    const int n_before = sim.slots[r][0], *before = &sim.slot[r][0][i % n_before];
    int *slot = &sim.slot[r][a.chunk][i % n];

    if (a.kind == FORWARD) {
        if (!first && !sim.sent[0][stage][i])
            return false;
        if (turns)
            must_hold(*before, i, a, r);
        take(slot, i, "activations", r);
        if (!last)
            sim.sent[0][stage + 1][i] = true;
        return true;
    }
    must_hold(*slot, i, a, r);
    if (a.kind != BACKWARD_WEIGHT) {
        if ((!last && !sim.sent[1][stage][i]) || !has_left(0, r, stage + 1, i) || !has_left(1, r, stage - 1, i - n)
            || (turns && !has_left(1, r, stage - 2, i - n_before)))
            return false;
        if (turns)
            must_hold(*before, i, a, r);
        sim.recv_x[r][a.chunk][i % (n + 1)] = 0;
        if (!first)
            sim.sent[1][stage - 1][i] = true;
    }
    if (a.kind != BACKWARD_INPUT)
        *slot = 0;
    return true;
}

static void runs_with_rendezvous(Pipeline pipe)
{
    Schedule s[RANKS];
    int next[RANKS] = {0};
    bool ahead[RANKS] = {0};

    memset(&sim, 0, sizeof sim);
    sim.pipe = pipe;
    for (int r = 0; r < pipe.p; r++) {
        s[r] = schedule_of(pipe, r);
        memcpy(sim.slots[r], s[r].in_flight, pipe.v_c * sizeof(int));
        sim_receive(r, s[r].list[0]);
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < pipe.p; r++)
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
    for (int r = 0; r < pipe.p; r++) {
        if (next[r] < s[r].count)
            fail_msg("%s: all wait for each other, rank %d at its action %d", name_of(pipe), r, next[r]);
        schedule_free(&s[r]);
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
    (void)state;
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

static void stages_are_placed(void **state)
{
    (void)state;
    for_all_schedules(stages_are_on_one_rank);
}

static void transfers_are_in_order(void **state)
{
    (void)state;
    for_all_schedules(receives_are_in_the_order_of_sends);
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

/* The last rank has two actions in the wrong order: B0 before F0, then B1 of model chunk 0 before F1 of chunk 1. The
 * message shows the schedule so far and each rank's wait. */
static void waiting_for_itself_is_explained(void **state)
{
    static const char *const messages[] = {
        "rank 0   01.\nrank 1   .01\nrank 2   ...\n"
        "rank 0 waits at its action B0 for B0 of rank 1\n"
        "rank 1 waits at its action B0 for B0 of rank 2\n"
        "rank 2 waits at its action B0 for F0 of rank 2\n"
        "ultrascale: this schedule deadlocks: rank 0 waits at its action B0 for B0 of rank 1\n",
        "rank 0   0101..aa\n  chunk  0011..11\nrank 1   .010aa..\n  chunk  .00111..\n"
        "rank 0 waits at its action B1 (chunk 1) for B1 (chunk 1) of rank 1\n"
        "rank 1 waits at its action B1 (chunk 0) for B1 (chunk 1) of rank 0\n"
        "ultrascale: this schedule deadlocks: "
        "rank 0 waits at its action B1 (chunk 1) for B1 (chunk 1) of rank 1\n"};

    (void)state;
    for (int i = 0; i < 2; i++) {
        Simulation s = simulate((Pipeline){i ? INTERLEAVED : ONE_F_ONE_B, 3 - i, 2, 1 + i}, ALIKE, NULL);
        Action *list = s.ranks[2 - i].list;
        int one = i ? 4 : 0, other = i ? 7 : 1, status;
        const Action swapped = list[one];
        list[one] = list[other], list[other] = swapped;
        memset(s.ended, 0, 3 * s.pipe.p * s.pipe.v_c * s.pipe.m * sizeof(int));
        memset(s.done, 0, s.pipe.p * sizeof(int)), memset(s.clock, 0, s.pipe.p * sizeof(int));
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
        assert_string_equal(text, messages[i]);
        free(text);
        simulation_free(&s);
    }
}

/* ---- The program against 01 ---- */

#define PROGRAM "06_pipeline_parallel"
#define SMALL true, 8, 16, 2, 97                /* full_batch, seq, hidden, heads, vocab */

/* A covering subset: every schedule, rank count and recomputation; m below, equal to and above p; layers that are no
 * multiple of the ranks; micro-batches of one sequence and of several. Cases share global batches, thus references. */
static const LayoutCase cases[] = {
    {PROGRAM, "--schedule afab", 1, 3, 2, 3, "full", SMALL},
    {PROGRAM, "--schedule afab", 2, 3, 1, 6, "none", SMALL},
    {PROGRAM, "--schedule afab", 4, 5, 3, 2, "selective", SMALL},
    {PROGRAM, "--schedule 1f1b", 2, 3, 3, 2, "selective", SMALL},
    {PROGRAM, "--schedule 1f1b", 3, 5, 1, 6, "full", SMALL},
    {PROGRAM, "--schedule 1f1b", 4, 5, 6, 1, "none", SMALL},
    {PROGRAM, "--schedule 1f1b", 8, 9, 3, 2, "full", SMALL},
    {PROGRAM, "--schedule interleaved --chunks 3", 1, 3, 1, 6, "full", SMALL},
    {PROGRAM, "--schedule interleaved --chunks 3", 2, 9, 1, 6, "none", SMALL},
    {PROGRAM, "--schedule interleaved --chunks 2", 3, 9, 1, 6, "selective", SMALL},
    {PROGRAM, "--schedule interleaved --chunks 2", 4, 9, 1, 16, "full", SMALL},
    {PROGRAM, "--schedule zero-bubble", 1, 3, 1, 6, "selective", SMALL},
    {PROGRAM, "--schedule zero-bubble", 2, 3, 6, 1, "none", SMALL},
    {PROGRAM, "--schedule zero-bubble", 3, 5, 1, 6, "none", SMALL},
    {PROGRAM, "--schedule zero-bubble --pretend 1e6,1e6,0", 8, 9, 1, 16, "selective", SMALL},
    {PROGRAM, "--schedule zb-v", 1, 3, 1, 6, "none", SMALL},
    {PROGRAM, "--schedule zb-v", 2, 5, 1, 6, "selective", SMALL},
    {PROGRAM, "--schedule zb-v", 3, 7, 1, 6, "none", SMALL},
    {PROGRAM, "--schedule zb-v", 4, 9, 3, 2, "selective", SMALL},
    {PROGRAM, "--schedule dualpipe-v", 2, 5, 1, 6, "none", SMALL},
    {PROGRAM, "--schedule dualpipe-v", 3, 7, 3, 2, "selective", SMALL},
    {PROGRAM, "--schedule dualpipe-v", 4, 9, 1, 16, "none", SMALL},
};

static void configurations_agree(void **state)
{
    (void)state;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        layout_compare(&cases[i]);
}

static void all_configurations_agree(void **state)
{
    static const int ranks[] = {1, 2, 3, 4, 8}, micros[] = {1, 2, 3, 4, 5, 7, 8, 12, 16};
    static const char *const recompute[] = {"none", "selective", "full"};

    (void)state;
    if (!full_tests())
        skip();
    for (int n = 0; n < 5; n++)
        for (int i = 0; i < 9; i++)
            for (int k = 0; k < 3; k++)
                for (int kind = AFAB; kind <= DUALPIPE_V; kind++)
                    for (int v = 1; v <= (kind == INTERLEAVED ? 3 : 1); v++) {
                        const int p = ranks[n], m = micros[i];
                        char text[64];
                        if ((kind == INTERLEAVED && m % p) || (kind >= ZERO_BUBBLE && k == RECOMPUTE_FULL))
                            continue;
                        const int chunks = kind >= ZB_V ? 2 : v;
                        snprintf(text, sizeof text, "--schedule %s --chunks %d", kind_name[kind], v);
                        layout_compare(&(LayoutCase){PROGRAM, text, p, p * chunks + (m % 2 && p > 1),
                                                     1 + (m % 3 == 0), m, recompute[k], SMALL});
                    }
}

/* An evaluation passes through all pipeline stages. The validation loss is 01's. */
static void evaluations_agree(void **state)
{
    static const char *const ways[] = {"mpiexec -n 3 " BUILD "/cpu64/" PROGRAM " --schedule 1f1b",
                                       "mpiexec -n 3 " BUILD "/cpu64/" PROGRAM " --schedule interleaved --chunks 2",
                                       "mpiexec -n 3 " BUILD "/cpu64/" PROGRAM " --schedule zero-bubble",
                                       "mpiexec -n 3 " BUILD "/cpu64/" PROGRAM " --schedule zb-v"};
    const char *shape = "--layers 7 --hidden 16 --heads 2 --vocab 97 --seq 8 --micro-batch 1 --accumulate 6 --steps 4 "
                        "--eval-every 2 --quiet --report r.json --pretend 1e6,1e6,0";

    (void)state;
    run_well(BUILD "/cpu64/01_single_gpu %s --data %s", shape, token_file(20000, 97));
    const double expected = json_number(in_temporary("r.json"), "held_out.1.loss");
    for (int i = 0; i < 4; i++) {
        run_well("%s --check %s --data %s", ways[i], shape, token_file(20000, 97));
        const double loss = json_number(in_temporary("r.json"), "held_out.1.loss");
        if (!(fabs(loss - expected) <= 1e-9 * expected))
            fail_msg("%s: a validation loss of %.17g, but 01 has %.17g", ways[i], loss, expected);
    }
}

/* Each parallel configuration resumes from the checkpoint of the previous one. The losses are those of one
 * uninterrupted run. */
static void checkpoints_cross(void **state)
{
    static const struct {
        int ranks, accumulate;
        const char *program;
    } ways[] = {
        {1, 12, "01_single_gpu"}, {3, 12, PROGRAM " --schedule zb-v"}, {2, 6, "04_zero --zero 3"},
        {2, 12, PROGRAM " --schedule zero-bubble"},
        {3, 12, PROGRAM " --schedule interleaved --chunks 2"}, {1, 12, "01_single_gpu"}};
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

/* ---- Error messages, and the printed schedule ---- */

static void refusals_have_the_values(void **state)
{
    static const struct {
        int ranks, status;
        const char *options, *line;
    } wrong[] = {
        {2, 2, "--chunks 2", "--chunks: expected 1 unless --schedule is interleaved, got 2"},
        {2, 2, "--schedule zb-v --chunks 3", "--chunks: expected 1 unless --schedule is interleaved, got 3"},
        {2, 2, "--schedule zero-bubble --chunks 3", "--chunks: expected 1 unless --schedule is interleaved, got 3"},
        {2, 2, "--chunks 0", "--chunks: expected an integer from 1 to "},
        {2, 2, "--schedule gpipe",
         "--schedule: expected one of afab|1f1b|interleaved|zero-bubble|zb-v|dualpipe-v, got 'gpipe'"},
        {2, 2, "--schedule zero-bubble --recompute full", "--recompute full: not with --schedule zero-bubble"},
        {2, 2, "--schedule dualpipe-v --layers 4 --recompute full",
         "--recompute full: not with --schedule zero-bubble, zb-v or dualpipe-v"},
        {2, 2, "--times 1,2,3",
         "--times: expected T_F,T_B,T_W,TRANSFER, time slots from 1 to 99 (TRANSFER from 0), got '1,2,3'"},
        {2, 2, "--times 1,0,1,1 --print-schedule",
         "--times: expected T_F,T_B,T_W,TRANSFER, time slots from 1 to 99 (TRANSFER from 0), got '1,0,1,1'"},
        {2, 1, "--schedule zb-v --layers 3", "--layers: expected at least 4 for 2 ranks x 2 model chunks, got 3"},
        {3, 1, "--schedule interleaved --chunks 2 --accumulate 4 --layers 6",
         "--accumulate: expected a multiple of the 3 ranks with --schedule interleaved, got 4; try 6"},
        {3, 1, "--layers 2", "--layers: expected at least 3 for 3 ranks x 1 model chunks, got 2"},
        {2, 1, "--schedule interleaved --chunks 2 --layers 3 --accumulate 2",
         "--layers: expected at least 4 for 2 ranks x 2 model chunks, got 3"},
    };

    (void)state;
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        Result r = run("mpiexec -n %d " BUILD "/cpu64/" PROGRAM " --hidden 16 --heads 2 --seq 8 --quiet "
                       "--metrics m.csv --pretend 1e6,1e6,0 --save refused %s", wrong[i].ranks, wrong[i].options);
        if (r.status != wrong[i].status || strncmp(r.err, PROGRAM ": ", strlen(PROGRAM) + 2)
            || !strstr(r.err, wrong[i].line) || strchr(r.err, '\n') != r.err + strlen(r.err) - 1)
            fail_msg("%s: status %d and %s", wrong[i].options, r.status, r.err);
        result_free(r);
    }
}

static void charts_are_printed(void **state)
{
    (void)state;
    Result r = run("mpiexec -n 2 " BUILD "/cpu64/" PROGRAM " --layers 2 --hidden 16 --heads 2 --seq 8 --accumulate 4 "
                   "--schedule zero-bubble --print-schedule --report r2.json");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "rank 0   01.aA2bB3cCdD"));
    assert_non_null(strstr(r.out, "rank 1   .0a1bA2cB3dCD"));
    assert_non_null(strstr(r.out, "bubble 0.0833"));
    result_free(r);
    r = run("ls %s", temporary());
    assert_null(strstr(r.out, "r2.json"));
    result_free(r);
    r = run("mpiexec -n 4 " BUILD "/cpu64/" PROGRAM " --layers 4 --hidden 16 --heads 2 --seq 8 --accumulate 2 "
            "--schedule zero-bubble --print-schedule");
    assert_non_null(strstr(r.out, "(p-1 + p-m)/(3 m) = 0.8333"));
    result_free(r);
}

/* On simulated hardware, so slow that two cores can run four ranks, the measured idle time is the simulated one. */
static void bubbles_are_measured(void **state)
{
    static const char *const schedules[] = {"afab", "1f1b", "interleaved --chunks 2", "zero-bubble", "zb-v",
                                            "dualpipe-v"};

    (void)state;
    if (!full_tests())
        skip();
    for (int i = 0, tries = 0; i < 6; ) {
        int wrong = 0;
        run_well("mpiexec -n 4 " BUILD "/cpu/" PROGRAM " --layers 16 --hidden 64 --heads 2 --vocab 4 --seq 8 "
                 "--micro-batch 2 --accumulate 8 --steps 2 --threads 1 --quiet --pretend 0.02,10,1 --data %s "
                 "--report r.json --schedule %s", token_file(2000, 4), schedules[i]);
        for (int r = 0; r < 4; r++) {
            char path[64];
            snprintf(path, sizeof path, "ranks.%d.bubble", r);
            const double measured = json_number(in_temporary("r.json"), path);
            const double simulated = json_number(in_temporary("r.json"), "ranks.0.bubble_simulated");
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
        cmocka_unit_test(schedules_do_each_once),
        cmocka_unit_test(stages_are_placed),
        cmocka_unit_test(transfers_are_in_order),
        cmocka_unit_test(schedules_never_deadlock),
        cmocka_unit_test(bubbles_are_the_formulas),
        cmocka_unit_test(activations_are_bounded),
        cmocka_unit_test(times_are_simulated),
        cmocka_unit_test(waiting_for_itself_is_explained),
        cmocka_unit_test(configurations_agree),
        cmocka_unit_test(evaluations_agree),
        cmocka_unit_test(checkpoints_cross),
        cmocka_unit_test(refusals_have_the_values),
        cmocka_unit_test(charts_are_printed),
        cmocka_unit_test(bubbles_are_measured),
        cmocka_unit_test(all_configurations_agree),
    };

    return cmocka_run_group_tests_name("pipeline", tests, NULL, layout_print_worst);
}
