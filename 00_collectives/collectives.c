/* 00_collectives: the collectives that every other program calls, each written from sends and receives, and how fast
 * this machine's are.
 *
 * A collective works on a tensor t of K elements, that lies on each of the group's n ranks; r is this rank.
 * Shard i of t is what range_split gives rank i. The pictures have four ranks, one per row, and a digit per shard: how
 * many ranks' contributions a shard holds ("." is a shard that does not matter). main() measures each algorithm beside
 * the library's, counts its bytes, and fits the latency and the bandwidth of a hop.
 */
#include <string.h>
#include <time.h>

#include "../common/ultrascale.h"
#include "measure.h"

static int root;                    /* of broadcast, reduce, gather and scatter */
static Tensor inbox;                /* where a hop receives what is then added */
static int nodes;
static Comm *node, *across;         /* two-level: the ranks of this node; those with this rank's number, one per node */

/* ---- A hop: sends to one rank while it receives from another ---- */

static Tensor shard(Comm *c, Tensor t, int i)           /* i may lie outside of 0 to n - 1, by at most n */
{
    const int n = comm_size(c);
    const Range s = range_split(tensor_count(t), (i + n) % n, n);

    return tensor_range(t, s.first, s.count);
}

static void send(Comm *c, Tensor t, int to)
{
    comm_exchange(c, NONE, -1, t, to);
}

static void receive(Comm *c, Tensor t, int from)
{
    comm_exchange(c, t, from, NONE, -1);
}

/* Sends `in` to rank `to`, and adds what rank `from` sends to `sum`; both at once. */
static void exchange_add(Comm *c, Tensor sum, int from, Tensor in, int to)
{
    const Tensor received = tensor_range(inbox, 0, tensor_count(sum));

    comm_exchange(c, received, from, in, to);
    tensor_add(sum, received);
}

/* ---- The ring: n - 1 hops, each to the next rank; every link is busy all the time ---- */

/* In hop k each rank sends the partial sum that it has just completed, and adds the shard before to the one it gets.
 *             hop 1   2     3
 *     1111    1121  1321  4321        rank 0 owns shard 0, of which it now has all four contributions
 *     1111    1112  1132  1432
 *     1111    2111  2113  2143
 *     1111    1211  3211  3214 */
static void ring_reduce_scatter(Comm *c, Tensor t)
{
    const int n = comm_size(c), r = comm_rank(c);

    for (int k = 0; k < n - 1; k++)
        exchange_add(c, shard(c, t, r - k - 2), (r + n - 1) % n, shard(c, t, r - k - 1), (r + 1) % n);
}

/* In hop k each rank sends the shard that it received last, and overwrites the one before.
 *             hop 1   2     3
 *     4...    4..4  4.44  4444
 *     .4..    44..  44.4  4444
 *     ..4.    .44.  444.  4444
 *     ...4    ..44  .444  4444 */
static void ring_all_gather(Comm *c, Tensor t)
{
    const int n = comm_size(c), r = comm_rank(c);

    for (int k = 0; k < n - 1; k++)
        comm_exchange(c, shard(c, t, r - k - 1), (r + n - 1) % n, shard(c, t, r - k), (r + 1) % n);
}

static void ring_all_reduce(Comm *c, Tensor t)
{
    ring_reduce_scatter(c, t);
    ring_all_gather(c, t);
}

/* One hop of the ring, from t to inbox: what nccl-tests calls sendrecv. */
static void ring_shift(Comm *c, Tensor t)
{
    const int n = comm_size(c), r = comm_rank(c);

    if (n > 1)
        comm_exchange(c, tensor_range(inbox, 0, tensor_count(t)), (r + n - 1) % n, t, (r + 1) % n);
}

/* ---- The binomial tree: in each round twice as many ranks have the tensor; log2 n rounds ---- */

/* Ranks are counted from the root on. Rank v receives from v - reach, where reach is its highest bit.
 *     root  v = 1   2   3
 *     have  .       .   .
 *     have  have    .   .         reach 1: 0 -> 1
 *     have  have  have have       reach 2: 0 -> 2, 1 -> 3 */
