/* Tests communication on one to eight ranks: every operation against a plain loop over the ranks' inputs, the traffic
 * counters, mistakes that must be found, deadlines, and --pretend.
 *
 * Without arguments the program starts itself under mpiexec. "test_comm worker NAME" is one rank of many cases.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../common/comm/transport.h"
#include "../../common/ultrascale.h"
#include "../harness.h"
#include "../tensors.h"

/* ---- A rank: groups, buffers, numbers ---- */

/* Ends all ranks with one line if the condition is false. (cmocka has a macro named fail.) */
#define require(condition, ...) do { if (!(condition)) (fail)(__VA_ARGS__); } while (0)

static const char *carrier;             /* the library that carries tensors, as comm_choose names it */

enum { GROUPS = 6, TYPES = 5 };
static const char *const group_names[GROUPS] = {"world", "half", "parity", "alone", "even", "in half"};
static Comm *groups[GROUPS];            /* NULL if this rank is in no group of that kind */

static int color_of(int group, int rank)
{
    const int n = comm_size(world), half = 2 * rank / n, place = rank - (half ? (n + 1) / 2 : 0);
    const int colors[GROUPS] = {0, half, rank % 2, rank, rank % 2 ? -1 : 0, 2 * half + place % 2};

    return colors[group];
}

/* Creates all groups. Checks each one's size, this rank's number in it, and its members. */
static void groups_create(void)
{
    const int rank = comm_rank(world);

    groups[0] = world;
    for (int g = 0; g < GROUPS; g++) {
        int size = 0, place = 0, sum = 0;
        if (g)
            groups[g] = comm_split(g == 5 ? groups[1] : world, color_of(g, rank), group_names[g]);
        require(!groups[g] == (color_of(g, rank) < 0), "group %s: rank %d is wrong in it", group_names[g], rank);
        if (!groups[g])
            continue;
        for (int r = 0; r < comm_size(world); r++)
            if (color_of(g, r) == color_of(g, rank))
                size++, place += r < rank, sum += r;
        require(comm_size(groups[g]) == size && comm_rank(groups[g]) == place && comm_sum(groups[g], rank) == sum,
                "group %s: rank %d of %d, but must be %d of %d", group_names[g], comm_rank(groups[g]),
                comm_size(groups[g]), place, size);
        for (int op = 0; op <= EXCHANGE; op++)
            comm_predict(groups[g], op, 0, 0);
        for (int away = 1; size > 1 && away < size; away += size > 2 ? size - 2 : 1)        /* next, previous */
            comm_sends_to(groups[g], (place + away) % size);
    }
    comm_connect();
}

/* The tests use integers; from -256 to 256 they are exact in BF16. fp8 is moved as a byte, never summed. */
static double decode(DType dtype, const void *e)
{
    return dtype == F64 ? *(const double *)e : dtype == F32 ? *(const float *)e : dtype == I32 ? *(const int32_t *)e
         : dtype == BF16 ? float_of_bf16(*(const uint16_t *)e) : *(const int8_t *)e;
}

static void encode(DType dtype, void *e, double x)
{
    union { double d; float f; int32_t i; uint16_t u; } as = {.d = x};

    if (dtype == F32)
        as.f = x;
    else if (dtype == I32)
        as.i = x;
    else if (dtype != F64)
        as.u = dtype == BF16 ? bf16_of(x) : (int8_t)x;
    memcpy(e, &as, dtype_size(dtype));
}

static double *numbers_of(Tensor t)             /* returns all elements; the caller frees them */
{
    const int64_t count = tensor_count(t), size = dtype_size(t.dtype);
    double *x = malloc(count * sizeof *x + 1);
    char *host = malloc(count * size + 1);

    if (count)
        device_download(host, t.data, count * size);
    for (int64_t i = 0; i < count; i++)
        x[i] = decode(t.dtype, host + i * size);
    free(host);
    return x;
}

