/* Tests communication on one to eight ranks: every operation against a plain loop over the ranks' inputs, the traffic
 * counters, --check and --pretend.
 *
 * Three programs are built from this file. test_comm runs over MPI. test_comm_staged runs on a device that works late,
 * and whose memory the host cannot access (fake_device.h). test_comm_nccl adds a fake NCCL to it (fake_nccl.c).
 *
 * Without arguments the program starts itself under mpiexec. "test_comm worker" is one rank, which runs all cases:
 * starting ranks takes longer than most cases. "test_comm worker NAME" runs one case that must fail, or measures.
 */
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../common/ultrascale.h"
#include "../harness.h"

/* ---- A rank: groups, buffers, numbers ---- */

/* Ends all ranks with one line if the condition is false. (cmocka has a macro named fail.) */
#define require(condition, ...) do { if (!(condition)) (fail)(__VA_ARGS__); } while (0)

typedef struct {
    Comm *comm;
    const char *name;
    int color;
} Group;

static const char *carrier;             /* the library that carries tensors, as comm_choose names it */

enum { GROUPS = 6, GUARD = 3 };
static Group groups[GROUPS];            /* comm is NULL if this rank is in no group of that kind */

typedef struct {
    Tensor all, t;                      /* t is the middle of `all`; GUARD elements on each side must not change */
} Buffer;

/* decode and encode convert elements of a type. The tests use integers; from -256 to 256 they are exact in BF16. */
static double decode(DType dtype, const void *element)
{
    float f = 0;
    uint16_t u;

    switch (dtype) {
    case F64:
        return *(const double *)element;
    case F32:
        return *(const float *)element;
    case I32:
        return *(const int32_t *)element;
    case BF16:
        memcpy((char *)&f + 2, element, 2);
        return f;
    case F16:
        memcpy(&u, element, 2);
        return (u & 0x8000 ? -1 : 1) * (u & 0x7fff ? ldexp((u & 0x3ff) | 0x400, (u >> 10 & 31) - 25) : 0);
    default:
        return *(const int8_t *)element;        /* fp8 is transferred, never summed */
    }
}

static void encode(DType dtype, void *element, double x)
{
    const float f = x;
    const int32_t i = x;
    int exponent;
    uint16_t u;

    switch (dtype) {
    case F64:
        memcpy(element, &x, 8);
        break;
    case F32:
        memcpy(element, &f, 4);
        break;
    case I32:
        memcpy(element, &i, 4);
        break;
    case BF16:
        memcpy(element, (const char *)&f + 2, 2);
        break;
    case F16:
        u = frexp(fabs(x), &exponent) * 2048;
        u = x == 0 ? 0 : (x < 0 ? 0x8000 : 0) + ((exponent + 14) << 10) + (u & 0x3ff);
        memcpy(element, &u, 2);
        break;
    default:
        *(int8_t *)element = i;
    }
}

/* Only the device may be able to access a tensor's memory: read and write elements with get and set. */
static double get(Tensor t, int64_t i)
{
    double element;

    device_download(&element, (char *)t.data + i * dtype_size(t.dtype), dtype_size(t.dtype));
    return decode(t.dtype, &element);
}