static void tree_broadcast(Comm *c, Tensor t)
{
    const int n = comm_size(c), r = comm_rank(c), v = (r - root + n) % n;

    for (int reach = 1; reach < n; reach *= 2) {
        if (v < reach && v + reach < n)
            send(c, t, (r + reach) % n);
        else if (v >= reach && v < 2 * reach)
            receive(c, t, (r - reach + n) % n);
    }
}

/* The same tree from its leaves to the root: what broadcast sends is received, and added.
 *     1  1  1  1
 *     2  2  .  .                  reach 2: 2 -> 0, 3 -> 1
 *     4  .  .  .                  reach 1: 1 -> 0 */
static void tree_reduce(Comm *c, Tensor t)
{
    const int n = comm_size(c), r = comm_rank(c), v = (r - root + n) % n;
    int reach = 1;

    while (2 * reach < n)
        reach *= 2;
    for (; reach >= 1; reach /= 2) {
        if (v < reach && v + reach < n)
            exchange_add(c, t, (r + reach) % n, NONE, -1);
        else if (v >= reach && v < 2 * reach)
            send(c, t, (r - reach + n) % n);
    }
}

static void tree_all_reduce(Comm *c, Tensor t)
{
    tree_reduce(c, t);
    tree_broadcast(c, t);
}

/* ---- Recursive doubling: in each round pairs of ranks, ever further apart, exchange all that they have ---- */

static int power_below(int n)                           /* the largest power of two that is at most n */
{
    return 1 << (31 - __builtin_clz(n));
}

/*     1111    2222  4444          round 1: 0 <-> 1, 2 <-> 3
 *     1111    2222  4444          round 2: 0 <-> 2, 1 <-> 3
 *     1111    2222  4444
 *     1111    2222  4444
 * If n is no power of two, ranks from `power` on give their tensor to a partner first, and get the result at the end.
 * Addition commutes, so both ranks of a pair, and thus all ranks, get the same bits. */
static void doubling_all_reduce(Comm *c, Tensor t)
{
    const int n = comm_size(c), r = comm_rank(c), power = power_below(n);

    if (r >= power)
        send(c, t, r - power);
    else if (r + power < n)
        exchange_add(c, t, r + power, NONE, -1);
    for (int far = 1; far < power && r < power; far *= 2)
        exchange_add(c, t, r ^ far, t, r ^ far);
    if (r >= power)
        receive(c, t, r - power);
    else if (r + power < n)
        send(c, t, r + power);
}

/* ---- Two levels: between nodes, whose links are slower, a rank sends only its shard of the node's sum ----
 * Nodes of two ranks, the digits of the two halves of t:
 *                 reduce-scatter  all-reduce      all-gather
 *                 in a node       between nodes   in a node
 *     1 1           2 .             4 .             4 4         node 0
 *     1 1           . 2             . 4             4 4
 *     1 1           2 .             4 .             4 4         node 1
 *     1 1           . 2             . 4             4 4 */
static void two_level_all_reduce(Comm *c, Tensor t)
{
    (void)c;                                            /* all ranks: node and across together */
    ring_reduce_scatter(node, t);
    ring_all_reduce(across, shard(node, t, comm_rank(node)));
    ring_all_gather(node, t);
}

/* ---- Each rank with each other: t has n equal blocks, and so has the result, in inbox ----
 * In hop k rank r sends block r + k to its rank, and gets its own from rank r - k. A letter is a sender.
 *             hop 1   2     3
 *     aaaa    a..d  a.cd  abcd
 *     bbbb    ab..  ab.d  abcd
 *     cccc    .bc.  abc.  abcd
 *     dddd    ..cd  .bcd  abcd */