static void set(Tensor t, int64_t first, int64_t count, const double *x)
{
    const int64_t size = dtype_size(t.dtype);
    char *host = malloc(count * size + 1);

    for (int64_t i = 0; i < count; i++)
        encode(t.dtype, host + i * size, x[i]);
    if (count)
        device_upload((char *)t.data + first * size, host, count * size);
    free(host);
}

static uint32_t mixed(uint32_t salt, int rank, int64_t i)
{
    uint32_t x = salt * 2654435761u + rank * 40503u * 65537u + (uint32_t)i * 2246822519u;

    x ^= x >> 15, x *= 3266489917u, x ^= x >> 13;
    return x;
}

static int64_t shard_begin(int64_t count, int r, int n)         /* first element of rank r's shard */
{
    return count * r / n;
}

/* ---- A case: fills buffers, runs one operation, compares the result ---- */

static const char *const op_names[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send",
                                       "exchange"};
static const DType types[] = {F64, F32, BF16, I32, E4M3};

typedef struct {
    int group;
    CommOp op;
    Reduce reduce;
    DType dtype;
    int64_t count;                      /* of the full tensor */
    int root;                           /* BROADCAST: the root; SEND: the distance in ranks to the receiver */
    bool in_place, blocking;
    uint32_t salt;
    Tensor in, out;
    Request *request, *receipt;
} Case;

static double called;                   /* when the last case called its operation */
enum { COUNTED = 6 };                   /* all_reduce to send; an exchange counts as one */
static struct { int64_t calls, bytes, predicted; } expected[GROUPS][COUNTED];

/* Adds the call and the bytes that the case sends, by the formulas of comm.h, and predicts the call. A broadcast is
 * predicted from rank 0. */
static void count_call(const Case *c)
{
    const int n = comm_size(groups[c->group]), rank = comm_rank(groups[c->group]), next = (rank + 1) % n;
    const int64_t K = c->count, local = shard_begin(K, rank + 1, n) - shard_begin(K, rank, n);
    const int64_t of_next = shard_begin(K, next + 1, n) - shard_begin(K, next, n), all = n > 1 ? K : 0;
    const int64_t elements[] = {2 * K - local - of_next, K - local, K - of_next, K - local,
                                rank == c->root ? all : 0, all, all};
    const CommOp counted = c->op == EXCHANGE ? SEND : c->op;

    expected[c->group][counted].calls++;
    expected[c->group][counted].bytes += elements[c->op] * dtype_size(c->dtype);
    expected[c->group][counted].predicted += (c->op != BROADCAST ? elements[c->op] : rank == 0 ? all : 0)
                                             * dtype_size(c->dtype);
    if (c->dtype == REAL)
        comm_predict(groups[c->group], c->op, 1, K);
    else
        comm_predict_as(groups[c->group], c->op, c->dtype, 1, K);
}

static double value(const Case *c, int rank, int64_t i)
{
    const int most = dtype_size(c->dtype) < 4 ? 16 : 1000;     /* BF16: the sum over eight ranks is below 256 */

    return (int)(mixed(c->salt, rank, i) % (2 * most + 1)) - most;
}

/* To the next rank of the ring, from the previous one. */
static Request *exchange(Comm *comm, Tensor out, Tensor in)
{
    const int n = comm_size(comm), rank = comm_rank(comm);

    return comm_start_exchange(comm, out, (rank + n - 1) % n, in, (rank + 1) % n);
}

static Request *(*const starting[])(Comm *, Tensor, Tensor) = {
    [REDUCE_SCATTER] = comm_start_reduce_scatter, [ALL_GATHER] = comm_start_all_gather,
    [ALL_TO_ALL] = comm_start_all_to_all, [EXCHANGE] = exchange};