static void set(Tensor t, int64_t i, double x)
{
    double element;

    encode(t.dtype, &element, x);
    device_upload((char *)t.data + i * dtype_size(t.dtype), &element, dtype_size(t.dtype));
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

static void set_all(Tensor t, double *x)        /* sets all elements, and frees x */
{
    const int64_t count = tensor_count(t), size = dtype_size(t.dtype);
    char *host = malloc(count * size + 1);

    for (int64_t i = 0; i < count; i++)
        encode(t.dtype, host + i * size, x[i]);
    device_upload(t.data, host, count * size);
    free(host);
    free(x);
}

static double *room(Tensor t)
{
    return malloc(tensor_count(t) * sizeof(double) + 1);
}

static double guard_value(DType dtype)
{
    return dtype_size(dtype) < 4 ? -77 : -7777;
}

static Buffer buffer_create(DType dtype, const char *name, int64_t count)
{
    Buffer b = {.all = tensor_create(MEM_WORKSPACE, dtype, name, shape(count + 2 * GUARD))};

    for (int i = 0; i < GUARD; i++) {
        set(b.all, i, guard_value(dtype));
        set(b.all, count + 2 * GUARD - 1 - i, guard_value(dtype));
    }
    b.t = tensor_range(b.all, GUARD, count);
    return b;
}

static void buffer_free(Buffer *b)
{
    const int64_t count = tensor_count(b->all);

    for (int i = 0; i < GUARD && b->all.data; i++)
        require(get(b->all, i) == guard_value(b->all.dtype) && get(b->all, count - 1 - i) == guard_value(b->all.dtype),
                "%s: an element outside of it was written", b->all.name);
    tensor_free(&b->all, MEM_WORKSPACE);
}

/* Element i of a rank's input. Inputs are integers, so that sums are exact in any order and any type. */
static double value(uint32_t salt, int rank, int64_t i)
{
    uint32_t x = salt * 2654435761u + rank * 40503u * 65537u + (uint32_t)i * 2246822519u;

    x ^= x >> 15, x *= 3266489917u, x ^= x >> 13;
    return (int)(x % 2001) - 1000;
}

static int64_t shard_begin(int64_t count, int r, int n)         /* first element of rank r's shard */
{
    return count * r / n;
}

/* ---- A case: fills buffers, runs one operation, compares the result ---- */

typedef enum { REDUCE_SUM, REDUCE_MAX, SCATTER, GATHER, TO_ALL, FROM_ROOT, TO_NEXT, TRANSFER, KINDS } Kind;
static const char *const kind_name[] = {"all_reduce SUM", "all_reduce MAX", "reduce_scatter", "all_gather",
                                        "all_to_all", "broadcast", "shift", "send"};
static const CommOp kind_op[] = {ALL_REDUCE, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, BROADCAST, SEND, SEND};
static const char *const op_names[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send"};

static const DType types[] = {F64, F32, I32, BF16, F16, E4M3};
enum { WIDE = 3, TYPES = 6 };           /* every transport sums the first three types */

typedef struct {
    const Group *group;
    Kind kind;
    DType dtype;
    int64_t count;                      /* of the full tensor */
    int root;                           /* FROM_ROOT: the root; TRANSFER: the distance in ranks to the receiver */
    bool in_place, blocking;
    uint32_t salt;
    Buffer in, out;
    Request *request, *receipt;
} Case;

static int64_t expected_calls[GROUPS][COMM_OPS], expected_bytes[GROUPS][COMM_OPS];

/* Adds the call and the bytes that the case sends, by the formulas of comm.h, to the expected traffic. */
static void expect(const Case *c)
{
    const int n = comm_size(c->group->comm), rank = comm_rank(c->group->comm), next = (rank + 1) % n;
    const int64_t K = c->count, local = shard_begin(K, rank + 1, n) - shard_begin(K, rank, n);
    const int64_t of_next = shard_begin(K, next + 1, n) - shard_begin(K, next, n);
    const int64_t elements[COMM_OPS] = {2 * K - local - of_next, K - local, K - of_next, K - local,
                                        rank == c->root && n > 1 ? K : 0, n > 1 ? K : 0};
    const CommOp op = kind_op[c->kind];

    expected_calls[c->group - groups][op]++;
    expected_bytes[c->group - groups][op] += elements[op] * dtype_size(c->dtype);
}

static double value_of(const Case *c, int rank, int64_t i)
{
    const double x = value(c->salt, rank, i);

    return dtype_size(c->dtype) < 4 ? fmod(x, 17) : x;          /* the sum over eight ranks is below 256 */
}

static void fill(const Case *c, Tensor t, int64_t first)
{
    const int rank = comm_rank(c->group->comm);
    const int64_t count = tensor_count(t);
    double *x = room(t);

    for (int64_t i = 0; i < count; i++)
        x[i] = value_of(c, rank, first + i);
    set_all(t, x);
}

static void start(Case *c)
{
    Comm *comm = c->group->comm;
    const int n = comm_size(comm), rank = comm_rank(comm);
    const int64_t first = shard_begin(c->count, rank, n), count = shard_begin(c->count, rank + 1, n) - first;
    Tensor shard;

    if (c->kind == TRANSFER && c->root % n == 0)         /* a rank cannot send to itself */
        return;
    expect(c);                                          /* comm_stats must agree in the end */
    switch (c->kind) {
    case REDUCE_SUM:
    case REDUCE_MAX:
        c->out = buffer_create(c->dtype, "reduced", c->count);
        fill(c, c->out.t, 0);
        if (c->blocking)
            comm_all_reduce(comm, c->out.t, c->kind == REDUCE_SUM ? SUM : MAX);
        else
            c->request = comm_start_all_reduce(comm, c->out.t, c->kind == REDUCE_SUM ? SUM : MAX);
        break;
    case SCATTER:
        c->in = buffer_create(c->dtype, "scattered", c->count);
        fill(c, c->in.t, 0);
        if (!c->in_place)
            c->out = buffer_create(c->dtype, "shard", count);
        shard = c->in_place ? tensor_range(c->in.t, first, count) : c->out.t;
        if (c->blocking)
            comm_reduce_scatter(comm, shard, c->in.t);
        else
            c->request = comm_start_reduce_scatter(comm, shard, c->in.t);
        break;
    case GATHER:
        c->out = buffer_create(c->dtype, "gathered", c->count);
        if (!c->in_place)
            c->in = buffer_create(c->dtype, "shard", count);
        shard = c->in_place ? tensor_range(c->out.t, first, count) : c->in.t;
        fill(c, shard, first);
        if (c->blocking)
            comm_all_gather(comm, c->out.t, shard);
        else
            c->request = comm_start_all_gather(comm, c->out.t, shard);
        break;
    case FROM_ROOT:
        c->out = buffer_create(c->dtype, "broadcast", c->count);
        fill(c, c->out.t, 0);
        if (c->blocking)
            comm_broadcast(comm, c->out.t, c->root);
        else
            c->request = comm_start_broadcast(comm, c->out.t, c->root);
        break;
    default:
        c->in = buffer_create(c->dtype, "sent", c->count);
        c->out = buffer_create(c->dtype, "received", c->count);
        fill(c, c->in.t, 0);
        if (c->kind == TO_ALL && c->blocking)
            comm_all_to_all(comm, c->out.t, c->in.t);
        else if (c->kind == TO_ALL)
            c->request = comm_start_all_to_all(comm, c->out.t, c->in.t);
        else if (c->kind == TO_NEXT)
            c->request = comm_start_shift(comm, c->out.t, c->in.t);
        else {
            c->request = comm_start_send(comm, c->in.t, (rank + c->root) % n, c->salt % 1000);
            c->receipt = comm_start_recv(comm, c->out.t, (rank + n - c->root % n) % n, c->salt % 1000);
        }
    }
}

/* Returns the expected value of element i of the result. */
static double wanted(const Case *c, int64_t i)
{
    const int n = comm_size(c->group->comm), rank = comm_rank(c->group->comm);
    double x = c->kind == REDUCE_MAX ? -INFINITY : 0;
    int r = 0;

    switch (c->kind) {
    case SCATTER:
        i += shard_begin(c->count, rank, n);
        /* fall through */
    case REDUCE_SUM:
        for (r = 0; r < n; r++)
            x += value_of(c, r, i);
        return x;
    case REDUCE_MAX:
        for (r = 0; r < n; r++)
            x = fmax(x, value_of(c, r, i));
        return x;
    case GATHER:
        while (i >= shard_begin(c->count, r + 1, n))
            r++;
        return value_of(c, r, i);
    case TO_ALL:
        return value_of(c, i / (c->count / n), rank * (c->count / n) + i % (c->count / n));
    case FROM_ROOT:
        return value_of(c, c->root, i);
    case TO_NEXT:
        return value_of(c, (rank + n - 1) % n, i);
    default:
        return value_of(c, (rank + n - c->root % n) % n, i);
    }
}

static void finish(Case *c)
{
    const int n = comm_size(c->group->comm), rank = comm_rank(c->group->comm);
    const int64_t first = shard_begin(c->count, rank, n), count = shard_begin(c->count, rank + 1, n) - first;

    comm_wait(&c->request);
    comm_wait(&c->receipt);
    require(!c->request && !c->receipt, "comm_wait leaves a request");
    const Tensor result = c->kind == SCATTER && c->in_place ? tensor_range(c->in.t, first, count) : c->out.t;
    /* All of a million elements would take seconds. Any likely error affects more than 11 adjacent elements. */
    const int64_t step = c->count < 20000 || full_tests() ? 1 : 11, last = tensor_count(result) - 1;
    double *x = numbers_of(result);
    for (int64_t i = 0; i <= last; i = i < last && i + step > last ? last : i + step)
        require(x[i] == wanted(c, i), "%s of %lld %s in group %s of %d%s%s: element %lld is %g, expected %g",
                kind_name[c->kind], (long long)c->count, dtype_name(c->dtype), c->group->name, n,
                c->in_place ? ", in place" : "", c->blocking ? "" : ", asynchronous", (long long)i, x[i],
                wanted(c, i));
    free(x);
    x = c->in.all.data && !(c->kind == SCATTER && c->in_place) ? numbers_of(c->in.t) : NULL;
    const int64_t elements = x ? tensor_count(c->in.t) : 0;
    for (int64_t i = 0; i < elements; i++)
        require(x[i] == value_of(c, rank, i + (c->kind == GATHER ? first : 0)),
                "%s of %lld %s in group %s of %d changed its input", kind_name[c->kind], (long long)c->count,
                dtype_name(c->dtype), c->group->name, n);
    free(x);
    buffer_free(&c->in);
    buffer_free(&c->out);
}

static uint32_t cases;                  /* cases made so far, the same number on all ranks */

/* Makes a case for one group; returns whether this rank is in the group. Every rank must call it. */
static bool make(Case *c, int group, Kind kind, DType dtype, int64_t count, bool in_place, bool blocking)
{
    *c = (Case){.group = &groups[group], .kind = kind, .dtype = dtype, .count = count, .in_place = in_place,
                .blocking = blocking};
    cases++;
    if (!c->group->comm)
        return false;
    const int n = comm_size(c->group->comm);
    c->salt = 64 * cases + 8 * group + c->group->color;
    c->root = kind != TRANSFER ? (int)(cases % n) : cases % 2 ? 1 : n - 1;       /* to the next or previous rank */
    if (kind == TO_ALL)
        c->count -= count % n;
    return true;
}

/* Returns whether the transport has this operation for the type. MPI sums no small type but BF16; no transport sums
 * fp8. */
static bool knows(DType dtype, Kind kind)
{
    return dtype_size(dtype) >= 4 || kind > SCATTER || (dtype == BF16 && kind != REDUCE_MAX)
           || (!strcmp(carrier, "NCCL") && dtype != E4M3);
}

/* Returns whether the operation has an in-place form, beside the one with two buffers. */
static bool may_be_in_place(Kind kind)
{
    return kind == SCATTER || kind == GATHER;
}

/* ---- A rank: all cases ---- */

/* Splits `from` by color_of, and checks the new group's size, this rank's number in it, its members and its shards. */
static void group_create(int i, Comm *from, const char *name, int (*color_of)(int rank))
{
    const int rank = comm_rank(world), color = color_of(rank);
    int size = 0, place = 0, sum = 0;

    groups[i] = (Group){comm_split(from, color, name), name, color < 0 ? 0 : color};
    for (int r = 0; r < comm_size(world); r++)
        if (color_of(r) == color)
            size++, place += r < rank, sum += r;
    require(!groups[i].comm == (color < 0), "group %s: color %d gives %s", name, color, color < 0 ? "a group" : "none");
    if (!groups[i].comm)
        return;
    require(comm_size(groups[i].comm) == size && comm_rank(groups[i].comm) == place,
            "group %s: rank %d of %d, but must be %d of %d", name, comm_rank(groups[i].comm), comm_size(groups[i].comm),
            place, size);                                       /* place: this rank's number in the group */
    require(comm_sum(groups[i].comm, rank) == sum, "group %s has other members", name);
    const Range shard = comm_shard(groups[i].comm, 101);
    require(shard.first == shard_begin(101, place, size)
            && shard.first + shard.count == shard_begin(101, place + 1, size),
            "group %s: the shard of 101 elements is %lld, %lld", name, (long long)shard.first, (long long)shard.count);
}

static int color_half(int rank)
{
    return 2 * rank / comm_size(world);
}

static int color_parity(int rank)
{
    return rank % 2;
}

static int color_alone(int rank)
{
    return rank;
}

static int color_even(int rank)
{
    return rank % 2 ? -1 : 0;
}

static int color_in_half(int rank)      /* splits each half into its odd and its even ranks */
{
    const int first = color_half(rank) ? (comm_size(world) + 1) / 2 : 0;

    return 2 * color_half(rank) + (rank - first) % 2;
}

static void groups_create(void)
{
    groups[0] = (Group){world, "world", 0};
    group_create(1, world, "half", color_half);
    group_create(2, world, "parity", color_parity);
    group_create(3, world, "alone", color_alone);
    group_create(4, world, "even", color_even);
    group_create(5, groups[1].comm, "in half", color_in_half);
    for (int i = 0; i < GROUPS; i++)
        for (int op = 0; op <= SHIFT && groups[i].comm; op++)
            comm_predict(groups[i].comm, op, 0, 0);
    comm_connect();
}

/* Blocking operations: all kinds, types and counts in the world; every count with some type in the other groups. */
static void blocking_cases(void)
{
    const int64_t counts[] = {0, 1, 2, 7, comm_size(world) - 1, 10007};

    for (int g = 0; g < GROUPS; g++)
        for (Kind kind = 0; kind < KINDS; kind++)
            for (int k = 0; k < 6; k++)
                for (int type = 0; type < TYPES; type++)
                    for (int in_place = 0; in_place <= may_be_in_place(kind); in_place++) {
                        Case c;
                        if (!knows(types[type], kind)
                            || ((g > 0 || type >= WIDE) && type % 3 != (k + (int)kind) % 3 && !full_tests()))
                            continue;
                        if (make(&c, g, kind, types[type], counts[k], in_place, true))
                            start(&c), finish(&c);
                    }
    for (int root = 0; root < comm_size(world); root++) {
        Case c;
        make(&c, 0, FROM_ROOT, F32, 1009, false, true);
        c.root = root;
        start(&c), finish(&c);
    }
}

/* With a million elements libraries change their algorithms, and transfers no longer fit their buffers. */
static void large_cases(void)
{
    for (Kind kind = 0; kind < KINDS; kind++)
        for (int in_place = 0; in_place <= may_be_in_place(kind); in_place++) {
            Case c;
            make(&c, 0, kind, (kind + in_place) % 2 ? F64 : F32, (device_is_host() ? 1000000 : 30000) + in_place,
                 in_place, kind % 3 == 0);
            start(&c), finish(&c);
        }
}

/* Several operations in flight at once, in all groups. Each rank waits for them in a different order. */
static void started_cases(int rounds, int64_t largest)
{
    enum { MOST = KINDS * GROUPS };
    static Case in_flight[MOST];

    for (int round = 0; round < rounds; round++) {
        int count = 0;
        for (int k = 0; k < MOST; k++) {
            const int64_t elements = (uint32_t)((k + 1) * 2654435761u + round * 40503u) % largest;
            if (make(&in_flight[count], k * 5 % GROUPS, (k + round) % KINDS, types[(k + round / 2) % 3], elements,
                     k % 2, false))
                start(&in_flight[count++]);
        }
        for (int i = count - 1, at = 0; i >= 0; i--) {
            at = (at + 7 * comm_rank(world) + 3 * round) % (i + 1);
            finish(&in_flight[at]);
            in_flight[at] = in_flight[i];
        }
    }
}

static void check_counts(void)
{
    CommStats stats[GROUPS * COMM_OPS + 1];
    const int count = comm_stats(stats, GROUPS * COMM_OPS + 1);
    int64_t calls = 0, expected = 0, bytes = 0;

    for (int i = 0; i < count; i++) {
        int g = 0, op = 0;
        while (g < GROUPS && strcmp(groups[g].name, stats[i].group))
            g++;
        while (op < COMM_OPS && strcmp(op_names[op], stats[i].op))
            op++;
        require(g < GROUPS && op < COMM_OPS, "%s in group %s is counted", stats[i].op, stats[i].group);
        require(stats[i].calls == expected_calls[g][op] && stats[i].bytes == expected_bytes[g][op],
                "rank %d, %s in group %s: %lld calls and %lld bytes counted, but there were %lld and %lld",
                comm_rank(world), stats[i].op, stats[i].group, (long long)stats[i].calls,
                (long long)stats[i].bytes, (long long)expected_calls[g][op], (long long)expected_bytes[g][op]);
        calls += stats[i].calls, bytes += stats[i].bytes;
    }
    for (int g = 0; g < GROUPS; g++)
        for (int op = 0; op < COMM_OPS; op++)
            expected += expected_calls[g][op];
    require(calls == expected, "%lld calls counted, but there were %lld", (long long)calls, (long long)expected);
    require(bytes == comm_bytes(), "%lld bytes counted, but comm_bytes gives %lld", (long long)bytes,
            (long long)comm_bytes());
    comm_stats_reset();
    memset(expected_calls, 0, sizeof expected_calls);
    memset(expected_bytes, 0, sizeof expected_bytes);
    require(comm_bytes() == 0, "comm_stats_reset leaves %lld bytes", (long long)comm_bytes());
}

/* comm_predict gives the calls and bytes that comm_stats then counts. */
static void predictions_hold(void)
{
    const int64_t counts[] = {0, 1, 5, 840, 1009};
    CommStats stats[GROUPS * COMM_OPS + 1];

    for (int g = 0; g < GROUPS; g++)
        for (Kind kind = 0; kind < KINDS - 1; kind++)
            for (int k = 0; k < 5; k++) {
                Case c;
                const DType dtype = k % 2 && knows(BF16, kind) ? BF16 : REAL;
                for (int repeat = 0; repeat < 3; repeat++) {
                    if (!make(&c, g, kind, dtype, counts[k], repeat % 2, true))
                        continue;
                    if (repeat == 0 && dtype == REAL)
                        comm_predict(c.group->comm, kind_op[kind], 3, c.count);
                    else if (repeat == 0)
                        comm_predict_as(c.group->comm, kind_op[kind], dtype, 3, c.count);
                    c.root = 0;
                    start(&c), finish(&c);
                }
            }
    const int count = comm_stats(stats, GROUPS * COMM_OPS + 1);
    for (int i = 0; i < count; i++)
        require(stats[i].calls == stats[i].predicted_calls && stats[i].bytes == stats[i].predicted_bytes,
                "rank %d, %s in group %s of %d ranks: %lld calls and %lld bytes, but comm_predict gives %lld and %lld",
                comm_rank(world), stats[i].op, stats[i].group, comm_size(world), (long long)stats[i].calls,
                (long long)stats[i].bytes, (long long)stats[i].predicted_calls,
                (long long)stats[i].predicted_bytes);
    check_counts();
}

/* Sums of fractions depend on the order of addition. They are the same bits on all ranks and in every call. */
static void sums_are_the_same_everywhere(void)
{
    static const int64_t counts[] = {1, 100, 10007, 300000};

    for (int g = 0; g < GROUPS; g++)
        for (int k = 0; k < 12 && groups[g].comm; k++) {
            const DType dtype = k % 3 == 0 ? F64 : k % 3 == 1 ? F32 : BF16;
            const double tolerance = dtype == F64 ? 1e-14 : dtype == F32 ? 1e-6 : 0.03;
            const int64_t count = counts[k / 3];
            if (dtype == BF16 && count > 100 && !full_tests())
                continue;
            Buffer result[3];
            for (int repeat = 0; repeat < 2; repeat++) {
                result[repeat] = buffer_create(dtype, "fractions", count);
                double *x = room(result[repeat].t);
                for (int64_t i = 0; i < count; i++)
                    x[i] = 1 / (value(k, comm_rank(groups[g].comm), i) + 0.1);
                set_all(result[repeat].t, x);
                comm_all_reduce(groups[g].comm, result[repeat].t, SUM);
            }
            result[2] = buffer_create(dtype, "the first rank's", count);
            device_copy(result[2].t.data, result[0].t.data, tensor_bytes(result[0].t));
            comm_broadcast(groups[g].comm, result[2].t, 0);
            double *x = numbers_of(result[0].t);
            for (int i = 1; i < 3; i++) {
                double *y = numbers_of(result[i].t);
                require(!memcmp(x, y, count * sizeof *x),
                        "all_reduce of %lld %s in group %s: %s", (long long)count, dtype_name(dtype), groups[g].name,
                        i == 1 ? "the same again has other bits" : "other bits than the first rank has");
                free(y);
            }
            for (int64_t i = 0; i < count; i++) {
                double sum = 0, size = 0;
                for (int r = 0; r < comm_size(groups[g].comm); r++) {
                    sum += 1 / (value(k, r, i) + 0.1);
                    size += fabs(1 / (value(k, r, i) + 0.1));
                }
                require(fabs(x[i] - sum) <= size * tolerance,
                        "all_reduce of fractions: %.17g, but must be %.17g", x[i], sum);
            }
            free(x);
            for (int i = 0; i < 3; i++)
                buffer_free(&result[i]);
        }
    comm_stats_reset();
}

static void host_numbers(void)
{
    for (int g = 0; g < GROUPS; g++) {
        const int n = groups[g].comm ? comm_size(groups[g].comm) : 0;
        double sum = 0;
        for (int r = 0; r < n; r++)
            sum += 0.1 * (r + 1);                               /* comm_sum adds in the order of ranks: same bits */
        const int rank = n ? comm_rank(groups[g].comm) : 0;
        require(!n || comm_sum(groups[g].comm, 0.1 * (rank + 1)) == sum,
                "comm_sum in group %s is not the sum in the order of ranks", groups[g].name);
    }
    for (int late = 0; late < comm_size(world); late++) {
        double entered;
        if (comm_rank(world) == late)
            usleep(3000);
        entered = clock_seconds();
        comm_barrier(world);
        const double left = clock_seconds(), last = comm_sum(world, comm_rank(world) == late ? entered : 0);
        require(left >= last, "rank %d left a barrier %g s before rank %d came", comm_rank(world), last - left, late);
    }
    require(comm_bytes() == 0, "numbers on the host are counted as traffic");
}

/* ---- Point-to-point transfers ---- */

/* Transfers from one peer with several tags arrive in the order sent. They may be waited for in any order. */
static void transfer_order(Comm *comm, int64_t count)
{
    enum { TAGS = 3, TRANSFERS = 60 };
    const int n = comm_size(comm), rank = comm_rank(comm), to = (rank + 1) % n, from = (rank + n - 1) % n;
    Buffer in[TRANSFERS], out[TRANSFERS];
    Request *send[TRANSFERS], *receive[TRANSFERS];

    if (n == 1)
        return;
    for (int k = 0; k < TRANSFERS; k++) {                        /* tags 0, 1, 2, 0, 1, 2, ... */
        in[k] = buffer_create(F64, "in", count), out[k] = buffer_create(F64, "out", count);
        double *x = room(in[k].t);
        for (int64_t i = 0; i < count; i++)
            x[i] = value(k, rank, i);
        set_all(in[k].t, x);
        send[k] = comm_start_send(comm, in[k].t, to, k % TAGS);
    }
    for (int k = 0; k < TRANSFERS; k++)
        receive[k] = comm_start_recv(comm, out[k].t, from, k % TAGS);
    for (int k = TRANSFERS - 1; k >= 0; k--) {
        comm_wait(&receive[k]);
        double *x = numbers_of(out[k].t);
        for (int64_t i = 0; i < count; i++)
            require(x[i] == value(k, from, i), "transfer %d has another one's values", k);
        free(x);
        comm_wait(&send[k]);
        buffer_free(&in[k]);
        buffer_free(&out[k]);
    }
}

/* Pairs of ranks send to each other at once. Waiting for the sends first works: no send waits for a receive of its own
 * rank. */
static void both_ways(int transfers, int64_t count)
{
    const int n = comm_size(world), rank = comm_rank(world), peer = rank ^ 1;
    Buffer in, out;
    Request **send = calloc(transfers, sizeof *send), **receive = calloc(transfers, sizeof *receive);

    if (peer < n) {
        in = buffer_create(F32, "in", transfers * count), out = buffer_create(F32, "out", transfers * count);
        double *x = room(in.t);
        for (int64_t i = 0; i < transfers * count; i++)
            x[i] = value(1, rank, i);
        set_all(in.t, x);
        for (int k = 0; k < transfers; k++)
            send[k] = comm_start_send(world, tensor_range(in.t, k * count, count), peer, 7);
        for (int k = 0; k < transfers; k++)
            receive[k] = comm_start_recv(world, tensor_range(out.t, k * count, count), peer, 7);
        for (int k = 0; k < transfers; k++)
            comm_wait(&send[k]);
        for (int k = 0; k < transfers; k++)
            comm_wait(&receive[k]);
        x = numbers_of(out.t);
        for (int64_t i = 0; i < transfers * count; i++)
            require(x[i] == value(1, peer, i), "transfer %lld of %d between a pair: element %lld is wrong",
                    (long long)(i / count), transfers, (long long)(i % count));
        free(x);
        buffer_free(&in);
        buffer_free(&out);
    }
    free(send);
    free(receive);
}

static void transfers(void)
{
    for (int g = 0; g < GROUPS; g++)
        if (groups[g].comm)
            transfer_order(groups[g].comm, 9);
    transfer_order(world, 3000);
    both_ways(device_is_host() ? 1000 : 100, 17);
    both_ways(2, device_is_host() ? 500000 : 50000);
    comm_stats_reset();
}

static void all_cases(void)
{
    blocking_cases();
    large_cases();
    started_cases(8, 3000);
    started_cases(1, 100000);
    check_counts();
    predictions_hold();
    sums_are_the_same_everywhere();
    host_numbers();
    transfers();

    options.check = true;                       /* on copies, and with NaN in the buffers until comm_wait */
    started_cases(4, 3000);
    for (Kind kind = 0; kind < KINDS; kind++)
        for (int in_place = 0; in_place <= may_be_in_place(kind); in_place++) {
            Case c;
            make(&c, 0, kind, in_place ? F64 : F32, 1009 * (kind % 2), in_place, true);
            start(&c), finish(&c);
        }
    check_counts();
    transfer_order(world, 9);
    both_ways(50, 1000);
    comm_stats_reset();
    options.pretend = "yes", options.pretend_bandwidth = 1e10, options.pretend_latency = 1e-6;      /* with --check */
    started_cases(1, 1000);
    check_counts();
}

/* ---- A rank: cases that must fail ---- */

static void faults(const char *what)
{
    const int rank = comm_rank(world), n = comm_size(world), odd = rank == 1;
    Tensor x = tensor_create(MEM_WORKSPACE, REAL, "x", shape(100));
    Tensor y = tensor_create(MEM_WORKSPACE, REAL, "y", shape(100));
    Tensor single = tensor_create(MEM_WORKSPACE, F32, "x", shape(100));
    Tensor two = tensor_create(MEM_WORKSPACE, F64, "x", shape(100));
    Tensor shard = tensor_create(MEM_WORKSPACE, REAL, "shard", shape(comm_shard(world, 100).count));
    Request *q = NULL;

    options.check = what[0] != '-';             /* "-NAME": without --check */
    what += what[0] == '-';
    if (!strcmp(what, "count"))
        comm_all_reduce(world, tensor_range(x, 0, odd ? 99 : 100), SUM);
    if (!strcmp(what, "operation") && odd)
        comm_broadcast(world, y, 0);
    if (!strcmp(what, "operation") && !odd)
        comm_all_reduce(world, x, SUM);
    if (!strcmp(what, "dtype"))
        comm_all_reduce(world, odd ? single : two, SUM);
    if (!strcmp(what, "reduce"))
        comm_all_reduce(world, x, odd ? MAX : SUM);
    if (!strcmp(what, "root"))
        comm_broadcast(world, x, rank == n - 1 ? 2 : 0);
    if (!strcmp(what, "missed") && odd)         /* its barrier meets the other ranks' all-reduce */
        comm_barrier(world);
    if (!strcmp(what, "missed") && !odd)
        comm_all_reduce(world, x, SUM), comm_barrier(world);
    if (!strcmp(what, "written")) {
        q = comm_start_all_reduce(world, x, SUM);
        if (odd)
            set(x, 41, 5);
    }
    if (!strcmp(what, "gathered written")) {
        q = comm_start_all_gather(world, x, shard);
        if (odd)
            set(x, 99, 0);
    }
    if (!strcmp(what, "shard changed")) {
        q = comm_start_all_gather(world, x, shard);
        if (odd)
            set(shard, 3, 5);
    }
    if (!strcmp(what, "scattered changed")) {
        q = comm_start_reduce_scatter(world, shard, x);
        if (odd)
            set(x, 99, 5);
    }
    if (!strcmp(what, "send changed")) {
        q = odd ? comm_start_send(world, x, 0, 3) : rank == 0 ? comm_start_recv(world, x, 1, 3) : NULL;
        if (odd)
            set(x, 0, 5);
    }
    if (!strcmp(what, "transfer order") && odd)
        comm_start_send(world, x, 0, 3), q = comm_start_send(world, y, 0, 4);
    if (!strcmp(what, "transfer order") && rank == 0)
        comm_start_recv(world, y, 1, 4), q = comm_start_recv(world, x, 1, 3);
    if (!strcmp(what, "transfer size"))
        q = odd ? comm_start_send(world, x, 0, 3) : rank ? NULL : comm_start_recv(world, tensor_range(x, 0, 99), 1, 3);
    if (!strcmp(what, "shift changed")) {
        q = comm_start_shift(world, y, x);
        if (odd)
            set(x, 0, 5);
    }
    if (!strcmp(what, "no shard"))
        comm_all_gather(world, x, tensor_range(y, 0, 20));
    if (!strcmp(what, "shard of dtype"))
        comm_reduce_scatter(world, tensor_range(REAL == F64 ? single : two, 0, tensor_count(shard)), x);
    if (!strcmp(what, "place"))
        comm_all_gather(world, x, tensor_range(x, 1, tensor_count(shard)));
    if (!strcmp(what, "multiple"))
        comm_all_to_all(world, y, x);
    if (!strcmp(what, "overlap"))
        comm_all_to_all(world, tensor_range(x, 0, 60), tensor_range(x, 0, 60));
    if (!strcmp(what, "shapes"))
        comm_start_shift(world, tensor_range(y, 0, 99), x);
    if (!strcmp(what, "itself"))
        comm_start_send(world, x, rank, 0);
    if (!strcmp(what, "nobody"))
        comm_start_recv(world, x, n, 0);
    if (!strcmp(what, "far"))
        comm_start_send(world, x, (rank + 2) % n, 0);
    if (!strcmp(what, "root of nobody"))
        comm_broadcast(world, x, n);
    if (!strcmp(what, "forgotten")) {           /* the shift; the all-reduce is waited for */
        comm_start_shift(world, y, x);
        q = comm_start_all_reduce(world, single, SUM);
        comm_wait(&q);
        comm_barrier(world);
        comm_stats_reset();
    }
    if (!strcmp(what, "second")) {              /* rank 1 never calls the second of three */
        comm_all_reduce(world, x, SUM);
        device_wait();                          /* a sleeping rank of the fake NCCL continues no transfer */
        if (odd)
            sleep(100);
        q = comm_start_all_reduce(world, y, SUM);
        comm_start_all_reduce(world, single, SUM);
    }
    if (!strcmp(what, "late"))
        comm_all_reduce(comm_split(world, 0, "late"), x, SUM);
    if (!strcmp(what, "words") && rank == 0)
        fprintf(stderr, "carried by %s, and kernels are loaded %s, NVLink SHARP %s\n", carrier,
                getenv("CUDA_MODULE_LOADING") ? getenv("CUDA_MODULE_LOADING") : "late",
                getenv("NCCL_NVLS_ENABLE") ? getenv("NCCL_NVLS_ENABLE") : "unset");
    for (int i = 0; i < 3 && !strcmp(what, "transfers"); i++) {
        comm_all_reduce(world, x, SUM);
        comm_reduce_scatter(world, shard, y);
        q = comm_start_shift(world, x, y);
        comm_wait(&q);
        get(x, 0);                              /* the host waits for its GPU */
    }
    if (!strcmp(what, "leave") && odd)
        exit(0);
    if (!strcmp(what, "stuck") && odd)
        sleep(100);
    if (!strcmp(what, "send-first") && rank < 2) {      /* works only if the transport buffers the send */
        q = comm_start_send(world, x, rank ^ 1, 3);
        comm_wait(&q);
        q = comm_start_recv(world, y, rank ^ 1, 3);
    }
    if (!strcmp(what, "patient")) {
        comm_extend_timeout(1e8);                        /* by ten seconds */
        usleep(odd ? 3500000 : 0);
        comm_barrier(world);
        comm_extend_timeout(0);
    }
    if (!strcmp(what, "circle"))
        q = comm_start_recv(world, x, (rank + 1) % n, 0);
    for (double begin = clock_seconds(); !strcmp(what, "busy") && odd && clock_seconds() < begin + 100;)
        comm_progress();
    comm_wait(&q);
    device_wait();
    comm_barrier(world);
}

/* ---- A rank: the groups of a program that combines techniques ---- */

/* Groups have two or four ranks each: three with collectives, one with shifts, one with point-to-point transfers. All
 * these are in flight at once. */
static void grid(void)
{
    const int rank = comm_rank(world);
    Comm *tp = comm_split(world, rank / 2, "tp"), *cp = comm_split(world, rank / 4, "cp");
    Comm *pp = comm_split(world, rank % 2, "pp"), *replicas = comm_split(world, rank % 4, "replicas");
    Comm *embedding_group = comm_split(world, rank < 2 || rank >= 6 ? rank % 2 : -1, "embedding");
    Comm *const reducing[] = {tp, replicas, embedding_group};
    const int n = comm_size(pp), next = (comm_rank(pp) + 1) % n, before = (comm_rank(pp) + n - 1) % n;
    Tensor x[10];
    Request *q[8] = {0};

    require(comm_size(world) == 8, "eight ranks are needed");
    comm_predict(cp, SHIFT, 0, 0);
    comm_predict(pp, SEND, 0, 0);
    for (int i = 0; i < 3; i++)
        if (reducing[i])
            comm_predict(reducing[i], ALL_REDUCE, 0, 0);
    comm_connect();
    fprintf(stderr, "rank %d steps 0\n", rank);
    for (int i = 0; i < 10; i++) {
        x[i] = tensor_create(MEM_WORKSPACE, F64, "x", shape(100));
        set(x[i], 99, 1 + rank);
    }
    require(device_multiprocessors_left() == 256, "%d multiprocessors left with no transfer in flight",
            device_multiprocessors_left());
    q[0] = comm_start_recv(pp, x[0], before, 0);
    q[1] = comm_start_recv(pp, x[1], next, 1);
    for (int i = 0; i < 3; i++)
        q[2 + i] = reducing[i] ? comm_start_all_reduce(reducing[i], x[2 + i], SUM) : NULL;
    q[5] = comm_start_shift(cp, x[5], x[6]);
    q[6] = comm_start_send(pp, x[7], next, 0);
    q[7] = comm_start_send(pp, x[8], before, 1);
    /* Multiprocessors lent, of 256: 16 per collective or shift, 4 per point-to-point transfer. */
    require(device_multiprocessors_left() == 256 - (embedding_group ? 64 : 48) - 4 * 4,
            "%d multiprocessors left with all transfers in flight", device_multiprocessors_left());
    for (int i = 7; i >= 0; i--)
        comm_wait(&q[i]);
    require(device_multiprocessors_left() == 256, "%d multiprocessors left after all waits",
            device_multiprocessors_left());
    require(get(x[0], 99) == 1 + (rank + 6) % 8 && get(x[1], 99) == 1 + (rank + 2) % 8,
            "a receive has another rank's value");
    require(get(x[2], 99) == 3 + rank / 2 * 4 && get(x[3], 99) == 6 + 2 * (rank % 4), "a sum is of another group");
    require(!embedding_group || get(x[4], 99) == 8 + 2 * (rank % 2), "a sum is of another group");
    require(get(x[5], 99) == 1 + rank / 4 * 4 + (rank + 3) % 4, "a shift has another rank's value");
}

/* ---- A rank: --pretend ---- */

static double latest(double t)                  /* the maximum over the ranks, without simulated time */
{
    const char *pretend = options.pretend;
    Tensor x = tensor_create(MEM_WORKSPACE, F64, "time", shape(1));

    options.pretend = NULL;
    set(x, 0, t);
    comm_all_reduce(world, x, MAX);
    t = get(x, 0);
    tensor_free(&x, MEM_WORKSPACE);
    options.pretend = pretend;
    return t;
}

/* Starts one operation on x `times` times, after a barrier and, on rank 2, a delay. Returns the seconds from the last
 * rank's start to the last rank's end. Each rank must take `least` seconds or more from the last start; a shift waits
 * for its neighbours only, so it is timed from its own. */
static double measure(Kind kind, Tensor x, int times, double delay, double least)
{
    const int n = comm_size(world), rank = comm_rank(world);
    static Tensor y;
    Request *q[8] = {0};

    if (!y.data)
        y = tensor_create(MEM_WORKSPACE, x.dtype, "y", shape(tensor_count(x)));
    const Range shard = comm_shard(world, tensor_count(x));
    comm_barrier(world);
    if (rank == 2)
        usleep(1e6 * delay);
    const double begin = clock_seconds();
    for (int i = 0; i < times; i++)
        q[i] = kind == REDUCE_SUM ? comm_start_all_reduce(world, x, SUM)
            : kind == SCATTER ? comm_start_reduce_scatter(world, tensor_range(x, shard.first, shard.count), x)
            : kind == GATHER ? comm_start_all_gather(world, x, tensor_range(x, shard.first, shard.count))
            : kind == TO_ALL ? comm_start_all_to_all(world, y, x)
            : kind == FROM_ROOT ? comm_start_broadcast(world, x, 1)
            : comm_start_shift(world, y, x);
    for (int i = 0; i < times; i++)
        comm_wait(&q[i]);
    const double end = clock_seconds(), last = latest(begin), from = kind == TO_NEXT ? begin : last;
    require(!options.pretend || end - from >= least, "with --pretend, %d times %s on %d ranks ends on rank %d after "
            "%.2f ms; its simulated time is %.2f ms", times, kind_name[kind], n, rank, 1e3 * (end - from), 1e3 * least);
    return latest(end) - last;
}

static void simulated_time(void)
{
    /* simulated seconds on four ranks: 10 MB at 1 GB/s, and 1 ms per hop */
    static const struct {
        Kind kind;
        double seconds;
    } tables[] = {{REDUCE_SUM, 0.015 + 0.006}, {SCATTER, 0.0075 + 0.003}, {GATHER, 0.0075 + 0.003},
                  {TO_ALL, 0.0075 + 0.003}, {FROM_ROOT, 0.010 + 0.003}, {TO_NEXT, 0.010 + 0.001}};
    Tensor x = tensor_create(MEM_WORKSPACE, F64, "x", shape(1250000));
    double best, real;

    require(comm_size(world) == 4, "four ranks are needed");
    for (int i = 0; i < 6; i++) {
        best = real = INFINITY;
        for (int trial = 0; trial < 4; trial++) {       /* other processes may slow down some trials, not the best */
            options.pretend = NULL;
            real = fmin(real, measure(tables[i].kind, x, 1, 0, 0));
            options.pretend = "yes", options.pretend_bandwidth = 1e9, options.pretend_latency = 1e-3;
            best = fmin(best, measure(tables[i].kind, x, 1, 0, tables[i].seconds));
        }
        if (comm_rank(world) == 0)
            printf("%s: real %.1f ms, simulated %.1f ms, measured %.1f ms\n", kind_name[tables[i].kind], 1e3 * real,
                   1e3 * tables[i].seconds, 1e3 * best);
        require(best <= tables[i].seconds + real + 0.010, "%s takes %.1f ms, with simulated %.1f ms it takes %.1f ms",
                kind_name[tables[i].kind], 1e3 * real, 1e3 * tables[i].seconds, 1e3 * best);
        if (tables[i].kind != FROM_ROOT)                                /* a broadcast's root alone sends */
            measure(tables[i].kind, x, 2, 0, 2 * tables[i].seconds);    /* both operations share the link */
        measure(tables[i].kind, x, 1, 0.050, tables[i].seconds);
    }

    /* A transfer that overlaps with computation: 100 kB at 10 MB/s take 15 ms plus 6 ms of latency. */
    options.pretend_bandwidth = 1e7;
    double alone = INFINITY, waited = INFINITY, bare = 0;
    best = INFINITY;
    for (int trial = 0; trial < 6; trial++) {
        comm_barrier(world);
        const double begin = latest(clock_seconds());
        Request *q = comm_start_all_reduce(world, tensor_range(x, 0, 12500), SUM);
        for (int i = 0; i < 30; i++)
            usleep(1000), comm_progress();
        const double computed = latest(clock_seconds()) - begin, before = comm_waited();
        comm_wait(&q);
        const double hidden = comm_waited();
        waited = fmin(waited, hidden - before);
        best = fmin(best, latest(clock_seconds()) - begin - computed);
        alone = fmin(alone, measure(REDUCE_SUM, tensor_range(x, 0, 12500), 1, 0, 0.021));
        bare = fmax(bare, comm_waited() - hidden);
    }
    require(bare >= 0.020, "a transfer of 21 ms that overlaps with nothing makes rank %d wait %.1f ms",
            comm_rank(world), 1e3 * bare);
    require(waited <= 0.005, "a transfer that overlaps with computation makes rank %d wait %.1f ms",
            comm_rank(world), 1e3 * waited);
    comm_stats_reset();
    require(comm_waited() == 0, "comm_stats_reset leaves %g s of waiting", comm_waited());

    /* No real transfer is this fast: all of its time exceeds the simulated one. */
    options.pretend_bandwidth = 1e15, options.pretend_latency = 0;
    comm_all_reduce(world, x, SUM);
    require(comm_pretend_overrun() > 0 && comm_pretend_overrun() <= comm_waited(),
            "a transfer of no simulated time: waited %g s, comm_pretend_overrun gives %g s", comm_waited(),
            comm_pretend_overrun());
    if (comm_rank(world) == 0)
        printf("a transfer of %.1f ms adds %.1f ms to computation\n", 1e3 * alone, 1e3 * best);
    require(best <= 0.005, "a transfer of %.1f ms, started before 30 ms of computation, adds %.1f ms", 1e3 * alone,
            1e3 * best);
}

/* Operations on more bytes than 32 bits count, where a library may count in int; or one send of more elements. */
static void huge(bool elements)
{
    const int64_t count = elements ? (1ll << 31) + 7 : (1ll << 29) + 7;
    const int rank = comm_rank(world);
    const Range shard = comm_shard(world, count);
    Tensor x = tensor_create(MEM_WORKSPACE, F32, "x", shape(count));
    static const char *const names[] = {"send", "broadcast", "all_reduce", "reduce_scatter", "all_gather"};

    for (int way = 0; way < (elements ? 1 : 5); way++) {
        Request *q = NULL;
        for (int64_t i = 0; i < count; i += i < count - 20 ? 1 << 12 : 1)
            set(x, i, value(way, rank, i));
        if (way == 0)
            q = rank == 0 ? comm_start_send(world, x, 1, 0) : comm_start_recv(world, x, 0, 0);
        else
            q = way == 1 ? comm_start_broadcast(world, x, 0) : way == 2 ? comm_start_all_reduce(world, x, SUM)
                : way == 3 ? comm_start_reduce_scatter(world, tensor_range(x, shard.first, shard.count), x)
                : comm_start_all_gather(world, x, tensor_range(x, shard.first, shard.count));
        comm_wait(&q);
        for (int64_t i = 0; i < count; i += i < count - 20 ? 1 << 12 : 1) {
            const bool local = i >= shard.first && i < shard.first + shard.count;
            const double sum = value(way, 0, i) + value(way, 1, i);
            const int owner = i >= shard_begin(count, 1, 2);
            const double wanted = way < 2 ? value(way, 0, i) : way < 4 ? sum : value(way, owner, i);
            require((way == 3 && !local) || get(x, i) == wanted, "%s of %lld elements: element %lld is %g, expected %g",
                    names[way], (long long)count, (long long)i, get(x, i), wanted);
        }
    }
    tensor_free(&x, MEM_WORKSPACE);
}

static int worker(int argc, char **argv)
{
    const char *what = argc > 2 ? argv[2] : "all";
    char name[64];

    snprintf(name, sizeof name, "test_comm worker %s", what);
    error_set_program(name);
    mallopt(M_MMAP_MAX, 0);                     /* reuse large arrays' memory, instead of mapping each */
    mallopt(M_TRIM_THRESHOLD, INT32_MAX);
    comm_begin(&argc, &argv);
    options.timeout = strstr("-stuck -circle -busy -second -patient send-first stuck-while-starting", what)
                              || getenv("FAKE_NCCL_LOSE") || getenv("FAKE_NCCL_STOP") ? 1 : 60;
    options.comm = !strcmp(what, "insist") ? COMM_NCCL : COMM_AUTO;
    options.report = "none";                    /* not NULL: waits are timed */
    carrier = comm_choose();
    device_init(comm_local_rank(), comm_local_size(), 1);
    if (!strcmp(what, "stuck-while-starting") && comm_rank(world) == 1)
        sleep(100);
    if (strcmp(what, "grid"))
        groups_create();
    comm_started();
    if (!strcmp(what, "all"))
        all_cases();
    else if (!strcmp(what, "grid"))
        grid();
    else if (!strcmp(what, "pretend"))
        simulated_time();
    else if (!strcmp(what, "huge"))
        huge(false);
    else if (!strcmp(what, "huger"))
        huge(true);
    else
        faults(what);
    comm_exit(0);
}

/* ---- The tests ---- */

static char self[512];                          /* this program */
static bool with_nccl, on_host;                 /* this program is test_comm_nccl; it is test_comm */

static void every_operation(void **state)
{
    (void)state;
    for (int n = 1; n <= 8; n++) {
        const bool some = on_host ? n != 4 && n != 6 && n != 7 : n == 2 || n == 3 || n == 5;
        if (!some && !full_tests())
            continue;
        Result r = run("timeout 120 mpiexec -n %d %s worker", n, self);
        if (r.status)
            fail_msg("%d ranks: status %d\n%s%s", n, r.status, r.out, r.err);
        if (full_tests())
            print_message("%d ranks: %.1f s\n", n, r.seconds);
        result_free(r);
    }
    Result r = run("%s worker", self);          /* without mpiexec */
    assert_int_equal(r.status, 0);
    result_free(r);
}

/* Counts `text` in `in`. */
static int occurrences(const char *in, const char *text)
{
    int count = 0;

    for (; (in = strstr(in, text)); in += strlen(text))
        count++;
    return count;
}

/* Fails unless `text` contains each of the words, which | separates. */
static void assert_words(const char *what, const char *text, const char *words)
{
    char copy[512], *rest = copy;

    snprintf(copy, sizeof copy, "%s", words);
    for (char *word; (word = strsep(&rest, "|"));)
        if (!strstr(text, word))
            fail_msg("%s: no \"%s\" in\n%s", what, word, text);
}

/* Fails unless the status is 1 and the program printed one error line, with these words. */
static void assert_fault(const char *what, int status, const char *err, const char *words)
{
    char begin[64];

    snprintf(begin, sizeof begin, "test_comm worker %s: ", what);
    if (status != 1)
        fail_msg("%s: status %d\n%s", what, status, err);
    if (occurrences(err, begin) != (*words ? 1 : 0))
        fail_msg("%s: not one line, but\n%s", what, err);
    assert_words(what, err, words);
}

static void faults_are_found(void **state)
{
    static const struct {
        const char *what, *words;
        bool once;              /* make test runs it in test_comm only */
        int ranks;              /* 0 stands for 3 */
    } table[] = {
        {"count", "rank 0 calls all_reduce of x, 100 F64|but rank 1 all_reduce of x, 99 F64|group world"},
        {"operation", "rank 0 calls all_reduce of x, 100 F64|but rank 1 broadcast of y, 100 F64", true},
        {"dtype", "rank 0 calls all_reduce of x, 100 F64|but rank 1 all_reduce of x, 100 F32", true},
        {"reduce", "rank 0 calls all_reduce of x, 100 F64, SUM|but rank 1 all_reduce of x, 100 F64, MAX", true},
        {"root", "rank 0 calls broadcast of x, 100 F64, from rank 0|but rank 2 broadcast of x, 100 F64, from rank 2",
         true},
        {"missed", "rank 0 calls all_reduce of x, 100 F64|but rank 1 sum of a number", true},
        {"written", "all_reduce of x in group world: element 41 was written to before comm_wait"},
        {"gathered written", "all_gather of x in group world: element 99 was written to before comm_wait", true},
        {"shard changed", "all_gather of shard in group world|changed before comm_wait", true},
        {"scattered changed", "reduce_scatter of x in group world|changed before comm_wait"},
        {"send changed", "send of x in group world|changed before comm_wait", true},
        {"transfer order", "recv of x in group world: expected tag 3 and 100 F64|the sender sent tag 4 and 100 F64"},
        {"transfer size", "recv of x in group world: expected tag 3 and 99 F64|the sender sent tag 3 and 100 F64",
         true},
        {"shift changed", "send of x in group world|changed before comm_wait", true},
        /* found without --check */
        {"-no shard", "all_gather: y is (20)|rank 0's shard of x is (100)|33 elements", true},
        {"-shard of dtype", "reduce_scatter: x is (33) F32|x is (100) F64", true},
        {"-place", "all_gather: x lies inside x|rank 0's shard", true},
        {"-multiple", "all_to_all: y is (100), x is (100)|multiple of 3 ranks", true},
        {"-overlap", "all_to_all: x and x overlap", true},
        {"-shapes", "shift: y is (99), x is (100)", true},
        {"-itself", "send of x: rank 0 is not another rank of group world, which has 3", true},
        {"-nobody", "recv of x: rank 3 is not another rank of group world, which has 3", true},
        {"-far", "send of x: rank 2 is no neighbour of rank 0 in group world, which has 4 ranks in a ring",
         true, 4},
        {"-late", "all_reduce in group late: its ranks are not connected for it; comm_predict must name", true},
        {"-root of nobody", "broadcast of x: rank 3 is not in group world, which has 3", true},
        {"forgotten", " of y in group world was started, but comm_wait was not called for it in this step", true},
        {"-leave", ""},
    };

    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (table[i].once && !on_host && !full_tests())
            continue;
        Result r = run("timeout 20 mpiexec -n %d %s worker '%s'", table[i].ranks ? table[i].ranks : 3, self,
                       table[i].what);
        assert_fault(table[i].what, r.status, r.err, table[i].words);
        result_free(r);
    }
}

/* Ranks that keep others waiting are named within a few seconds of --timeout. The cases run side by side, to save
 * time. */
static void stalls_are_named(void **state)
{
    static const struct {
        const char *what, *words;
    } table[] = {
        {"-stuck", "silent for 1 seconds: rank 1;|rank 0 waits for a sum, operation|of group world|rank 2 waits for a "
                   "sum"},
        {"stuck-while-starting", "silent for 1 seconds: rank 1;|rank 0 waits for the other ranks to start"},
        {"-circle", "all ranks wait for each other, for 1 seconds|rank 0 waits for recv|rank 1 waits for recv|rank 2 "
                    "waits for recv"},
        {"-second", "silent for 1 seconds: rank 1;|rank 0 waits for all_reduce, operation 2 of group world|rank 2 "
                    "waits for all_reduce, operation 2 of group world"},
        {"-busy", "a rank that computes keeps others waiting, for 1 seconds|rank 0 waits for a sum|rank 1 computes"},
        {"send-first", "all ranks wait for each other, for 1 seconds|rank 0 waits for send"},
        {"-patient", ""},                           /* comm_extend_timeout gives it longer */
    };
    enum { COUNT = sizeof table / sizeof *table };
    char command[4096] = "";

    (void)state;
    if (!on_host && !full_tests())
        skip();
    for (int i = 0; i < COUNT; i++)                 /* four at a time: more ranks would fill 64 MB of /dev/shm */
        sprintf(command + strlen(command), "(timeout 20 mpiexec -n 3 %s worker %s 2>stall%d; echo $? >status%d)& %s",
                self, table[i].what, i, i, i == 3 ? "wait; " : "");
    result_free(run("sh -c '%s wait'", command));
    for (int i = 0; i < COUNT; i++) {
        Result status = run("cat status%d", i), err = run("cat stall%d", i);
        if (*table[i].words)
            assert_fault(table[i].what, atoi(status.out), err.out, table[i].words);
        else if (atoi(status.out))                  /* the case must succeed */
            fail_msg("%s: status %s%s", table[i].what, status.out, err.out);
        result_free(status);
        result_free(err);
    }
}

/* Errors of NCCL and CUDA end the program with their text. comm_choose checks which ranks can use NCCL. */
static void nccl_fails(void **state)
{
    static const struct {
        const char *environment, *what, *words;
        bool full;              /* make test-full only */
    } table[] = {
        {"FAKE_NCCL_FAIL=ncclCommInitRankConfig~1", "-transfers",
         "ncclCommInitRankConfig(|at common/comm/nccl.c:|: an "
         "error of the fake; its last words"},
        {"FAKE_NCCL_FAIL=ncclGetUniqueId~1", "-transfers", "ncclGetUniqueId(|nccl.c|its last words", true},
        {"FAKE_NCCL_FAIL=ncclAllReduce~2", "-transfers", "ncclAllReduce(|nccl.c|its last words"},
        {"FAKE_NCCL_FAIL=ncclReduce~4", "-transfers", "ncclReduce(|nccl.c|its last words", true},
        {"FAKE_NCCL_FAIL=ncclSend~3", "-transfers", "ncclSend(|nccl.c|its last words", true},
        {"FAKE_NCCL_FAIL=cudaEventRecord~5", "-transfers", "cudaEventRecord(|nccl.c|an error of the fake CUDA",
         true},
        {"FAKE_NCCL_FAIL=cudaStreamWaitEvent~9", "-transfers", "cudaStreamWaitEvent(|nccl.c|fake CUDA", true},
        {"FAKE_NCCL_FAIL=async~4", "-transfers", "NCCL, on a communicator of |: an error of the fake; its last words"},
        {"FAKE_GPUS=2", "insist",
         "--comm nccl: ranks 0 and 2 share GPU 0000:00:00.0 of |, which has 3 ranks, and "
         "2 GPUs for them; NCCL needs one GPU per rank"},
        {"FAKE_GPUS=1", "-words",
         "carried by MPI, through the host's memory: ranks 0 and 1 share GPU 0000:00:00.0 of "
         "|, and 1 GPU for them, and kernels are loaded late"},
        {"FAKE_GPUS=3", "-words", "carried by NCCL, and kernels are loaded EAGER, NVLink SHARP 0"},
        {"NCCL_NVLS_ENABLE=2", "-words", "carried by NCCL, and kernels are loaded EAGER, NVLink SHARP 2"},
        {"FAKE_GPUS=0", "insist", "--comm nccl: rank 0 finds no GPU on ", true},
        {"FAKE_MULTIPROCESSORS=9", "-transfers",
         "with its communicators, all groups take 10 multiprocessors, but may take 9 of the GPU's 9"},
        {"FAKE_NCCL_VERSION=22507' 'FAKE_MULTIPROCESSORS=19", "-transfers", "may take 9 of the GPU's 19"},
        {"CUDA_LAUNCH_BLOCKING=1", "-transfers", "CUDA_LAUNCH_BLOCKING=1: a receive posted ahead in group |--comm mpi"},
        {"CUDA_LAUNCH_BLOCKING=0", "-words", "carried by NCCL"},
        {"FAKE_NCCL_LOSE=0", "-transfers", "rank 0 waits for all_reduce, operation 0 of group world, on its GPU", true},
        {"FAKE_NCCL_LOSE=1", "-transfers",
         "all ranks wait for each other, for 1 seconds; |rank 0 waits for "
         "all_reduce, operation 1 of group world, on its GPU|rank 1 waits for all_reduce, operation 1 of group world, "
         "on its GPU"},
    };

    (void)state;
    if (!with_nccl)
        skip();
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const bool well = !strcmp(table[i].what, "-words");
        if (table[i].full && !full_tests())
            continue;
        char environment[64];
        snprintf(environment, sizeof environment, "%s", table[i].environment);
        if (strchr(environment, '~'))
            *strchr(environment, '~') = ' ';
        Result r = run("timeout 20 env '%s' mpiexec -n 3 %s worker %s", environment, self, table[i].what);
        if (well && (r.status || !strstr(r.err, "carried")))
            fail_msg("%s: status %d\n%s", environment, r.status, r.err);
        if (well)
            assert_words(environment, r.err, table[i].words);
        else
            assert_fault(table[i].what, r.status, r.err, table[i].words);
        result_free(r);
    }
}

