/* Communication, on one to eight ranks: every operation against a plain loop over what the ranks put in, the account,
 * and what --check and --pretend promise.
 *
 * There are three such programs: test_comm over MPI; test_comm_staged with a device whose memory the host cannot touch,
 * and whose work is done late (fake_device.h); test_comm_nccl with it and an NCCL made for this test (fake_nccl.c).
 *
 * Run as it is, the program starts itself under mpiexec: "test_comm worker" is one rank of a group that goes through
 * all cases, since starting ranks takes longer than most of them; "test_comm worker NAME" is one that must fail, or one
 * that measures.
 */
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../common/ultrascale.h"
#include "../harness.h"

/* ---- A rank: what is communicated ---- */

/* A check that fails ends all ranks with one line. (cmocka has a macro by the name of fail.) */
#define require(condition, ...) do { if (!(condition)) (fail)(__VA_ARGS__); } while (0)

typedef struct {
    Comm *comm;
    const char *name;
    int color;
} Group;

static const char *carrier;             /* in comm_choose's words */

enum { GROUPS = 6, GUARD = 3 };
static Group groups[GROUPS];            /* comm is NULL where this rank is in none */

typedef struct {
    Tensor all, t;                      /* t is the middle of all: GUARD elements on each side must stay as they are */
} Buffer;

/* How a type's elements look, for the whole numbers here: a half-precision number from -256 to 256 is exact. */
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
        return *(const int8_t *)element;        /* is moved, never added */
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

/* Tensors may lie where only the device can touch them. */
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

static double *numbers_of(Tensor t)             /* all elements; the caller frees them */
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

static void set_all(Tensor t, double *x)        /* and frees them */
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
                "%s: something beyond it was written to", b->all.name);
    tensor_free(&b->all, MEM_WORKSPACE);
}

/* What a rank puts in at element i: whole numbers, whose sums are exact in any order and any type. */
static double value(uint32_t salt, int rank, int64_t i)
{
    uint32_t x = salt * 2654435761u + rank * 40503u * 65537u + (uint32_t)i * 2246822519u;

    x ^= x >> 15, x *= 3266489917u, x ^= x >> 13;
    return (int)(x % 2001) - 1000;
}

static int64_t cut(int64_t count, int r, int n)         /* where part r begins */
{
    return count * r / n;
}

/* ---- A case: one operation, from filling its buffers to comparing what came out ---- */

typedef enum { REDUCE_SUM, REDUCE_MAX, SCATTER, GATHER, TO_ALL, FROM_ROOT, TO_NEXT, MESSAGE, KINDS } Kind;
static const char *const kind_name[] = {"all_reduce SUM", "all_reduce MAX", "reduce_scatter", "all_gather",
                                        "all_to_all", "broadcast", "shift", "message"};