static void start(Case *c)
{
    Comm *comm = groups[c->group];
    const int n = comm_size(comm), rank = comm_rank(comm);
    const int64_t first = shard_begin(c->count, rank, n), count = shard_begin(c->count, rank + 1, n) - first;
    const bool scatter = c->op == REDUCE_SCATTER, gather = c->op == ALL_GATHER;
    const bool two = c->op != ALL_REDUCE && c->op != BROADCAST;

    if ((c->op == SEND && c->root % n == 0) || (c->op == EXCHANGE && !c->count))        /* to itself; nothing */
        return;
    count_call(c);
    if (!scatter || !c->in_place)
        c->out = guarded(c->dtype, "out", shape(scatter ? count : c->count));
    if (two && (!gather || !c->in_place))
        c->in = guarded(c->dtype, "in", shape(gather ? count : c->count));
    if (c->in_place && scatter)
        c->out = tensor_range(c->in, first, count);
    if (c->in_place && gather)
        c->in = tensor_range(c->out, first, count);
    const Tensor input = two ? c->in : c->out;
    double *x = numbers_of(input);
    for (int64_t i = 0; i < tensor_count(input); i++)
        x[i] = value(c, rank, i + (gather ? first : 0));
    set(input, 0, tensor_count(input), x);
    free(x);
    called = comm_clock();
    if (c->op == ALL_REDUCE)
        c->request = comm_start_all_reduce(comm, c->out, c->reduce);
    else if (c->op == BROADCAST)
        c->request = comm_start_broadcast(comm, c->out, c->root);
    else if (c->op == SEND) {
        c->request = comm_start_send(comm, c->in, (rank + c->root) % n, c->salt / 64 % 3);
        c->receipt = comm_start_recv(comm, c->out, (rank + n - c->root % n) % n, c->salt / 64 % 3);
    } else
        c->request = starting[c->op](comm, c->out, c->in);
    if (c->blocking && c->op != SEND)
        comm_wait(&c->request);
}

/* Returns the expected value of element i of the result. */
static double wanted(const Case *c, int64_t i)
{
    const int n = comm_size(groups[c->group]), rank = comm_rank(groups[c->group]);
    const int64_t block = c->count / n;
    double x = c->reduce == SUM ? 0 : -INFINITY;
    int owner = 0;

    if (c->op == ALL_REDUCE || c->op == REDUCE_SCATTER) {
        i += c->op == REDUCE_SCATTER ? shard_begin(c->count, rank, n) : 0;
        for (int r = 0; r < n; r++)
            x = c->reduce == SUM ? x + value(c, r, i) : fmax(x, value(c, r, i));
        return x;
    }
    while (c->op == ALL_GATHER && i >= shard_begin(c->count, owner + 1, n))
        owner++;
    return c->op == ALL_GATHER ? value(c, owner, i) : c->op == BROADCAST ? value(c, c->root, i)
         : c->op == ALL_TO_ALL ? value(c, i / block, rank * block + i % block)
         : value(c, (rank + n - (c->op == EXCHANGE ? 1 : c->root % n)) % n, i);
}

static void finish(Case *c)
{
    const int n = comm_size(groups[c->group]), rank = comm_rank(groups[c->group]);

    comm_wait(&c->request);
    comm_wait(&c->receipt);
    require(!c->request && !c->receipt, "comm_wait leaves a request");
    const bool in_changes = c->op == REDUCE_SCATTER && c->in_place;
    const int64_t first = c->op == ALL_GATHER ? shard_begin(c->count, rank, n) : 0, outs = tensor_count(c->out);
    double *x = numbers_of(c->out), *y = numbers_of(c->in);
    for (int64_t k = 0; k < outs + (in_changes ? 0 : tensor_count(c->in)); k++) {
        const double is = k < outs ? x[k] : y[k - outs];
        const double must = k < outs ? wanted(c, k) : value(c, rank, k - outs + first);
        require(is == must, "%s of %lld %s in group %s of %d%s%s: element %lld of %s is %g, but must be %g",
                op_names[c->op], (long long)c->count, dtype_name(c->dtype), group_names[c->group], n,
                c->in_place ? ", in place" : "", c->blocking ? "" : ", asynchronous",
                (long long)(k < outs ? k : k - outs), k < outs ? "out" : "in", is, must);
    }
    free(x);
    free(y);
}