static void pairwise_all_to_all(Comm *c, Tensor t)
{
    const int n = comm_size(c), r = comm_rank(c);
    const Tensor out = tensor_range(inbox, 0, tensor_count(t));

    tensor_copy(shard(c, out, r), shard(c, t, r));
    for (int k = 1; k < n; k++)
        comm_exchange(c, shard(c, out, r - k), (r - k + n) % n, shard(c, t, r + k), (r + k) % n);
}

/* ---- To the root and from it: n - 1 messages, all of them at the root's link ---- */

static void direct_gather(Comm *c, Tensor t)            /* every rank's shard to the root */
{
    const int n = comm_size(c), r = comm_rank(c);

    if (r != root)
        send(c, shard(c, t, r), root);
    for (int i = 1; i < n && r == root; i++)
        receive(c, shard(c, t, r + i), (r + i) % n);
}

static void direct_scatter(Comm *c, Tensor t)           /* from the root to every rank its shard */
{
    const int n = comm_size(c), r = comm_rank(c);

    if (r != root)
        receive(c, shard(c, t, r), root);
    for (int i = 1; i < n && r == root; i++)
        send(c, shard(c, t, r + i), (r + i) % n);
}

/* ---- Barrier (dissemination): after round k a rank knows that 2^k ranks have come, itself and those before it ---- */
static void doubling_barrier(Comm *c, Tensor t)
{
    const int n = comm_size(c), r = comm_rank(c);

    for (int far = 1; far < n; far *= 2)
        comm_exchange(c, tensor_range(inbox, 0, 1), (r - far + n) % n, tensor_range(t, 0, 1), (r + far) % n);
}

/* ---- What there is, and the library's; in place, or from t to inbox ---- */

static void library_all_reduce(Comm *c, Tensor t) { comm_all_reduce(c, t, SUM); }
static void library_broadcast(Comm *c, Tensor t) { comm_broadcast(c, t, root); }
static void library_all_gather(Comm *c, Tensor t) { comm_all_gather(c, t, shard(c, t, comm_rank(c))); }
static void library_reduce_scatter(Comm *c, Tensor t) { comm_reduce_scatter(c, shard(c, t, comm_rank(c)), t); }
static void library_shift(Comm *c, Tensor t)
{
    const int n = comm_size(c), r = comm_rank(c);

    if (n == 1)
        return;
    Request *arriving = comm_start_recv(c, tensor_range(inbox, 0, tensor_count(t)), (r + n - 1) % n, 0);
    comm_complete(comm_start_send(c, t, (r + 1) % n, 0));
    comm_wait(&arriving);
}
static void library_all_to_all(Comm *c, Tensor t)
{
    comm_all_to_all(c, tensor_range(inbox, 0, tensor_count(t)), t);
}

typedef enum { ALL, SHARD, AT_ROOT, IN_INBOX } Where;   /* the result: on all ranks; a shard; on the root; in inbox */
typedef enum { RING, TREE, DOUBLING, TWO_LEVEL, PAIRWISE, DIRECT } Algorithm;
typedef struct {
    const char *name;
    Algorithm algorithm;
    void (*ours)(Comm *, Tensor), (*library)(Comm *, Tensor);   /* the library's may leave more than ours; NULL: none */
    bool reduces, own;                                  /* own: a rank brings only its shard */
    Where result;
} Collective;

static const char *const algorithm_name[] = {"ring", "tree", "doubling", "two-level", "pairwise", "direct"};
#define ALGORITHMS "ring|tree|doubling|two-level|pairwise|direct|all"
#define OPS "all_reduce|reduce_scatter|all_gather|broadcast|reduce|gather|scatter|all_to_all|shift|barrier"