static const CommOp kind_op[] = {ALL_REDUCE, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, BROADCAST, SEND, SEND};
static const char *const op_names[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send"};

static const DType types[] = {F64, F32, I32, BF16, F16, E4M3};
enum { WIDE = 3, TYPES = 6 };           /* the first three: summed by every transport */

typedef struct {
    const Group *group;
    Kind kind;
    DType dtype;
    int64_t count;                      /* of the full tensor */
    int root;                           /* FROM_ROOT; MESSAGE: goes so many ranks on */
    bool in_place, blocking;
    uint32_t salt;
    Buffer in, out;
    Request *request, *receipt;
} Case;

static int64_t expected_calls[GROUPS][COMM_OPS], expected_bytes[GROUPS][COMM_OPS];

/* comm.h's formulas, written once more. */
static void expect(const Case *c)
{
    const int n = comm_size(c->group->comm), rank = comm_rank(c->group->comm), next = (rank + 1) % n;
    const int64_t K = c->count, mine = cut(K, rank + 1, n) - cut(K, rank, n);
    const int64_t of_next = cut(K, next + 1, n) - cut(K, next, n);
    const int64_t elements[COMM_OPS] = {2 * K - mine - of_next, K - mine, K - of_next, K - mine,
                                        rank == c->root && n > 1 ? K : 0, n > 1 ? K : 0};
    const CommOp op = kind_op[c->kind];

    expected_calls[c->group - groups][op]++;
    expected_bytes[c->group - groups][op] += elements[op] * dtype_size(c->dtype);
}

static double value_of(const Case *c, int rank, int64_t i)
{
    const double x = value(c->salt, rank, i);

    return dtype_size(c->dtype) < 4 ? fmod(x, 17) : x;          /* eight of them add up to less than 256 */
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
    const int64_t first = cut(c->count, rank, n), count = cut(c->count, rank + 1, n) - first;
    Tensor part;

    if (c->kind == MESSAGE && c->root % n == 0)         /* to itself: there is no such thing */
        return;
    expect(c);
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
            c->out = buffer_create(c->dtype, "part", count);
        part = c->in_place ? tensor_range(c->in.t, first, count) : c->out.t;
        if (c->blocking)
            comm_reduce_scatter(comm, part, c->in.t);
        else
            c->request = comm_start_reduce_scatter(comm, part, c->in.t);
        break;
    case GATHER:
        c->out = buffer_create(c->dtype, "gathered", c->count);
        if (!c->in_place)
            c->in = buffer_create(c->dtype, "part", count);
        part = c->in_place ? tensor_range(c->out.t, first, count) : c->in.t;
        fill(c, part, first);
        if (c->blocking)
            comm_all_gather(comm, c->out.t, part);
        else
            c->request = comm_start_all_gather(comm, c->out.t, part);
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

/* What must be at element i of the result. */
static double wanted(const Case *c, int64_t i)
{
    const int n = comm_size(c->group->comm), rank = comm_rank(c->group->comm);
    double x = c->kind == REDUCE_MAX ? -INFINITY : 0;
    int r = 0;

    switch (c->kind) {
    case SCATTER:
        i += cut(c->count, rank, n);
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
        while (i >= cut(c->count, r + 1, n))
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
    const int64_t first = cut(c->count, rank, n), count = cut(c->count, rank + 1, n) - first;

    comm_wait(&c->request);
    comm_wait(&c->receipt);
    require(!c->request && !c->receipt, "comm_wait leaves a request");
    const Tensor result = c->kind == SCATTER && c->in_place ? tensor_range(c->in.t, first, count) : c->out.t;
    /* of a million every element takes seconds; none of the errors there could be hits a few only */
    const int64_t step = c->count < 20000 || full_tests() ? 1 : 11, last = tensor_count(result) - 1;
    double *x = numbers_of(result);
    for (int64_t i = 0; i <= last; i = i < last && i + step > last ? last : i + step)
        require(x[i] == wanted(c, i), "%s of %lld %s in group %s of %d%s%s: element %lld is %g, but must "
                "be %g", kind_name[c->kind], (long long)c->count, dtype_name(c->dtype), c->group->name, n,
                c->in_place ? ", in place" : "", c->blocking ? "" : ", started", (long long)i, x[i], wanted(c, i));
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

static uint32_t cases;                  /* the same on all ranks */

/* A case in one group, if this rank is in it; every rank must come here. */
static bool make(Case *c, int group, Kind kind, DType dtype, int64_t count, bool in_place, bool blocking)
{
    *c = (Case){.group = &groups[group], .kind = kind, .dtype = dtype, .count = count, .in_place = in_place,
                .blocking = blocking};
    cases++;
    if (!c->group->comm)
        return false;
    const int n = comm_size(c->group->comm);
    c->salt = 64 * cases + 8 * group + c->group->color;
    c->root = kind != MESSAGE ? (int)(cases % n) : cases % 2 ? 1 : n - 1;       /* one on, or back */
    if (kind == TO_ALL)
        c->count -= count % n;
    return true;
}

/* Over MPI BF16 is the only small type that is summed, and nothing sums fp8. */
static bool knows(DType dtype, Kind kind)
{
    return dtype_size(dtype) >= 4 || kind > SCATTER || (dtype == BF16 && kind != REDUCE_MAX)
           || (!strcmp(carrier, "NCCL") && dtype != E4M3);
}

static bool has_two_places(Kind kind)
{
    return kind == SCATTER || kind == GATHER;
}

/* ---- A rank: all cases ---- */

/* Ranks 0 to size - 1, grouped by color_of: is this rank's group what it must be? */
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
            place, size);
    require(comm_sum(groups[i].comm, rank) == sum, "group %s has other members", name);
    const Range part = comm_part(groups[i].comm, 101);
    require(part.first == cut(101, place, size) && part.first + part.count == cut(101, place + 1, size),
            "group %s: part %lld, %lld of 101", name, (long long)part.first, (long long)part.count);
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

static int color_in_half(int rank)      /* of a group within a half: which half, and odd or even in it */
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

/* One after the other: all kinds, types, counts; in the groups beside the world each count with some type. */
static void blocking_cases(void)
{
    const int64_t counts[] = {0, 1, 2, 7, comm_size(world) - 1, 10007};

    for (int g = 0; g < GROUPS; g++)
        for (Kind kind = 0; kind < KINDS; kind++)
            for (int k = 0; k < 6; k++)
                for (int type = 0; type < TYPES; type++)
                    for (int in_place = 0; in_place <= has_two_places(kind); in_place++) {
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

/* A million elements: where a library changes its algorithms, and messages no longer fit its buffers. */
static void large_cases(void)
{
    for (Kind kind = 0; kind < KINDS; kind++)
        for (int in_place = 0; in_place <= has_two_places(kind); in_place++) {
            Case c;
            make(&c, 0, kind, (kind + in_place) % 2 ? F64 : F32, (device_is_host() ? 1000000 : 30000) + in_place,
                 in_place, kind % 3 == 0);
            start(&c), finish(&c);
        }
}

/* Several under way at once, in all groups; each rank waits for them in an order of its own. */
static void started_cases(int rounds, int64_t largest)
{
    enum { MOST = KINDS * GROUPS };
    static Case under_way[MOST];

    for (int round = 0; round < rounds; round++) {
        int count = 0;
        for (int k = 0; k < MOST; k++) {
            const int64_t elements = (uint32_t)((k + 1) * 2654435761u + round * 40503u) % largest;
            if (make(&under_way[count], k * 5 % GROUPS, (k + round) % KINDS, types[(k + round / 2) % 3], elements,
                     k % 2, false))
                start(&under_way[count++]);
        }
        for (int i = count - 1, at = 0; i >= 0; i--) {
            at = (at + 7 * comm_rank(world) + 3 * round) % (i + 1);
            finish(&under_way[at]);
            under_way[at] = under_way[i];
        }
    }
}

static void check_counts(void)
{
    CommAccount accounts[GROUPS * COMM_OPS + 1];
    const int count = comm_account(accounts, GROUPS * COMM_OPS + 1);
    int64_t calls = 0, expected = 0, bytes = 0;

    for (int i = 0; i < count; i++) {
        int g = 0, op = 0;
        while (g < GROUPS && strcmp(groups[g].name, accounts[i].group))
            g++;
        while (op < COMM_OPS && strcmp(op_names[op], accounts[i].op))
            op++;
        require(g < GROUPS && op < COMM_OPS, "the account has %s in group %s", accounts[i].op, accounts[i].group);
        require(accounts[i].calls == expected_calls[g][op] && accounts[i].bytes == expected_bytes[g][op],
                "rank %d, %s in group %s: %lld calls and %lld bytes in the account, but there were %lld and %lld",
                comm_rank(world), accounts[i].op, accounts[i].group, (long long)accounts[i].calls,
                (long long)accounts[i].bytes, (long long)expected_calls[g][op], (long long)expected_bytes[g][op]);
        calls += accounts[i].calls, bytes += accounts[i].bytes;
    }
    for (int g = 0; g < GROUPS; g++)
        for (int op = 0; op < COMM_OPS; op++)
            expected += expected_calls[g][op];
    require(calls == expected, "%lld calls in the account, but there were %lld", (long long)calls, (long long)expected);
    require(bytes == comm_bytes(), "%lld bytes in the account, but comm_bytes says %lld", (long long)bytes,
            (long long)comm_bytes());
    comm_account_reset();
    memset(expected_calls, 0, sizeof expected_calls);
    memset(expected_bytes, 0, sizeof expected_bytes);
    require(comm_bytes() == 0, "comm_account_reset leaves %lld bytes", (long long)comm_bytes());
}

/* What comm_predict says of as many calls on as many elements is what they then come to. */
static void predictions_hold(void)
{
    const int64_t counts[] = {0, 1, 5, 840, 1009};
    CommAccount accounts[GROUPS * COMM_OPS + 1];

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
    const int count = comm_account(accounts, GROUPS * COMM_OPS + 1);
    for (int i = 0; i < count; i++)
        require(accounts[i].calls == accounts[i].predicted_calls && accounts[i].bytes == accounts[i].predicted_bytes,
                "rank %d, %s in group %s of %d ranks: %lld calls and %lld bytes, but comm_predict said %lld and %lld",
                comm_rank(world), accounts[i].op, accounts[i].group, comm_size(world), (long long)accounts[i].calls,
                (long long)accounts[i].bytes, (long long)accounts[i].predicted_calls,
                (long long)accounts[i].predicted_bytes);
    check_counts();
}

/* Fractions: their sum depends on the order, but not on the rank that has it, nor on when. */
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
    comm_account_reset();
}

static void host_numbers(void)
{
    for (int g = 0; g < GROUPS; g++) {
        const int n = groups[g].comm ? comm_size(groups[g].comm) : 0;
        double sum = 0;
        for (int r = 0; r < n; r++)
            sum += 0.1 * (r + 1);                               /* in the order of ranks, to the bit */
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
    require(comm_bytes() == 0, "numbers on the host are in the account");
}

/* ---- Messages ---- */

/* From one peer, with several tags: in the order sent. They may be waited for in any order. */
static void message_order(Comm *comm, int64_t count)
{
    enum { TAGS = 3, MESSAGES = 60 };
    const int n = comm_size(comm), rank = comm_rank(comm), to = (rank + 1) % n, from = (rank + n - 1) % n;
    Buffer in[MESSAGES], out[MESSAGES];
    Request *send[MESSAGES], *receive[MESSAGES];

    if (n == 1)
        return;
    for (int k = 0; k < MESSAGES; k++) {                        /* tags 0, 1, 2, 0, 1, 2, ... */
        in[k] = buffer_create(F64, "in", count), out[k] = buffer_create(F64, "out", count);
        double *x = room(in[k].t);
        for (int64_t i = 0; i < count; i++)
            x[i] = value(k, rank, i);
        set_all(in[k].t, x);
        send[k] = comm_start_send(comm, in[k].t, to, k % TAGS);
    }
    for (int k = 0; k < MESSAGES; k++)
        receive[k] = comm_start_recv(comm, out[k].t, from, k % TAGS);
    for (int k = MESSAGES - 1; k >= 0; k--) {
        comm_wait(&receive[k]);
        double *x = numbers_of(out[k].t);
        for (int64_t i = 0; i < count; i++)
            require(x[i] == value(k, from, i), "message %d is not the one that was sent so", k);
        free(x);
        comm_wait(&send[k]);
        buffer_free(&in[k]);
        buffer_free(&out[k]);
    }
}

/* Both ways at once between pairs. No send waits for a receive of its own rank: sends are waited for first. */
static void both_ways(int messages, int64_t count)
{
    const int n = comm_size(world), rank = comm_rank(world), peer = rank ^ 1;
    Buffer in, out;
    Request **send = calloc(messages, sizeof *send), **receive = calloc(messages, sizeof *receive);

    if (peer < n) {
        in = buffer_create(F32, "in", messages * count), out = buffer_create(F32, "out", messages * count);
        double *x = room(in.t);
        for (int64_t i = 0; i < messages * count; i++)
            x[i] = value(1, rank, i);
        set_all(in.t, x);
        for (int k = 0; k < messages; k++)
            send[k] = comm_start_send(world, tensor_range(in.t, k * count, count), peer, 7);
        for (int k = 0; k < messages; k++)
            receive[k] = comm_start_recv(world, tensor_range(out.t, k * count, count), peer, 7);
        for (int k = 0; k < messages; k++)
            comm_wait(&send[k]);
        for (int k = 0; k < messages; k++)
            comm_wait(&receive[k]);
        x = numbers_of(out.t);
        for (int64_t i = 0; i < messages * count; i++)
            require(x[i] == value(1, peer, i), "message %lld of %d between a pair: element %lld",
                    (long long)(i / count), messages, (long long)(i % count));
        free(x);
        buffer_free(&in);
        buffer_free(&out);
    }
    free(send);
    free(receive);
}

static void messages(void)
{
    for (int g = 0; g < GROUPS; g++)
        if (groups[g].comm)
            message_order(groups[g].comm, 9);
    message_order(world, 3000);
    both_ways(device_is_host() ? 1000 : 100, 17);
    both_ways(2, device_is_host() ? 500000 : 50000);
    comm_account_reset();
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
    messages();

    options.check = true;                       /* on copies, with NaN meanwhile: the same numbers */
    started_cases(4, 3000);
    for (Kind kind = 0; kind < KINDS; kind++)
        for (int in_place = 0; in_place <= has_two_places(kind); in_place++) {
            Case c;
            make(&c, 0, kind, in_place ? F64 : F32, 1009 * (kind % 2), in_place, true);
            start(&c), finish(&c);
        }
    check_counts();
    message_order(world, 9);
    both_ways(50, 1000);
    comm_account_reset();
    options.pretend = "yes", options.pretend_bandwidth = 1e10, options.pretend_latency = 1e-6;      /* and both */
    started_cases(1, 1000);
    check_counts();
}

/* ---- A rank: what must fail ---- */

static void faults(const char *what)
{
    const int rank = comm_rank(world), n = comm_size(world), odd = rank == 1;
    Tensor x = tensor_create(MEM_WORKSPACE, REAL, "x", shape(100));
    Tensor y = tensor_create(MEM_WORKSPACE, REAL, "y", shape(100));
    Tensor single = tensor_create(MEM_WORKSPACE, F32, "x", shape(100));
    Tensor two = tensor_create(MEM_WORKSPACE, F64, "x", shape(100));
    Tensor part = tensor_create(MEM_WORKSPACE, REAL, "part", shape(comm_part(world, 100).count));
    Request *q = NULL;

    options.check = what[0] != '-';             /* "-NAME": without it too */
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
    if (!strcmp(what, "missed") && odd)         /* one call fewer: its barrier meets the others' sum */
        comm_barrier(world);
    if (!strcmp(what, "missed") && !odd)
        comm_all_reduce(world, x, SUM), comm_barrier(world);
    if (!strcmp(what, "written")) {
        q = comm_start_all_reduce(world, x, SUM);
        if (odd)
            set(x, 41, 5);
    }
    if (!strcmp(what, "gathered written")) {
        q = comm_start_all_gather(world, x, part);
        if (odd)
            set(x, 99, 0);
    }
    if (!strcmp(what, "part changed")) {
        q = comm_start_all_gather(world, x, part);
        if (odd)
            set(part, 3, 5);
    }
    if (!strcmp(what, "scattered changed")) {
        q = comm_start_reduce_scatter(world, part, x);
        if (odd)
            set(x, 99, 5);
    }
    if (!strcmp(what, "send changed")) {
        q = odd ? comm_start_send(world, x, 0, 3) : rank == 0 ? comm_start_recv(world, x, 1, 3) : NULL;
        if (odd)
            set(x, 0, 5);
    }
    if (!strcmp(what, "message order") && odd)
        comm_start_send(world, x, 0, 3), q = comm_start_send(world, y, 0, 4);
    if (!strcmp(what, "message order") && rank == 0)
        comm_start_recv(world, y, 1, 4), q = comm_start_recv(world, x, 1, 3);
    if (!strcmp(what, "message size"))
        q = odd ? comm_start_send(world, x, 0, 3) : rank ? NULL : comm_start_recv(world, tensor_range(x, 0, 99), 1, 3);
    if (!strcmp(what, "shift changed")) {
        q = comm_start_shift(world, y, x);
        if (odd)
            set(x, 0, 5);
    }
    if (!strcmp(what, "no part"))
        comm_all_gather(world, x, tensor_range(y, 0, 20));
    if (!strcmp(what, "part of dtype"))
        comm_reduce_scatter(world, tensor_range(REAL == F64 ? single : two, 0, tensor_count(part)), x);
    if (!strcmp(what, "place"))
        comm_all_gather(world, x, tensor_range(x, 1, tensor_count(part)));
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
    if (!strcmp(what, "forgotten")) {           /* and another one, which is waited for */
        comm_start_shift(world, y, x);
        q = comm_start_all_reduce(world, single, SUM);
        comm_wait(&q);
        comm_barrier(world);
        comm_account_reset();
    }
    if (!strcmp(what, "second")) {              /* of three: a rank doesn't come to it */
        comm_all_reduce(world, x, SUM);
        if (odd)
            sleep(100);
        q = comm_start_all_reduce(world, y, SUM);
        comm_start_all_reduce(world, single, SUM);
    }
    if (!strcmp(what, "late"))
        comm_all_reduce(comm_split(world, 0, "late"), x, SUM);
    if (!strcmp(what, "words") && rank == 0)
        fprintf(stderr, "carried by %s, and kernels are loaded %s\n", carrier,
                getenv("CUDA_MODULE_LOADING") ? getenv("CUDA_MODULE_LOADING") : "late");
    for (int i = 0; i < 3 && !strcmp(what, "transfers"); i++) {
        comm_all_reduce(world, x, SUM);
        comm_reduce_scatter(world, part, y);
        q = comm_start_shift(world, x, y);
        comm_wait(&q);
        get(x, 0);                              /* here the host waits for its GPU */
    }
    if (!strcmp(what, "leave") && odd)
        exit(0);
    if (!strcmp(what, "stuck") && odd)
        sleep(100);
    if (!strcmp(what, "send-first") && rank < 2) {      /* works only while a send's numbers find a place on the way */
        q = comm_start_send(world, x, rank ^ 1, 3);
        comm_wait(&q);
        q = comm_start_recv(world, y, rank ^ 1, 3);
    }
    if (!strcmp(what, "patient")) {
        comm_allow(1e8);                        /* ten seconds */
        usleep(odd ? 3500000 : 0);
        comm_barrier(world);
        comm_allow(0);
    }
    if (!strcmp(what, "circle"))
        q = comm_start_recv(world, x, (rank + 1) % n, 0);
    for (double begin = clock_seconds(); !strcmp(what, "busy") && odd && clock_seconds() < begin + 100;)
        comm_progress();
    comm_wait(&q);
    device_wait();
    comm_barrier(world);
}

/* ---- A rank: groups of a grid, as a program has that combines techniques ---- */

/* Two or four of the ranks each: collectives in three of the groups, shifts in one, messages in one; all of them under
 * way at once. */
static void grid(void)
{
    const int rank = comm_rank(world);
    Comm *tp = comm_split(world, rank / 2, "tp"), *cp = comm_split(world, rank / 4, "cp");
    Comm *pp = comm_split(world, rank % 2, "pp"), *replicas = comm_split(world, rank % 4, "replicas");
    Comm *tied = comm_split(world, rank < 2 || rank >= 6 ? rank % 2 : -1, "tied"), *sum[] = {tp, replicas, tied};
    const int n = comm_size(pp), next = (comm_rank(pp) + 1) % n, before = (comm_rank(pp) + n - 1) % n;
    Tensor x[10];
    Request *q[8] = {0};

    require(comm_size(world) == 8, "eight ranks are needed");
    comm_predict(cp, SHIFT, 0, 0);
    comm_predict(pp, SEND, 0, 0);
    for (int i = 0; i < 3; i++)
        if (sum[i])
            comm_predict(sum[i], ALL_REDUCE, 0, 0);
    comm_connect();
    fprintf(stderr, "rank %d steps 0\n", rank);
    for (int i = 0; i < 10; i++) {
        x[i] = tensor_create(MEM_WORKSPACE, F64, "x", shape(100));
        set(x[i], 99, 1 + rank);
    }
    require(device_multiprocessors_left() == 256, "%d multiprocessors left by no transfer",
            device_multiprocessors_left());
    q[0] = comm_start_recv(pp, x[0], before, 0);
    q[1] = comm_start_recv(pp, x[1], next, 1);
    for (int i = 0; i < 3; i++)
        q[2 + i] = sum[i] ? comm_start_all_reduce(sum[i], x[2 + i], SUM) : NULL;
    q[5] = comm_start_shift(cp, x[5], x[6]);
    q[6] = comm_start_send(pp, x[7], next, 0);
    q[7] = comm_start_send(pp, x[8], before, 1);
    /* of 256: 16 for a collective and a shift, 4 for a message */
    require(device_multiprocessors_left() == 256 - (tied ? 64 : 48) - 4 * 4, "%d multiprocessors left by all transfers",
            device_multiprocessors_left());
    for (int i = 7; i >= 0; i--)
        comm_wait(&q[i]);
    require(device_multiprocessors_left() == 256, "%d multiprocessors left when all was waited for",
            device_multiprocessors_left());
    require(get(x[0], 99) == 1 + (rank + 6) % 8 && get(x[1], 99) == 1 + (rank + 2) % 8, "a message is another one's");
    require(get(x[2], 99) == 3 + rank / 2 * 4 && get(x[3], 99) == 6 + 2 * (rank % 4), "a sum is another group's");
    require(!tied || get(x[4], 99) == 8 + 2 * (rank % 2), "a sum is another group's");
    require(get(x[5], 99) == 1 + rank / 4 * 4 + (rank + 3) % 4, "a shift is another one's");
}

/* ---- A rank: --pretend ---- */

static double latest(double t)                  /* over the ranks, not pretending */
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

/* Runs one operation `times` times at once on x, after a barrier and, on rank 2, a delay: seconds from the last rank's
 * start to the last one's end. On each rank they must be `least` or more; a shift waits for its neighbours only. */
static double measure(Kind kind, Tensor x, int times, double delay, double least)
{
    const int n = comm_size(world), rank = comm_rank(world);
    static Tensor y;
    Request *q[8] = {0};

    if (!y.data)
        y = tensor_create(MEM_WORKSPACE, x.dtype, "y", shape(tensor_count(x)));
    const Range part = comm_part(world, tensor_count(x));
    comm_barrier(world);
    if (rank == 2)
        usleep(1e6 * delay);
    const double begin = clock_seconds();
    for (int i = 0; i < times; i++)
        q[i] = kind == REDUCE_SUM ? comm_start_all_reduce(world, x, SUM)
            : kind == SCATTER ? comm_start_reduce_scatter(world, tensor_range(x, part.first, part.count), x)
            : kind == GATHER ? comm_start_all_gather(world, x, tensor_range(x, part.first, part.count))
            : kind == TO_ALL ? comm_start_all_to_all(world, y, x)
            : kind == FROM_ROOT ? comm_start_broadcast(world, x, 1)
            : comm_start_shift(world, y, x);
    for (int i = 0; i < times; i++)
        comm_wait(&q[i]);
    const double end = clock_seconds(), last = latest(begin), from = kind == TO_NEXT ? begin : last;
    require(!options.pretend || end - from >= least, "pretending, %d times %s on %d ranks ends on rank %d after %.2f "
            "ms, but takes %.2f ms", times, kind_name[kind], n, rank, 1e3 * (end - from), 1e3 * least);
    return latest(end) - last;
}

static void pretending(void)
{
    /* 10 MB over 1 GB/s and 1 ms for each message, four ranks */
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
        for (int trial = 0; trial < 4; trial++) {       /* others may disturb some, not the best of them */
            options.pretend = NULL;
            real = fmin(real, measure(tables[i].kind, x, 1, 0, 0));
            options.pretend = "yes", options.pretend_bandwidth = 1e9, options.pretend_latency = 1e-3;
            best = fmin(best, measure(tables[i].kind, x, 1, 0, tables[i].seconds));
        }
        if (comm_rank(world) == 0)
            printf("%s: %.1f ms, pretending %.1f ms takes %.1f ms\n", kind_name[tables[i].kind], 1e3 * real,
                   1e3 * tables[i].seconds, 1e3 * best);
        require(best <= tables[i].seconds + real + 0.010, "%s takes %.1f ms, and pretending %.1f ms takes %.1f ms",
                kind_name[tables[i].kind], 1e3 * real, 1e3 * tables[i].seconds, 1e3 * best);
        if (tables[i].kind != FROM_ROOT)                                /* where the root alone sends */
            measure(tables[i].kind, x, 2, 0, 2 * tables[i].seconds);    /* they share the link */
        measure(tables[i].kind, x, 1, 0.050, tables[i].seconds);
    }

    /* hidden behind computing: 100 kB at 10 MB/s are 15 ms and 6 ms */
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
    require(bare >= 0.020, "a transfer of 21 ms behind which nothing is computed makes rank %d wait %.1f ms",
            comm_rank(world), 1e3 * bare);
    require(waited <= 0.005, "a transfer that is hidden behind computing makes rank %d wait %.1f ms",
            comm_rank(world), 1e3 * waited);
    comm_account_reset();
    require(comm_waited() == 0, "comm_account_reset leaves %g s of waiting", comm_waited());

    /* no real transfer is so fast */
    options.pretend_bandwidth = 1e15, options.pretend_latency = 0;
    comm_all_reduce(world, x, SUM);
    require(comm_late() > 0 && comm_late() <= comm_waited(), "of %g s of waiting for a transfer that was pretended to "
            "take none %g s were late", comm_waited(), comm_late());
    if (comm_rank(world) == 0)
        printf("%.1f ms of transfer add %.1f ms to computing\n", 1e3 * alone, 1e3 * best);
    require(best <= 0.005, "a transfer of %.1f ms, started before 30 ms of computing, adds %.1f ms", 1e3 * alone,
            1e3 * best);
}

/* More bytes than 32 bits count, in all that a library may count in int; or one message of more elements. */
static void huge(bool elements)
{
    const int64_t count = elements ? (1ll << 31) + 7 : (1ll << 29) + 7;
    const int rank = comm_rank(world);
    const Range part = comm_part(world, count);
    Tensor x = tensor_create(MEM_WORKSPACE, F32, "x", shape(count));
    static const char *const names[] = {"message", "broadcast", "all_reduce", "reduce_scatter", "all_gather"};

    for (int way = 0; way < (elements ? 1 : 5); way++) {
        Request *q = NULL;
        for (int64_t i = 0; i < count; i += i < count - 20 ? 1 << 12 : 1)
            set(x, i, value(way, rank, i));
        if (way == 0)
            q = rank == 0 ? comm_start_send(world, x, 1, 0) : comm_start_recv(world, x, 0, 0);
        else
            q = way == 1 ? comm_start_broadcast(world, x, 0) : way == 2 ? comm_start_all_reduce(world, x, SUM)
                : way == 3 ? comm_start_reduce_scatter(world, tensor_range(x, part.first, part.count), x)
                : comm_start_all_gather(world, x, tensor_range(x, part.first, part.count));
        comm_wait(&q);
        for (int64_t i = 0; i < count; i += i < count - 20 ? 1 << 12 : 1) {
            const bool mine = i >= part.first && i < part.first + part.count;
            const double sum = value(way, 0, i) + value(way, 1, i);
            const double wanted = way < 2 ? value(way, 0, i) : way < 4 ? sum : value(way, i >= cut(count, 1, 2), i);
            require((way == 3 && !mine) || get(x, i) == wanted, "%s of %lld elements: element %lld is %g, but must be "
                    "%g", names[way], (long long)count, (long long)i, get(x, i), wanted);
        }
    }
    tensor_free(&x, MEM_WORKSPACE);
}

static int worker(int argc, char **argv)
{
    const char *what = argc > 2 ? argv[2] : "all";
    char name[64];

    snprintf(name, sizeof name, "test_comm worker %s", what);
    error_speaker(name);
    mallopt(M_MMAP_MAX, 0);                     /* large arrays come and go: without asking the system for each */
    mallopt(M_TRIM_THRESHOLD, INT32_MAX);
    comm_begin(&argc, &argv);
    options.timeout = strstr("-stuck -circle -busy -second -patient send-first stuck-while-starting", what)
                              || getenv("FAKE_NCCL_LOSE") || getenv("FAKE_NCCL_STOP") ? 1 : 60;
    options.comm = !strcmp(what, "insist") ? COMM_NCCL : COMM_AUTO;
    options.report = "none";                    /* so that waits are timed */
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
        pretending();
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
static bool with_nccl, on_host;                 /* it is test_comm_nccl; test_comm */

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

/* How often `text` is in it. */
static int occurrences(const char *in, const char *text)
{
    int count = 0;

    for (; (in = strstr(in, text)); in += strlen(text))
        count++;
    return count;
}

static void assert_words(const char *what, const char *text, const char *words)     /* with | between them */
{
    char copy[512], *rest = copy;

    snprintf(copy, sizeof copy, "%s", words);
    for (char *word; (word = strsep(&rest, "|"));)
        if (!strstr(text, word))
            fail_msg("%s: no \"%s\" in\n%s", what, word, text);
}

/* Status 1, and one line of ours, with these words. */
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
        bool once;              /* make test: only in test_comm */
        int ranks;              /* 0: 3 */
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
        {"part changed", "all_gather of part in group world|changed before comm_wait", true},
        {"scattered changed", "reduce_scatter of x in group world|changed before comm_wait"},
        {"send changed", "send of x in group world|changed before comm_wait", true},
        {"message order", "recv of x in group world: the message has tag 4 and 100 F64, but tag 3 and 100 F64 were"},
        {"message size", "recv of x in group world: the message has tag 3 and 100 F64, but tag 3 and 99 F64", true},
        {"shift changed", "send of x in group world|changed before comm_wait", true},
        /* without --check too */
        {"-no part", "all_gather: y is (20)|rank 0's part of x is (100)|33 elements", true},
        {"-part of dtype", "reduce_scatter: x is (33) F32|x is (100) F64", true},
        {"-place", "all_gather: x lies inside x|rank 0's part", true},
        {"-multiple", "all_to_all: y is (100), x is (100)|multiple of 3 ranks", true},
        {"-overlap", "all_to_all: x and x overlap", true},
        {"-shapes", "shift: y is (99), x is (100)", true},
        {"-itself", "send of x: rank 0 is not another rank of group world, which has 3", true},
        {"-nobody", "recv of x: rank 3 is not another rank of group world, which has 3", true},
        {"-far", "send of x: rank 2 is no neighbour of rank 0 in group world, which has 4: messages go to the next",
         true, 4},
        {"-late", "all_reduce in group late: its ranks are not connected for it; comm_predict must name", true},
        {"-root of nobody", "broadcast of x: rank 3 is not in group world, which has 3", true},
        {"forgotten", " of y in group world was started, but nobody called comm_wait for it in this step", true},
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

/* Who keeps the others waiting is named, --timeout seconds and a few later. They wait together, to save time. */
static void stalls_are_named(void **state)
{
    static const struct {
        const char *what, *words, *words_nccl;      /* with NCCL comm_wait doesn't wait, but the barrier after it */
    } table[] = {
        {"-stuck", "silent for 1 seconds: rank 1;|rank 0 waits for a sum, operation|of group world|rank 2 waits for a "
                   "sum"},
        {"stuck-while-starting", "silent for 1 seconds: rank 1;|rank 0 waits for the other ranks to start"},
        {"-circle", "all ranks wait for each other, for 1 seconds|rank 0 waits for recv|rank 1 waits for recv|rank 2 "
                    "waits for recv"},
        {"-second", "silent for 1 seconds: rank 1;|rank 0 waits for all_reduce, operation 2 of group world|rank 2 "
                    "waits for all_reduce, operation 2 of group world",
         "silent for 1 seconds: rank 1;|rank 0 waits for a sum|rank 2 waits for a sum"},
        {"-busy", "a rank that computes keeps others waiting, for 1 seconds|rank 0 waits for a sum|rank 1 computes"},
        {"send-first", "all ranks wait for each other, for 1 seconds|rank 0 waits for send"},
        {"-patient", ""},                           /* it is allowed longer */
    };
    enum { COUNT = sizeof table / sizeof *table };
    char command[4096] = "";

    (void)state;
    if (!on_host && !full_tests())
        skip();
    for (int i = 0; i < COUNT; i++)                 /* four at a time: ranks fill a container's 64 MB of /dev/shm */
        sprintf(command + strlen(command), "(timeout 20 mpiexec -n 3 %s worker %s 2>stall%d; echo $? >status%d)& %s",
                self, table[i].what, i, i, i == 3 ? "wait; " : "");
    result_free(run("sh -c '%s wait'", command));
    for (int i = 0; i < COUNT; i++) {
        Result status = run("cat status%d", i), err = run("cat stall%d", i);
        const char *words = with_nccl && table[i].words_nccl ? table[i].words_nccl : table[i].words;
        if (*words)
            assert_fault(table[i].what, atoi(status.out), err.out, words);
        else if (atoi(status.out))                  /* nothing is wrong with it */
            fail_msg("%s: status %s%s", table[i].what, status.out, err.out);
        result_free(status);
        result_free(err);
    }
}

/* What NCCL and CUDA can answer, and which ranks they can be used by. */
static void nccl_fails(void **state)
{
    static const struct {
        const char *environment, *what, *words;
        bool full;              /* for make test-full */
    } table[] = {
        {"FAKE_NCCL_FAIL=ncclCommInitRankConfig~1", "-transfers",
         "ncclCommInitRankConfig(|at common/comm/nccl.c:|: an "
         "error of the fake; its last words"},
        {"FAKE_NCCL_FAIL=ncclGetUniqueId~1", "-transfers", "ncclGetUniqueId(|nccl.c|its last words"},
        {"FAKE_NCCL_FAIL=ncclAllReduce~2", "-transfers", "ncclAllReduce(|nccl.c|its last words"},
        {"FAKE_NCCL_FAIL=ncclReduce~4", "-transfers", "ncclReduce(|nccl.c|its last words", true},
        {"FAKE_NCCL_FAIL=ncclSend~3", "-transfers", "ncclSend(|nccl.c|its last words", true},
        {"FAKE_NCCL_FAIL=cudaEventRecord~5", "-transfers", "cudaEventRecord(|nccl.c|an error of the fake CUDA",
         true},
        {"FAKE_NCCL_FAIL=cudaStreamWaitEvent~9", "-transfers", "cudaStreamWaitEvent(|nccl.c|fake CUDA"},
        {"FAKE_NCCL_FAIL=async~4", "-transfers", "NCCL, on a communicator of |: an error of the fake; its last words"},
        {"FAKE_GPUS=2", "insist",
         "--comm nccl, but ranks 0 and 2 share GPU 0000:00:00.0 of |, which has 3 ranks, and "
         "2 GPUs for them"},
        {"FAKE_GPUS=1", "-words",
         "carried by MPI, through the host's memory: ranks 0 and 1 share GPU 0000:00:00.0 of "
         "|, and 1 GPU for them, and kernels are loaded late"},
        {"FAKE_GPUS=3", "-words", "carried by NCCL, and kernels are loaded EAGER"},
        {"FAKE_GPUS=0", "insist", "--comm nccl, but rank 0 finds no GPU on "},
        {"FAKE_MULTIPROCESSORS=9", "-transfers",
         "with its communicators those of all groups take 10 multiprocessors, but the GPU has 9"},
        {"FAKE_NCCL_LOSE=0", "-transfers", "rank 0 waits for all_reduce, operation 0 of group world, on its GPU"},
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

/* A call that doesn't return, on any rank: nobody is left to look at the clock but the watchdogs. */
static void calls_have_a_deadline(void **state)
{
    (void)state;
    if (!with_nccl || !full_tests())            /* six seconds */
        skip();
    for (int stop = -1; stop <= 2; stop += 3) { /* making a communicator; amid transfers */
        Result r = run("timeout 20 env FAKE_NCCL_STOP=%d mpiexec -n 3 %s worker -transfers", stop, self);
        assert_int_not_equal(r.status, 0);
        assert_true(r.seconds < 15);
        assert_words("a call that doesn't return", r.err,
                     stop > 0 ? "it had 1 seconds to go on beside its GPU's transfers (--timeout)"
                              : "it had 1 seconds to connect group world over NCCL (--timeout)");
        result_free(r);
    }
}

/* Before the first step each rank has made and used all its communicators, one after the other; any two of them those
 * that they share in the same order. Otherwise ranks could wait for each other. */
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
        const bool tied = a < 2 || a >= 6;
        assert_true(stepping[a]);
        assert_int_equal(count[a], 1 + 1 + 4 + 1 + tied);       /* tp, cp, pp to and from two ranks, replicas */
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

static void pretended_transfers(void **state)
{
    (void)state;
    if (!on_host)                               /* on a device that takes its time on purpose */
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
        double needed;          /* with copies that a library makes */
    } table[] = {{"huge", 2 * 4 * 2.2e9}, {"huger", 2 * 1.5 * 8.6e9}};

    (void)state;
    if (!on_host || !full_tests())
        skip();
    for (int i = 0; i < 2; i++) {
        const double available = device_memory_available();
        if (available < table[i].needed) {
            print_message("%s: skipped, as it may need %s, and %s are available\n", table[i].what,
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
        cmocka_unit_test(pretended_transfers),
        cmocka_unit_test(more_than_32_bits_count),
    };

    if (argc > 1 && !strcmp(argv[1], "worker"))
        return worker(argc, argv);
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    with_nccl = strstr(self, "test_comm_nccl");
    on_host = !with_nccl && !strstr(self, "test_comm_staged");
    return cmocka_run_group_tests_name("communication", tests, NULL, NULL);
}