/* Makes a case for one group; returns whether this rank is in the group, and the transport has the operation. Every
 * rank must call it. MPI sums no small type but BF16; no transport sums fp8. */
static bool make(Case *c, int group, CommOp op, DType dtype, int64_t count, bool in_place, bool blocking)
{
    static uint32_t cases;                      /* the same number on all ranks */
    const bool small = dtype == E4M3 || (dtype == BF16 && cases % 2 && strcmp(carrier, "NCCL"));

    *c = (Case){.group = group, .op = op, .dtype = dtype, .count = count, .blocking = blocking,
                .in_place = in_place && (op == REDUCE_SCATTER || op == ALL_GATHER),
                .reduce = op == ALL_REDUCE && cases % 2 ? MAX : SUM};
    cases++;
    if (!groups[group] || (small && op == ALL_REDUCE) || (dtype == E4M3 && op == REDUCE_SCATTER))
        return false;
    const int n = comm_size(groups[group]);
    c->salt = 64 * cases + 8 * group + color_of(group, comm_rank(world));
    c->root = op != SEND ? (int)(cases % n) : cases % 2 ? 1 : n - 1;    /* SEND: to the next or previous rank */
    if (op == ALL_TO_ALL)
        c->count -= count % n;
    return true;
}

/* ---- A rank: all cases ---- */

/* All operations, types and counts in the world; some in the other groups. The largest no longer fit the library's
 * buffers, and change its algorithms. */
static void single_cases(void)
{
    const int64_t counts[] = {0, 1, 2, 7, comm_size(world) - 1, 1009, 30011};
    Case c;

    for (int g = 0; g < GROUPS; g++)
        for (int op = 0; op <= EXCHANGE; op++)
            for (int k = 0; k < 7; k++)
                for (int type = 0; type < TYPES; type++)
                    for (int way = 0; way < 4; way++)           /* in place or not, blocking or not */
                        if ((way % 2 == 0 || op == REDUCE_SCATTER || op == ALL_GATHER)
                            && ((g == 0 && k < 6) || (type + way) % 8 == (k + op) % 8 || full_tests())
                            && make(&c, g, op, types[type], counts[k], way % 2, way / 2))
                            start(&c), finish(&c), guarded_release();
}

/* Several operations in flight at once, in all groups. Each rank waits for them in a different order. */
static void started_cases(int rounds, int64_t largest)
{
    static Case in_flight[7 * GROUPS];

    for (int round = 0; round < rounds; round++) {
        int count = 0;
        for (int k = 0; k < 7 * GROUPS; k++)
            if (make(&in_flight[count], k * 5 % GROUPS, (k + round) % 7, types[(k + round / 2) % 4],
                     mixed(round, 0, k) % largest, k % 2, false))
                start(&in_flight[count++]);
        for (int i = count - 1, at = 0; i >= 0; i--) {
            at = (at + 7 * comm_rank(world) + 3 * round) % (i + 1);
            finish(&in_flight[at]);
            in_flight[at] = in_flight[i];
        }
        guarded_release();
    }
}

/* Calls and bytes are counted by the formulas of comm.h, and predicted by them. */
static void check_counts(void)
{
    CommStats s[GROUPS * COUNTED + 1];
    const int count = comm_stats(s, GROUPS * COUNTED + 1);
    int64_t bytes = 0, left = 0;

    for (int i = 0; i < count; i++) {
        int g = 0, op = 0;
        while (g < GROUPS && strcmp(group_names[g], s[i].group))
            g++;
        while (op < COUNTED && strcmp(op_names[op], s[i].op))
            op++;
        require(g < GROUPS && op < COUNTED, "%s in group %s is counted", s[i].op, s[i].group);
        require(s[i].calls == expected[g][op].calls && s[i].predicted_calls == s[i].calls
                && s[i].bytes == expected[g][op].bytes && s[i].predicted_bytes == expected[g][op].predicted,
                "rank %d, %s in group %s: %lld bytes counted and %lld predicted, but must be %lld and %lld",
                comm_rank(world), s[i].op, s[i].group, (long long)s[i].bytes, (long long)s[i].predicted_bytes,
                (long long)expected[g][op].bytes, (long long)expected[g][op].predicted);
        bytes += s[i].bytes;
        expected[g][op].calls = 0;
    }
    for (int i = 0; i < GROUPS * COUNTED; i++)
        left += expected[i / COUNTED][i % COUNTED].calls;
    require(left == 0 && bytes == comm_bytes(), "%lld calls are not counted; comm_bytes gives %lld, not %lld",
            (long long)left, (long long)comm_bytes(), (long long)bytes);
    comm_stats_reset();
    require(comm_bytes() == 0, "comm_stats_reset leaves %lld bytes", (long long)comm_bytes());
}