static const Collective collectives[] = {
    {"shift", RING, ring_shift, library_shift, false, false, IN_INBOX},
    {"reduce_scatter", RING, ring_reduce_scatter, library_reduce_scatter, true, false, SHARD},
    {"all_gather", RING, ring_all_gather, library_all_gather, false, true, ALL},
    {"broadcast", TREE, tree_broadcast, library_broadcast, false, false, ALL},
    {"reduce", TREE, tree_reduce, library_all_reduce, true, false, AT_ROOT},
    {"all_reduce", RING, ring_all_reduce, library_all_reduce, true, false, ALL},
    {"all_reduce", TREE, tree_all_reduce, library_all_reduce, true, false, ALL},
    {"all_reduce", DOUBLING, doubling_all_reduce, library_all_reduce, true, false, ALL},
    {"all_reduce", TWO_LEVEL, two_level_all_reduce, library_all_reduce, true, false, ALL},
    {"gather", DIRECT, direct_gather, library_all_gather, false, true, AT_ROOT},
    {"scatter", DIRECT, direct_scatter, library_broadcast, false, false, SHARD},
    {"all_to_all", PAIRWISE, pairwise_all_to_all, library_all_to_all, false, false, IN_INBOX},
    {"barrier", DOUBLING, doubling_barrier, NULL, false, false, ALL},
};
enum { COLLECTIVES = sizeof collectives / sizeof *collectives };

/* ---- What each costs ---- */

/* On n ranks: the hops that follow one another, and the bytes that these send, over the tensor's. */
static Steps steps_of(const Collective *a, int n)
{
    const int power = power_below(n), local = n / nodes;
    const double rounds = ceil(log2(n)), part = (n - 1.0) / n;
    const bool both = !strcmp(a->name, "all_reduce");

    if (!strcmp(a->name, "barrier"))
        return (Steps){rounds, 0};
    if (!strcmp(a->name, "shift"))
        return (Steps){1, 1};
    if (a->algorithm == TREE)
        return (Steps){both ? 2 * rounds : rounds, both ? 2 * rounds : rounds};
    if (a->algorithm == DOUBLING)
        return (Steps){log2(power) + 2 * (power < n), log2(power) + 2 * (power < n)};
    if (a->algorithm == TWO_LEVEL)
        return (Steps){2.0 * (local - 1 + nodes - 1), 2.0 * (local - 1) / local + 2.0 * (nodes - 1) / n};
    if (a->result == AT_ROOT)                           /* gather: all send at once */
        return (Steps){1, part};
    return both ? (Steps){2 * (n - 1), 2 * part} : (Steps){n - 1, part};
}

/* The bytes that this rank sends for K REALs. */
static int64_t bytes_predicted(const Collective *a, Comm *c, int64_t K)
{
    const int n = comm_size(c), r = comm_rank(c), v = (r - root + n) % n, power = power_below(n);
    const int64_t own = comm_shard(c, K).count, next = range_split(K, (r + 1) % n, n).count;
    const bool both = !strcmp(a->name, "all_reduce"), scatter = both || !strcmp(a->name, "reduce_scatter");
    int64_t sent = 0;
    int rounds = 0, children = 0;

    for (int reach = 1; reach < n; reach *= 2, rounds++)
        children += v < reach && v + reach < n;
    if (!strcmp(a->name, "barrier"))
        sent = rounds;
    else if (!strcmp(a->name, "shift"))
        sent = n > 1 ? K : 0;
    else if (a->algorithm == RING)                      /* comm.h's formulas */
        sent = (scatter ? K - own : 0) + (both || !scatter ? K - next : 0);
    else if (a->algorithm == TREE)
        sent = (a->reduces && v ? K : 0) + (a->result == ALL ? children * K : 0);
    else if (a->algorithm == DOUBLING)
        sent = r >= power ? K : K * __builtin_ctz(power) + (r + power < n ? K : 0);
    else if (a->algorithm == TWO_LEVEL) {
        const Collective ring = {"all_reduce", RING};
        return bytes_predicted(&ring, node, K) + bytes_predicted(&ring, across, comm_shard(node, K).count);
    } else if (a->algorithm == PAIRWISE || (a->result == SHARD && v == 0))
        sent = K - own;
    else if (a->result == AT_ROOT && v)
        sent = own;
    return sent * dtype_size(REAL);
}

/* ---- --verify: each algorithm against the library ---- */