/* If a call of NCCL returns on no rank, the watchdogs end the program at --timeout. */
static void calls_have_a_deadline(void **state)
{
    (void)state;
    if (!with_nccl || !full_tests())            /* it takes six seconds */
        skip();
    for (int stop = -1; stop <= 2; stop += 3) { /* -1: making a communicator; 2: the second transfer */
        Result r = run("timeout 20 env FAKE_NCCL_STOP=%d mpiexec -n 3 %s worker -transfers", stop, self);
        assert_int_not_equal(r.status, 0);
        assert_true(r.seconds < 15);
        assert_words("a call that doesn't return", r.err,
                     stop > 0 ? "it had 1 seconds to continue with GPU transfers in flight (--timeout)"
                              : "it had 1 seconds to connect group world over NCCL (--timeout)");
        result_free(r);
    }
}

/* Before the first step each rank makes and uses all its communicators, one after the other. Any two ranks do so in the
 * same order for those that they share; otherwise they could wait for each other. */
static void communicators_are_warm(void **state)
{
    enum { RANKS = 8, MOST = 16 };
    int made[RANKS][MOST], count[RANKS] = {0}, used[RANKS] = {0}, stepping[RANKS] = {0}, rank, name, shared = 0;
    char what[16];

    (void)state;
    if (!with_nccl)
        skip();
    Result r = run("timeout 60 env FAKE_NCCL_LOG=1 mpiexec -n %d %s worker grid", RANKS, self);
    if (r.status)
        fail_msg("status %d\n%s", r.status, r.err);
    for (char *rest = r.err, *line; (line = strsep(&rest, "\n"));) {
        if (sscanf(line, "rank %d %15s %d", &rank, what, &name) != 3)
            continue;
        assert_false(stepping[rank]);
        if (!strcmp(what, "makes")) {
            assert_int_equal(count[rank], used[rank]);
            made[rank][count[rank]++] = name;
        } else if (!strcmp(what, "uses"))
            assert_int_equal(made[rank][used[rank]++], name);
        else
            stepping[rank] = 1;
    }
    for (int a = 0; a < RANKS; a++) {
        const bool embedding_group = a < 2 || a >= 6;
        assert_true(stepping[a]);
        /* tp, cp, pp to and from two ranks, replicas */
        assert_int_equal(count[a], 1 + 1 + 4 + 1 + embedding_group);
        assert_int_equal(used[a], count[a]);
        for (int b = 0; b < a; b++)
            for (int i = 0, last = -1; i < count[a]; i++)
                for (int k = 0; k < count[b]; k++)
                    if (made[a][i] == made[b][k]) {
                        assert_true(k > last);
                        last = k;
                        shared++;
                    }
    }
    assert_int_equal(shared, 4 + 2 * 6 + 2 * 8 + 4 + 2);
    result_free(r);
}