static void host_numbers(void)
{
    const int n = comm_size(world), rank = comm_rank(world);
    double sum = 0;

    for (int r = 0; r < n; r++)
        sum += 0.1 * (r + 1);
    require(comm_sum(world, 0.1 * (rank + 1)) == sum, "comm_sum is not the sum in the order of ranks");
    for (int late = 0; late < n; late++) {
        if (rank == late)
            usleep(3000);
        const double entered = clock_seconds();
        comm_barrier(world);
        const double left = clock_seconds(), last = comm_sum(world, rank == late ? entered : 0);
        require(left >= last, "rank %d left a barrier %g s before rank %d came", rank, last - left, late);
    }
    require(comm_bytes() == 0, "numbers on the host are counted as traffic");
    comm_check_same("the same everywhere", 42);
}

/* Transfers from one peer, with three tags, arrive in the order sent. They may be waited for in any order. */
static void transfer_order(int group, int64_t count)
{
    enum { TRANSFERS = 60 };
    static Case c[TRANSFERS];

    for (int k = 0; k < TRANSFERS; k++) {
        make(&c[k], group, SEND, F64, count, false, false);
        if (groups[group])
            start(&c[k]);
    }
    for (int k = TRANSFERS - 1; k >= 0 && groups[group]; k--)
        finish(&c[(7 * k + comm_rank(world)) % TRANSFERS]);
    guarded_release();
}

static void all_cases(void)
{
    single_cases();
    started_cases(8, 3000);
    started_cases(1, 100000);
    check_counts();
    host_numbers();
    for (int g = 0; g < GROUPS; g++)
        transfer_order(g, 9);
    transfer_order(0, 30000);
    options.check = true;                       /* on copies, and with NaN in the buffers until comm_wait */
    started_cases(4, 3000);
    transfer_order(0, 9);
    comm_stats_reset();
    options.pretend = "yes", options.pretend_bandwidth = 1e10, options.pretend_latency = 1e-6;      /* with --check */
    started_cases(1, 1000);
}

/* ---- A rank: mistakes, which end the program with one line ---- */

static jmp_buf caught;
static bool catching;

static void end(int status)
{
    if (catching)
        longjmp(caught, status);
    exit(status);
}

enum { FROM_CHECK = 7, LARGE = 15, MISTAKES = 16 };      /* from FROM_CHECK to LARGE: found by --check only */
static const struct {
    int found;                                  /* the ranks that find it, a bit each */
    const char *words;                          /* of its line; | separates them */
} mistakes[MISTAKES] = {
    {15, "all_gather: y is (20) F64; but rank |'s shard of x is (100) F64 of group world has 25 elements"},
    {15, "all_gather: x lies inside x, but not at the place of rank |'s shard"},
    {15, "all_to_all: x and x overlap"},
    {15, "send of x: rank |is no neighbor of rank |in group world, which has 4"},
    {15, "is no neighbor of rank |in group world, which has 4 in a ring"},
    {15, "all_reduce of F8_E4M3 in group world: "},
    {15, "seed: rank 2 has another than rank 0; all ranks must have the same"},
    {1, "recv of y in group world: expected tag 4 and 100 F64, but the sender sent tag 3 and 100 F64; post receives"},
    {1, "recv of z in group world: expected tag 3 and 100 I32, but the sender sent tag 3 and 50 F64"},
    {15, " of y in group world was started, but comm_wait was not called for it in this step"},
    {2, "all_reduce of x in group world: element 3 was written to before comm_wait"},
    {2, "all_gather of shard in group world: it was changed before comm_wait"},
    {15, " of group world: rank 0 calls all_reduce of x, 100 F64, SUM, but rank 1 all_reduce of x, 99 F64, SUM"},
    {15, "all_reduce of x, 100 F64, SUM, but rank 1 broadcast of x, 100 F64, from rank 0"},
    {15, "all_reduce of x, 100 F64, SUM, but rank 1 sum of a number"},
    {15, "broadcast of 2147483648 F64 in group world: MPI counts to 2147483647 only; try --comm nccl"},
};