/* Element i of what rank r brings. WHO: the result tells which ranks' elements are in it. */
enum { WHO, INTEGERS, FRACTIONS, FILLS };
static double element(const Collective *a, int fill, int r, int64_t i)
{
    const uint32_t mixed = ((uint32_t)i * 2654435761u ^ (uint32_t)(r + 1) * 2246822519u) >> 8;

    return fill == WHO ? a->reduces ? 1 << 3 * r : 100000 * r + i
         : fill == INTEGERS ? (double)(mixed % 2001) - 1000 : 1.0 / (3 + mixed % 1000);
}

/* Explains a wrong element of a WHO: the digits to base 8 of a sum count each rank's contribution. */
static const char *who(const Collective *a, int n, double is, double should)
{
    const char *text = "";

    if (is < 0 || is != (int64_t)is)
        return ": nothing was received there";
    if (!a->reduces)
        return format_text(": that is element %d of rank %d, expected element %d of rank %d", (int)is % 100000,
                           (int)is / 100000, (int)should % 100000, (int)should / 100000);
    for (int r = 0; r < n; r++) {
        const int times = (int64_t)is >> 3 * r & 7;
        if (times != 1)
            text = format_text(times ? "%s; it has rank %d's %d times" : "%s; it lacks the contribution of rank %d",
                               text, r, times);
    }
    return text;
}

/* What every error line begins with. */
static char context[200] = "00_collectives";

static void name_case(const Collective *a, Comm *c, int64_t K)
{
    snprintf(context, sizeof context, "00_collectives: %s, %s, of %lld elements on %d rank%s, root %d", a->name,
             algorithm_name[a->algorithm], (long long)K, comm_size(c), comm_size(c) == 1 ? "" : "s", root);
}

static int shard_of(int64_t i, int64_t K, int n)
{
    int s = 0;

    while (i >= range_split(K, s, n).first + range_split(K, s, n).count)
        s++;
    return s;
}

static void verify_size(const Collective *a, Comm *c, Tensor ours, Tensor theirs, int fill)
{
    const int64_t K = tensor_count(ours), bytes = tensor_bytes(ours);
    const int n = comm_size(c), r = comm_rank(c);
    const Range own = comm_shard(c, K), shown = a->result == SHARD ? own : (Range){0, K};
    const Tensor received = tensor_range(inbox, 0, K);
    const bool inboxed = a->result == IN_INBOX && n > 1;
    real *x = host_alloc(bytes, "numbers"), *y = host_alloc(bytes, "numbers");

    for (int64_t i = 0; i < K; i++)
        x[i] = a->own && (i < own.first || i >= own.first + own.count) ? -1 : element(a, fill, r, i);
    device_upload(ours.data, x, bytes);
    device_upload(theirs.data, x, bytes);
    name_case(a, c, K);
    comm_stats_reset();
    a->ours(c, ours);
    if (inboxed)
        tensor_copy(ours, received);
    const int64_t sent = comm_bytes(), predicted = bytes_predicted(a, c, K);
    if (a->library)
        a->library(c, theirs);
    if (inboxed)
        tensor_copy(theirs, received);
    device_download(x, ours.data, bytes);
    device_download(y, theirs.data, bytes);
    for (int64_t i = shown.first; i < shown.first + shown.count && (a->result != AT_ROOT || r == root); i++)
        if (!(fabs(x[i] - y[i]) <= (fill == FRACTIONS ? 1e-6 * n : 0))) {
            const char *why = fill == INTEGERS ? ": it has other elements' contributions" : "";
            if (fill == WHO)
                why = who(a, n, x[i], y[i]);
            fail("element %lld, of shard %d, is %.9g on rank %d, expected %.9g%s", (long long)i, shard_of(i, K, n),
                 x[i], r, y[i], why);
        }
    if (sent != predicted)
        fail("rank %d sends %lld bytes, but the formula gives %lld", r, (long long)sent, (long long)predicted);
    free(x);
    free(y);
}