static void transfers_take_simulated_time(void **state)
{
    (void)state;
    if (!on_host)                               /* the fake device is slow on purpose */
        skip();
    Result r = run("timeout 60 mpiexec -n 4 %s worker pretend", self);
    if (r.status)
        fail_msg("status %d\n%s%s", r.status, r.out, r.err);
    if (full_tests())
        print_message("%s", r.out);
    result_free(r);
}

static void more_than_32_bits_count(void **state)
{
    static const struct {
        const char *what;
        double needed;          /* bytes on all ranks, a library's copies included */
    } table[] = {{"huge", 2 * 4 * 2.2e9}, {"huger", 2 * 1.5 * 8.6e9}};

    (void)state;
    if (!on_host || !full_tests())
        skip();
    for (int i = 0; i < 2; i++) {
        const double available = device_memory_available();
        if (available < table[i].needed) {
            print_message("%s: skipped: not enough memory: may need %s, %s available\n", table[i].what,
                          bytes_text(table[i].needed), bytes_text(available));
            continue;
        }
        Result r = run("timeout 600 mpiexec -n 2 %s worker %s", self, table[i].what);
        if (r.status)
            fail_msg("%s: status %d\n%s%s", table[i].what, r.status, r.out, r.err);
        print_message("%s: %.0f s\n", table[i].what, r.seconds);
        result_free(r);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation),
        cmocka_unit_test(faults_are_found),
        cmocka_unit_test(stalls_are_named),
        cmocka_unit_test(nccl_fails),
        cmocka_unit_test(calls_have_a_deadline),
        cmocka_unit_test(communicators_are_warm),
        cmocka_unit_test(transfers_take_simulated_time),
        cmocka_unit_test(more_than_32_bits_count),
    };

    if (argc > 1 && !strcmp(argv[1], "worker"))
        return worker(argc, argv);
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    with_nccl = strstr(self, "test_comm_nccl");
    on_host = !with_nccl && !strstr(self, "test_comm_staged");
    return cmocka_run_group_tests_name("communication", tests, NULL, NULL);
}