static Tensor create(DType dtype, const char *name, int64_t count)
{
    return tensor_create(MEM_WORKSPACE, dtype, name, shape(count));
}

static void make_mistake(int number)
{
    const int rank = comm_rank(world), odd = rank == 1;
    const Tensor x = create(F64, "x", 100), y = create(F64, "y", 100), z = create(I32, "z", 100);
    const Tensor shard = create(F64, "shard", 25);
    Request *q = NULL, *r = NULL;

    options.check = number >= FROM_CHECK && number < LARGE;
    if (number == LARGE)
        comm_predict(world, BROADCAST, 1, 1ll << 31);
    switch (number) {
    case 0:
        q = comm_start_all_gather(world, x, tensor_range(y, 0, 20));
        break;
    case 1:
        q = comm_start_all_gather(world, x, tensor_range(x, (25 * rank + 1) % 75, 25));
        break;
    case 2:
        q = comm_start_all_to_all(world, tensor_range(x, 0, 60), tensor_range(x, 40, 60));
        break;
    case 3:
    case 4:
        q = comm_start_send(world, x, number == 3 ? rank : (rank + 2) % 4, 0);
        break;
    case 5:
        q = comm_start_all_reduce(world, create(E4M3, "x", 100), SUM);
        break;
    case 7:
        if (rank < 2)
            q = odd ? comm_start_send(world, x, 0, 3) : comm_start_recv(world, y, 1, 4);
        break;
    case 8:                                     /* the same bytes */
        if (rank < 2)
            q = odd ? comm_start_send(world, tensor_range(x, 0, 50), 0, 3) : comm_start_recv(world, z, 1, 3);
        break;
    case 10:
    case 12:
        q = comm_start_all_reduce(world, tensor_range(x, 0, number == 12 && odd ? 99 : 100), SUM);
        break;
    case 11:
        q = comm_start_all_gather(world, x, shard);
        break;
    case 13:
    case 14:
        if (!odd)
            q = comm_start_all_reduce(world, x, SUM);
        else if (number == 13)
            q = comm_start_broadcast(world, x, 0);
    }
    if (number == 6)
        comm_check_same("seed", rank == 2);
    if (number == 7 && rank < 2)                /* receives in another order than the sends */
        r = odd ? comm_start_send(world, y, 0, 4) : comm_start_recv(world, x, 1, 3);
    if (number == 9)                            /* the all-reduce is waited for, the exchange is not */
        exchange(world, y, x), comm_all_reduce(world, z, SUM), comm_stats_reset();
    if ((number == 10 || number == 11) && odd)
        set(number == 11 ? shard : x, 3, 1, &(double){5});
    if (number == 14 && odd)
        comm_barrier(world);
    comm_wait(&q);
    comm_wait(&r);
}