/* No rank may leave before the last one has come. */
static void verify_barrier(Comm *c, Tensor t)
{
    const struct timespec pause = {.tv_nsec = 2000000};

    for (int late = 0; late < comm_size(c) && comm_local.size == comm_size(c); late++) {
        if (comm_rank(c) == late)
            nanosleep(&pause, NULL);
        const double entered = clock_seconds();
        doubling_barrier(c, t);
        device_wait();
        const double left = clock_seconds(), last = comm_sum(c, comm_rank(c) == late ? entered : 0);
        if (left < last)
            fail("barrier on %d ranks: rank %d left it before rank %d came", comm_size(c), comm_rank(c), late);
    }
}

/* Prints what each algorithm costs for tensor t, beside steps_of: the hops that follow one another, and the bytes of
 * the rank that sends most. (It counts a gather's hops as one, because nobody waits for another one's.) */
static void print_costs(Comm *c, Tensor t)
{
    const int n = comm_size(c);
    int64_t mine[2], all[n][2];

    for (const Collective *a = collectives; a < collectives + COLLECTIVES; a++) {
        const Steps s = steps_of(a, n);
        comm_stats_reset();
        a->ours(c, t);
        mine[0] = comm_hops(), mine[1] = comm_bytes();
        comm_gather_host(c, all, mine, sizeof mine);
        for (int r = 1; r < n; r++)
            for (int k = 0; k < 2; k++)
                all[0][k] = all[r][k] > all[0][k] ? all[r][k] : all[0][k];
        print_rank_0("  %s, %s, %d rank%s: %lld hops, %lld bytes; by formula %g hops, of %.4g x %lld bytes, bus %.4g\n",
                     a->name, algorithm_name[a->algorithm], n, n > 1 ? "s" : "", (long long)all[0][0],
                     (long long)all[0][1], s.hops, s.volume, (long long)tensor_bytes(t), bus_factor(a->name, n));
    }
    print_rank_0("  groups of rank 0, %d rank%s:", n, n > 1 ? "s" : "");
    print_rank_0(" node");
    for (int i = 0; i < comm_size(node); i++)
        print_rank_0(" %d", comm_members(node)[i]);
    print_rank_0(", across");
    for (int i = 0; i < comm_size(across); i++)
        print_rank_0(" %d", comm_members(across)[i]);
    print_rank_0("\n");
}

static void verify(Comm *c, Tensor ours, Tensor theirs)
{
    static const int64_t sizes[] = {840, 1, 2, 3, 5, 7, 13, 31, 127, 1009, 4099};  /* even shards first */
    const int n = comm_size(c);

    for (int s = 0; s < 11; s++)
        for (const Collective *a = collectives; a < collectives + COLLECTIVES; a++)
            for (int fill = 0; fill < FILLS; fill++) {
                const int64_t K = a->algorithm == PAIRWISE ? (sizes[s] + n - 1) / n * n : sizes[s];
                root = (s + fill) % n;
                verify_size(a, c, tensor_range(ours, 0, K), tensor_range(theirs, 0, K), fill);
            }
    snprintf(context, sizeof context, "00_collectives");
    root = 0;
    verify_barrier(c, ours);
    print_rank_0("%d rank%s: %d algorithms equal the library's on eleven sizes; bytes equal the formulas\n", n,
                 n > 1 ? "s" : "", COLLECTIVES);
    if (options.check)
        print_costs(c, tensor_range(ours, 0, 840));
}

/* Prints the table of one collective, by one of its algorithms or (-1) all, beside the library's. */
static void measure_op(const char *name, int algorithm, Tensor t, int64_t min, int64_t max, const char *plot)
{
    Column columns[COLLECTIVES + 1];
    int count = 0;

    for (const Collective *a = collectives; a < collectives + COLLECTIVES; a++)
        if (!strcmp(a->name, name) && (algorithm < 0 || (int)a->algorithm == algorithm)) {
            columns[count++] = (Column){algorithm_name[a->algorithm], a->ours, steps_of(a, comm_size(world))};
            columns[count] = (Column){"library", a->library};
        }
    if (!count)
        fail_usage("--algorithm %s: --op %s has no such algorithm; try --algorithm all", algorithm_name[algorithm],
                   name);
    if (!strcmp(name, "barrier"))               /* sends no bytes, so one row shows all */
        max = min;
    measure_table(name, columns, count, t, min, max, plot);
}