/* Makes each mistake on four ranks. Fails unless those that must find it end with its line, and the others continue. */
static void all_mistakes(void)
{
    const int rank = comm_rank(world);

    for (volatile int i = 0; i < MISTAKES; i++) {
        const int error = dup(2), file = memfd_create("error", 0);
        char line[1024] = "", copy[256], *rest = copy;
        dup2(file, 2);
        error_set_rank(0, end);                 /* others than rank 0 wait before they print */
        catching = true;
        if (!setjmp(caught))
            make_mistake(i);
        catching = false;
        error_set_rank(rank, end);
        dup2(error, 2);
        require(pread(file, line, sizeof line - 1, 0) >= 0 && (*line != 0) == (mistakes[i].found >> rank & 1),
                "rank %d %s; words: %s", rank, *line ? line : "finds no mistake", mistakes[i].words);
        close(file), close(error);
        strcpy(copy, mistakes[i].words);
        for (char *word; *line && (word = strsep(&rest, "|"));)
            require(strstr(line, word), "no \"%s\" in %s", word, line);
        options.check = false;
        comm_barrier(world);
    }
}

/* ---- A rank: waits that never end ---- */

/* Each pair of ranks has a reason of its own to wait. Seven of the ten ranks do. */
static void stall(void)
{
    static const char *const names[] = {"pair 0", "pair 1", "pair 2", "pair 3", "pair 4"};
    const int pair = comm_rank(world) / 2, odd = comm_rank(world) % 2;
    Comm *mine = comm_split(world, pair, names[pair]), *also = comm_split(world, pair, "also");
    Tensor x = create(F64, "x", 100);
    Request *q = NULL;

    for (int op = 0; op <= EXCHANGE; op++)
        comm_predict(mine, op, 0, 0), comm_predict(also, op, 0, 0);
    for (int r = 0; r < comm_size(mine); r++)
        if (r != comm_rank(mine))
            comm_sends_to(mine, r), comm_sends_to(also, r);
    comm_connect();
    comm_all_reduce(mine, x, SUM);
    comm_barrier(world);
    if (odd && pair != 1 && pair != 3)          /* it never comes */
        sleep(60);
    if (pair == 0)
        comm_all_reduce(mine, x, SUM);
    if (pair == 1)                              /* both receive, and neither sends */
        q = comm_start_recv(mine, x, !odd, 0);
    if (pair == 2)
        comm_sum(mine, 1);
    if (pair == 3)                              /* each calls another collective first */
        comm_all_reduce(odd ? also : mine, x, SUM);
    if (pair == 4)
        comm_split(mine, 0, "new");
    comm_wait(&q);
    device_wait();
}

/* ---- A rank: --pretend ---- */

enum { COUNT = 300000 };

static double latest(double t)                  /* the maximum over the ranks */
{
    double all[8];

    comm_gather_host(world, all, &t, sizeof t);
    for (int r = 0; r < comm_size(world); r++)
        t = fmax(t, all[r]);
    return t;
}

/* Returns the seconds from the last rank's start of an operation to the last rank's end. */
static double measure(CommOp op)
{
    Case c;

    comm_barrier(world);
    make(&c, 0, op, F64, COUNT, true, false);
    c.root = 1;
    start(&c);
    const double last = latest(called);
    comm_wait(&c.request);
    const double end = latest(comm_clock());
    finish(&c);
    guarded_release();
    return end - last;
}

static void simulated_time(void)
{
    /* simulated seconds on four ranks: 2.4 MB at 200 MB/s, and 1 ms per hop */
    static const double seconds[] = {0.018 + 0.006, 0.009 + 0.003, 0.009 + 0.003, 0.009 + 0.003, 0.012 + 0.003, 0,
                                     0.012 + 0.001};
    double waited = INFINITY;

    for (int op = 0; op <= EXCHANGE; op += op == BROADCAST ? 2 : 1) {          /* all but SEND */
        double best = INFINITY, real = INFINITY;
        for (int trial = 0; trial < 4; trial++) {       /* other processes may slow down some trials, not the best */
            options.pretend = NULL;
            real = fmin(real, measure(op));
            options.pretend = "yes", options.pretend_bandwidth = 2e8, options.pretend_latency = 1e-3;
            best = fmin(best, measure(op));
        }
        require(best >= 0.95 * seconds[op] && best <= seconds[op] + real + 0.010, "%s takes %.1f ms, with simulated "
                "%.1f ms it takes %.1f ms", op_names[op], 1e3 * real, 1e3 * seconds[op], 1e3 * best);
    }
    /* A transfer of 24 ms that overlaps with computation is not waited for. */
    for (int trial = 0; trial < 6; trial++) {
        Case c;
        make(&c, 0, ALL_REDUCE, F64, COUNT, false, false);
        comm_barrier(world);
        start(&c);
        for (int i = 0; i < 40; i++)
            usleep(1000), comm_progress();
        comm_barrier(world);
        const double before = comm_waited();
        finish(&c);
        waited = fmin(waited, comm_waited() - before);
        guarded_release();
    }
    require(waited <= 0.005, "a transfer of 24 ms that overlaps with computation is waited for %.1f ms", 1e3 * waited);
}

static int worker(int argc, char **argv)
{
    static const struct { const char *name; void (*run)(void); } jobs[] = {
        {"all", all_cases}, {"mistakes", all_mistakes}, {"pretend", simulated_time}};
    const char *what = argv[2];

    comm_begin(&argc, &argv);
    options.timeout = !strcmp(what, "stall") ? 2 : 60;
    options.report = "none";                    /* not NULL: waits are timed */
    carrier = comm_choose();
    threads_set(1, 1);
    device_init(comm_local.rank);
    if (!strcmp(what, "stall"))
        stall();
    groups_create();
    for (int i = 0; i < 3; i++)
        if (!strcmp(what, jobs[i].name))
            jobs[i].run();
    if (!strcmp(what, "leave") && comm_rank(world) == 1)
        exit(0);
    comm_exit(0);
}

/* ---- The tests ---- */

static char self[512];                          /* this program */

static void cases_pass(void **state)
{
    static const char *const runs[] = {"2 all", "3 all", "8 all", "4 mistakes", "4 pretend",
                                       "1 all", "4 all", "5 all", "6 all", "7 all"};    /* these: make test-full */

    run_well("%s worker all", self);            /* without mpiexec */
    for (int i = 0; i < (full_tests() ? 10 : 5); i++)
        run_well("timeout 300 mpiexec -n %c %s worker %s", *runs[i], self, runs[i] + 2);
}

/* Each rank that waits longer than --timeout prints its line; then all end. A rank that exits without comm_exit ends
 * the others, with a status that tells. */
static void waits_end(void **state)
{
    static const char *const lines[] = {"rank 0 waits for all_reduce, operation 2 of group pair 0",
                                        "rank 2 waits for a recv from rank 1 of group pair 1",
                                        "rank 3 waits for a recv from rank 0 of group pair 1",
                                        "rank 4 waits for the other ranks' numbers, after operation 1 of group pair 2",
                                        "rank 6 waits for all_reduce, operation 2 of group pair 3",
                                        "rank 7 waits for all_reduce, operation 1 of group also",
                                        "rank 8 waits for the other ranks of group pair 4 to form groups"};
    int count = 0;

    Result r = run("timeout 30 mpiexec -n 10 %s worker stall", self);
    for (int i = 0; i < 7; i++)
        if (!strstr(r.err, lines[i]))
            fail_msg("no \"%s\" in\n%s", lines[i], r.err);
    for (const char *at = r.err; (at = strstr(at, ", for 2 seconds (--timeout)\n")); at++)
        count++;
    if (r.status != 1 || count != 7 || r.seconds > 10)
        fail_msg("status %d after %.0f s, and %d lines:\n%s", r.status, r.seconds, count, r.err);
    result_free(r);
    r = run("timeout 30 mpiexec -n 3 %s worker leave", self);
    if (r.status == 0 || r.seconds > 10)
        fail_msg("a rank that exits without comm_exit: status %d after %.0f s", r.status, r.seconds);
    result_free(r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(cases_pass), cmocka_unit_test(waits_end)};

    if (argc > 2 && !strcmp(argv[1], "worker"))
        return worker(argc, argv);
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    return cmocka_run_group_tests_name("communication", tests, NULL, NULL);
}