int main(int argc, char **argv)
{
    static int op, algorithm = 6, min = 8, max = 1 << 24, node_size;
    static bool check_all;
    static const char *machine, *plot;
    static const char *const ops[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "gather",
                                      "scatter", "all_to_all", "shift", "barrier"};

    device_prepare(argv);
    error_set_program(context);
    comm_begin(&argc, &argv);
    options_train = false;
    options_parse("Measures collectives written from sends and receives beside the library's.", argc, argv,
                  (ProgramOption[]){
        {"op", OPTION_CHOICE, &op, "the collective to measure", OPS},
        {"algorithm", OPTION_CHOICE, &algorithm, "its algorithm", ALGORITHMS},
        {"min", OPTION_INT, &min, "smallest size; each is twice the one before", "BYTES", 8, 1 << 30},
        {"max", OPTION_INT, &max, "largest size", "BYTES", 8, 1 << 30},
        {"node", OPTION_INT, &node_size, "ranks of a node, for two-level; 0: a machine, or half of one", "N", 0, 4096},
        {"plot", OPTION_TEXT, &plot, "draws the times, with gnuplot", "FILE.svg"},
        {"machine", OPTION_TEXT, &machine, "measures this machine instead, and writes what make plan reads", "FILE"},
        {"verify", OPTION_FLAG, &check_all, "compares every algorithm with the library instead"},
        {0}});
    print_enable(comm_rank(world) == 0 && !options.quiet);
    const char *carrier = comm_choose();
    threads_set(options.threads, comm_local.cores);
    device_init(comm_local.rank);
    if (options.tf32 != TF32_OFF)
        device_use_tf32();
    if (max < min)
        fail_usage("--max: expected at least --min %d, got %d", min, max);
    output_check("plot", plot, "<?xml");
    output_check("machine", machine, "{\"name\":");

    const int n = comm_size(world);
    const bool several_nodes = node_size || comm_local.size < n;
    int link_count = 0;
    Comm *links[32];
    node_size = node_size ? node_size : comm_local.size < n ? comm_local.size : n % 2 ? n : n / 2;
    nodes = equal_share(n, node_size, "--node");
    node = comm_split(world, comm_rank(world) / node_size, "node");
    across = comm_split(world, comm_rank(world) % node_size, "across");
    for (int ranks = 2; machine && ranks <= n; ranks *= 2)
        links[link_count++] = comm_split(world, comm_rank(world) < ranks ? 0 : -1, "link");
    for (Comm *c = world; c; c = (Comm *)comm_next(c))
        for (int use = 0; use < COMM_OPS; use++)
            if (use != SEND && use != RECV && use != NUMBER)
                comm_predict(c, use, 0, 0);
    comm_sends_to(world, n > 1 ? (comm_rank(world) + 1) % n : -1);      /* library_shift */
    comm_connect();

    const int64_t most = check_all ? 8192 : max / dtype_size(REAL) + n;
    const Tensor t = tensor_create(MEM_WORKSPACE, REAL, "t", shape(most));
    inbox = tensor_create(MEM_COMMUNICATION, REAL, "inbox", shape(most));
    const char *where = options.pretend ? " on simulated hardware (--pretend): times are not this machine's" : "";
    print_rank_0("00_collectives%s: %d rank%s over %s; %s per rank\n", where, n, n > 1 ? "s" : "", carrier,
                 device_name());
    if (check_all)
        verify(world, t, tensor_create(MEM_WORKSPACE, REAL, "theirs", shape(most)));
    else if (machine)
        measure_machine(machine, ring_shift, links, several_nodes && nodes > 1 ? across : NULL, t, max);
    else
        measure_op(ops[op], algorithm == 6 ? -1 : algorithm, t, min, max, plot);
    comm_exit(0);
}
