#include "comm.h"

#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm_backend.h"
#include "device.h"
#include "error.h"
#include "ops.h"
#include "options.h"
#include "trace.h"

static Comm world_group = {.name = "world"};
static int local_rank, local_size;
static bool starting, ended;

Comm *world = &world_group;

enum { NUMBER = RECV + 1, OPERATIONS };         /* comm_sum's, for --check */
static const char *const op_name[OPERATIONS] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast",
                                                "send", "recv", "sum"};

/* ---- Waiting: one loop for everything that is waited for ---- */

/* Some rank has waited for --timeout seconds. Each rank that is asked says what it is doing; who stays silent for a
 * second is stuck. The lowest that spoke tells the person, and all end. asker: the rank that asked, with its text; -1:
 * it is this one. */
static _Noreturn void stalled(const char *doing, int asker, const char *asked)
{
    char (*said)[ALARM_TEXT] = calloc(world->size, sizeof *said), text[ALARM_TEXT], line[1024];
    const double begin = clock_seconds();
    int from, silent = 0, lowest = world->rank, at;

    if (!said)
        fail("a rank is stuck, and there is no memory to find out which");
    if (asker >= 0)
        memcpy(said[asker], asked, ALARM_TEXT);
    snprintf(said[world->rank], ALARM_TEXT, "%s", doing);
    transport_alarm(said[world->rank]);
    while (clock_seconds() - begin < 1) {
        if ((from = transport_alarmed(text)) >= 0)
            memcpy(said[from], text, ALARM_TEXT);
        sched_yield();
    }
    for (int r = world->size - 1; r >= 0; r--) {
        silent += !said[r][0];
        lowest = said[r][0] ? r : lowest;
    }
    if (world->rank != lowest)
        sleep(2);                               /* for it to speak first */
    starting = false;                           /* no agreement with a rank that is stuck */
    at = snprintf(line, sizeof line,
                  silent ? "silent for %d seconds:" : "all ranks wait for each other, for %d seconds", options.timeout);
    for (int r = 0; r < world->size && silent && at < (int)sizeof line; r++)
        if (!said[r][0])
            at += snprintf(line + at, sizeof line - at, "%s rank %d", line[at - 1] == ':' ? "" : ",", r);
    for (int r = 0; r < world->size && at < (int)sizeof line; r++)
        if (said[r][0])
            at += snprintf(line + at, sizeof line - at, "; rank %d %s", r, said[r]);
    fail("%s", line);
}

static void answer_alarm(const char *doing)
{
    char text[ALARM_TEXT];
    const int asker = world->size > 1 ? transport_alarmed(text) : -1;

    if (asker >= 0)
        stalled(doing, asker, text);
}

/* Until all handles are done; each is then NULL. MPI's own waits spin, and ranks that share a core would spin against
 * each other's work: this one yields, and looks at the clock. */
static void wait_for(void **const *handles, int count, const Comm *comm, const char *what)
{
    const double begin = clock_seconds();
    double looked = begin;
    bool waiting = true;

    while (waiting) {
        waiting = false;
        for (int k = 0; k < count; k++) {
            if (*handles[k] && transport_done(*handles[k]))
                *handles[k] = NULL;
            waiting |= *handles[k] != NULL;
        }
        if (!waiting)
            return;
        const double now = clock_seconds();
        if (now - looked > 0.01) {              /* not every so many turns: with many ranks on a core each takes long */
            char doing[ALARM_TEXT];
            looked = now;
            snprintf(doing, sizeof doing, "waits for %s, operation %lld of group %s", what, (long long)comm->operations,
                     comm->name);
            answer_alarm(doing);
            if (options.timeout && now - begin > options.timeout)
                stalled(doing, -1, NULL);
        }
        sched_yield();
    }
}

void comm_progress(void)
{
    answer_alarm("computes");
}

/* `bytes` bytes of each rank, to all; waits. */
static void gather(Comm *comm, void *all, const void *mine, int64_t bytes, const char *what)
{
    if (comm->size == 1) {
        memcpy(all, mine, bytes);
        return;
    }
    void *handle = transport_start_gather(comm, all, mine, bytes);
    void **const handles[] = {&handle};
    wait_for(handles, 1, comm, what);
}

/* All ranks of the group must be at the same operation, on as many elements of one type. All find out when they are
 * not; the first one says it. */
static void check_agreement(const Transfer *t, const char *name)
{
    struct Call { int64_t operation, op, count, dtype, reduce, root; char name[40]; };
    struct Call mine = {t->comm->operations, t->op, t->count, t->dtype, t->reduce, t->peer, ""}, *a, *b;
    struct Call *all = calloc(t->comm->size, sizeof *all);
    char text[2][128];

    if (!all)
        fail("no memory for --check");
    snprintf(mine.name, sizeof mine.name, "%s", name);
    gather(t->comm, all, &mine, sizeof mine, op_name[t->op]);
    for (a = all, b = all + 1; b < all + t->comm->size; b++) {
        if (!memcmp(a, b, offsetof(struct Call, name)))
            continue;
        if (t->comm->rank)
            sleep(1);
        for (int i = 0; i < 2; i++) {
            const struct Call *c = i ? b : a;
            const int at = snprintf(text[i], sizeof text[i], "%s of %s, %lld %s", op_name[c->op], c->name,
                                    (long long)c->count, dtype_name(c->dtype));
            if (c->op == ALL_REDUCE)
                snprintf(text[i] + at, sizeof text[i] - at, ", %s", c->reduce == SUM ? "SUM" : "MAX");
            if (c->op == BROADCAST)
                snprintf(text[i] + at, sizeof text[i] - at, ", from rank %lld", (long long)c->root);
        }
        fail("operation %lld of group %s: rank 0 calls %s, but rank %d %s", (long long)a->operation, t->comm->name,
             text[0], (int)(b - all), text[1]);
    }
    free(all);
}

/* ---- The program's beginning and end ---- */

/* What all ranks must know before they go on or end: the lowest rank that failed, and its status; or size, and 0. */
static int first_failed(int status, int *its_status)
{
    int *all = calloc(world->size, sizeof *all), r;

    if (!all)
        transport_abort(1);
    gather(world, all, &status, sizeof status, "the other ranks to start");
    for (r = 0; r < world->size && !all[r]; r++)
        ;
    *its_status = r < world->size ? all[r] : 0;
    free(all);
    return r;
}

_Noreturn void comm_exit(int status)
{
    ended = true;
    transport_end();
    exit(status);
}

static void end_all(const char *line, int status)
{
    if (starting) {
        error_cleanup_now();
        if (first_failed(status, &status) == world->rank)
            fprintf(stderr, "%s\n", line);
        comm_exit(status);
    }
    ended = true;
    usleep(300000 * (world->rank < 4 ? world->rank : 4));       /* where all fail alike, the lowest ends the others */
    fprintf(stderr, "%s\n", line);
    fflush(stderr);
    if (world->size > 1)
        usleep(100000);                         /* a launcher that is told to end all forwards no more lines */
    error_cleanup_now();                        /* as late: who writes to them meanwhile would have other complaints */
    if (world->size > 1)
        transport_abort(status);
    exit(status);
}

/* A rank that leaves without a word would keep the others waiting, under a launcher that reports success. */
static void at_exit(void)
{
    if (!ended && world->size > 1)
        transport_abort(1);
}

void comm_begin(int *argc, char ***argv)
{
    transport_begin(argc, argv, world, &local_rank, &local_size);
    starting = true;
    error_end_with(end_all);
    atexit(at_exit);
}

void comm_agree(void)
{
    int status;

    if (starting && first_failed(0, &status) < world->size)             /* that rank prints its line */
        comm_exit(status);
}

void comm_started(void)
{
    comm_agree();
    starting = false;
}

void comm_same(const char *lines)
{
    enum { TEXT = 16384 };
    char *all = calloc(world->size + 1, TEXT), *mine = all + (int64_t)world->size * TEXT;

    if (!all)
        fail("no memory for comparing options");
    comm_agree();                               /* a rank that failed would not come here */
    snprintf(mine, TEXT, "%s", lines);
    gather(world, all, mine, TEXT, "the other ranks' options");
    for (int r = 1; r < world->size; r++) {
        const char *a = all, *b = all + (int64_t)r * TEXT;
        while (*a && strcspn(a, "\n") == strcspn(b, "\n") && !strncmp(a, b, strcspn(a, "\n")))
            a += strcspn(a, "\n") + 1, b += strcspn(b, "\n") + 1;
        a = *a || !*b ? a : "nothing more", b = *b || !*a ? b : "nothing more";
        if (*a || *b)
            fail_usage("rank 0 has %.*s, but rank %d %.*s: all ranks must have the same", (int)strcspn(a, "\n"), a, r,
                       (int)strcspn(b, "\n"), b);
    }
    free(all);
}

char *comm_rank_table(void)
{
    struct Process { char host[64]; int pid; } mine = {.pid = getpid()}, *all = calloc(world->size, sizeof *all);
    const size_t size = 128 * (size_t)world->size + 1;
    char *table = calloc(size, 1), *to = table;

    if (!all || !table)
        fail("no memory for a table of %d ranks", world->size);
    gethostname(mine.host, sizeof mine.host - 1);
    gather(world, all, &mine, sizeof mine, "the other ranks to start");
    for (int r = 0; r < world->size; r++)
        to += snprintf(to, size - (to - table), "%srank %d = %s:%d",
                       r == 0 ? "" : strcmp(all[r].host, all[r - 1].host) ? "\n" : ", ", r, all[r].host, all[r].pid);
    free(all);
    return table;
}

/* ---- Groups ---- */

Comm *comm_split(Comm *comm, int color, const char *name)
{
    int rank, size;

    comm_agree();                               /* a rank that failed would not come here */
    void *transport = transport_split(comm, color, &rank, &size);
    if (!transport)
        return NULL;
    Comm *c = malloc(sizeof *c), *last = world;
    if (!c)
        fail("no memory for the group %s", name);
    *c = (Comm){.name = name, .rank = rank, .size = size, .transport = transport};
    while (last->next)
        last = last->next;
    last->next = c;
    return c;
}

int comm_rank(const Comm *comm)
{
    return comm->rank;
}

int comm_size(const Comm *comm)
{
    return comm->size;
}

int comm_local_rank(void)
{
    return local_rank;
}

int comm_local_size(void)
{
    return local_size;
}

Range comm_part(const Comm *comm, int64_t count)
{
    return range_part(count, comm->rank, comm->size);
}

double comm_sum(Comm *comm, double x)
{
    double *all = malloc(comm->size * sizeof *all), sum = 0;

    if (!all)
        fail("no memory for %d numbers", comm->size);
    if (options.check && comm->size > 1)
        check_agreement(&(Transfer){.comm = comm, .op = NUMBER, .count = 1, .dtype = F64}, "a number");
    gather(comm, all, &x, sizeof x, "a sum");
    for (int r = 0; r < comm->size; r++)
        sum += all[r];
    free(all);
    return sum;
}

void comm_gather_host(Comm *comm, void *all, const void *mine, int64_t bytes)
{
    gather(comm, all, mine, bytes, "a gathering");
}

void comm_barrier(Comm *comm)
{
    comm_sum(comm, 0);
}

/* ---- The account ---- */

/* Elements that this rank sends for a full tensor of K, as comm.h says. */
static int64_t elements_sent(const Comm *c, int op, int64_t K, bool root)
{
    const int64_t scatter = K - range_part(K, c->rank, c->size).count;
    const int64_t gather = K - range_part(K, (c->rank + 1) % c->size, c->size).count;

    switch (op) {
    case ALL_REDUCE:
        return scatter + gather;
    case REDUCE_SCATTER:
    case ALL_TO_ALL:
        return scatter;
    case ALL_GATHER:
        return gather;
    case BROADCAST:
        return root && c->size > 1 ? K : 0;
    default:
        return c->size > 1 ? K : 0;
    }
}

void comm_predict(Comm *comm, CommOp op, int64_t calls, int64_t elements)
{
    comm->predicted_calls[op] += calls;
    comm->predicted_bytes[op] += calls * elements_sent(comm, op, elements, comm->rank == 0) * dtype_size(REAL);
}

int comm_account(CommAccount *accounts, int most)
{
    int n = 0;

    for (const Comm *c = world; c; c = c->next)
        for (int op = 0; op < COMM_OPS && n < most; op++)
            if (c->calls[op] || c->predicted_calls[op])
                accounts[n++] = (CommAccount){c->name, op_name[op], c->calls[op], c->bytes[op],
                                              c->predicted_calls[op], c->predicted_bytes[op]};
    return n;
}

int64_t comm_bytes(void)
{
    int64_t sum = 0;

    for (const Comm *c = world; c; c = c->next)
        for (int op = 0; op < COMM_OPS; op++)
            sum += c->bytes[op];
    return sum;
}

void comm_account_reset(void)
{
    for (Comm *c = world; c; c = c->next) {
        memset(c->calls, 0, sizeof c->calls);
        memset(c->bytes, 0, sizeof c->bytes);
    }
}

/* ---- Requests ---- */

struct Request {
    Comm *comm;
    int op, span;                               /* span: in the trace */
    void *handle;                               /* the transport's */
    Request *also;                              /* a shift's other half */
    /* --pretend */
    void *clock;                                /* the transport's, for `when` */
    double when[2];                             /* from when on all its ranks take part; how long it then takes */
    double begin;                               /* a message's: when it left, or when it was waited for first */
    /* --check: a transfer works on private copies. What it will write holds NaN until the wait, and must still hold it
     * then; what it reads must be unchanged. So a buffer that is used too early is found in every run, and not in the
     * rare one in which the transfer was slow. */
    Tensor out, in, written, watched;
    void *out_copy, *in_copy;
};

static bool inside(Tensor part, Tensor whole)
{
    const char *p = part.data, *w = whole.data;

    return p && w && p >= w && p + tensor_bytes(part) <= w + tensor_bytes(whole);
}

static void *copy_of(Tensor t)
{
    void *copy = device_alloc(tensor_bytes(t));

    if (!copy)
        fail("no memory for --check's copy of %s, %s", t.name, bytes_text(tensor_bytes(t)));
    device_copy(copy, t.data, tensor_bytes(t));
    return copy;
}

static void *on_host(const void *data, int64_t bytes)
{
    void *host = malloc(bytes + 1);

    if (!host)
        fail("no memory for --check's copy of %s", bytes_text(bytes));
    device_download(host, data, bytes);
    return host;
}

/* A signaling NaN: it shows when it is used, and arithmetic on it, even adding to it, changes its bits. */
static void fill_with_poison(void *host, DType dtype, int64_t count)
{
    static const uint64_t bits64 = 0x7ff5a5a5a5a5a5a5;
    static const uint32_t bits32 = 0x7fa5a5a5;
    const int size = dtype_size(dtype);

    for (int64_t i = 0; i < count; i++)
        memcpy((char *)host + i * size, size == 8 ? (const void *)&bits64 : &bits32, size);
}

static void *poison_on_host(Tensor t)
{
    void *host = malloc(tensor_bytes(t) + 1);

    if (!host)
        fail("no memory for --check's copy of %s", bytes_text(tensor_bytes(t)));
    fill_with_poison(host, t.dtype, tensor_count(t));
    return host;
}

/* Before a transfer: gives it copies to work on. */
static void check_begin(Request *q, Transfer *t)
{
    q->written = t->op == REDUCE_SCATTER && inside(q->out, q->in) ? q->in : q->out;
    q->watched = inside(q->in, q->written) ? NONE : q->in;
    if (q->out.data)
        t->out = q->out_copy = copy_of(q->out);
    if (q->in.data)
        t->in = q->in_copy = copy_of(q->in);
    if (q->written.data) {
        void *nan = poison_on_host(q->written);
        device_upload(q->written.data, nan, tensor_bytes(q->written));
        free(nan);
    }
    t->rendezvous = true;
}

/* After it: nobody has touched what was under way. */
static void check_end(Request *q)
{
    if (q->written.data) {
        char *now = on_host(q->written.data, tensor_bytes(q->written)), *nan = poison_on_host(q->written);
        const int size = dtype_size(q->written.dtype);
        for (int64_t i = 0; i < tensor_count(q->written); i++)
            if (memcmp(now + i * size, nan + i * size, size))
                fail("%s of %s in group %s: element %lld was written to before comm_wait", op_name[q->op],
                     q->written.name, q->comm->name, (long long)i);
        free(now);
        free(nan);
    }
    if (q->watched.data) {
        void *now = on_host(q->watched.data, tensor_bytes(q->watched));
        void *then = on_host(q->in_copy, tensor_bytes(q->watched));
        if (memcmp(now, then, tensor_bytes(q->watched)))
            fail("%s of %s in group %s: it was changed before comm_wait", op_name[q->op], q->watched.name,
                 q->comm->name);
        free(now);
        free(then);
    }
    if (q->out_copy) {
        device_copy(q->out.data, q->out_copy, tensor_bytes(q->out));
        device_free(q->out_copy, tensor_bytes(q->out));
    }
    if (q->in_copy)
        device_free(q->in_copy, tensor_bytes(q->in));
}

enum { CLOCK_TAG = 1 << 20 };                   /* beyond the tags of messages */

/* --pretend: a transfer leaves when the link is free, and begins when the last of its ranks has come to it: they tell
 * each other when that is. A ring of n sends n - 1 messages one after the other for a gather or a scatter. */
static void pretend_begin(Request *q, Transfer t, int64_t bytes)
{
    static double link_free;
    const int size = t.comm->size, messages = t.op == ALL_REDUCE ? 2 * (size - 1) : t.op >= SEND ? 1 : size - 1;
    const double now = clock_seconds();

    q->when[0] = q->begin = now;
    if (t.op != RECV) {
        q->when[1] = messages * options.pretend_latency + bytes / options.pretend_bandwidth;
        q->when[0] = q->begin = link_free > now ? link_free : now;
        link_free = q->when[0] + q->when[1];
    }
    q->clock = transport_start((Transfer){.comm = t.comm, .op = t.op >= SEND ? t.op : ALL_REDUCE, .reduce = MAX,
                                          .out = q->when, .in = q->when, .count = 2, .dtype = F64, .peer = t.peer,
                                          .tag = t.tag + CLOCK_TAG});
}

/* count: of the full tensor; name: of the tensor, for messages. */
static Request *start(Comm *comm, int op, Tensor out, Tensor in, Tensor whole, Reduce reduce, int peer, int tag)
{
    Transfer t = {.comm = comm, .op = op, .reduce = reduce, .out = out.data, .in = in.data,
                  .count = tensor_count(whole), .dtype = whole.dtype, .peer = peer, .tag = tag};
    int64_t bytes = 0;

    comm->operations += op < SEND;              /* messages are not for all ranks to count */
    if (op != RECV) {
        bytes = elements_sent(comm, op, t.count, comm->rank == peer) * dtype_size(t.dtype);
        comm->calls[op]++;
        comm->bytes[op] += bytes;
    }
    if (comm->size == 1) {                      /* nobody to talk to: a part is the whole */
        if (out.data != in.data && in.data)
            tensor_copy(out, in);
        return NULL;
    }
    Request *q = calloc(1, sizeof *q);
    if (!q)
        fail("no memory for a request");
    q->comm = comm, q->op = op, q->out = out, q->in = in;
    if (options.check && op < SEND)
        check_agreement(&t, whole.name);
    if (options.check)
        check_begin(q, &t);
    q->span = trace_transfer_begin(op_name[op]);
    if (options.pretend)
        pretend_begin(q, t, bytes);
    q->handle = transport_start(t);
    return q;
}

void comm_wait(Request **request)
{
    Request *q = *request;

    if (!q)
        return;
    *request = NULL;
    comm_wait(&q->also);
    void **const handles[] = {&q->handle, &q->clock};
    wait_for(handles, 2, q->comm, op_name[q->op]);
    while (options.pretend && clock_seconds() < q->when[0] + q->when[1]) {
        comm_progress();
        sched_yield();
    }
    trace_transfer_end(q->span);
    if (options.pretend)
        trace_transfer_was(q->span, q->op >= SEND ? q->begin : q->when[0], q->when[0] + q->when[1]);
    if (options.check)
        check_end(q);
    free(q);
}

/* ---- The operations ---- */

Request *comm_start_all_reduce(Comm *comm, Tensor t, Reduce reduce)
{
    return start(comm, ALL_REDUCE, t, NONE, t, reduce, 0, 0);
}

static bool overlap(Tensor a, Tensor b)
{
    const char *p = a.data, *q = b.data;

    return p < q + tensor_bytes(b) && q < p + tensor_bytes(a);
}

/* `part` must be this rank's part of `whole`, and if it lies inside, then at its place. */
static void check_part(const Comm *comm, const char *op, Tensor part, Tensor whole)
{
    const Range r = comm_part(comm, tensor_count(whole));
    const char *place = (char *)whole.data + r.first * dtype_size(whole.dtype), *p = part.data;

    if (part.dtype != whole.dtype || tensor_count(part) != r.count)
        fail("%s: %s %s; but rank %d's part of %s %s of group %s has %lld elements", op, tensor_describe(part),
             dtype_name(part.dtype), comm->rank, tensor_describe(whole), dtype_name(whole.dtype), comm->name,
             (long long)r.count);
    if (r.count && p != place && overlap(part, whole))
        fail("%s: %s lies inside %s, but not where rank %d's part of it is", op, part.name, whole.name, comm->rank);
}

Request *comm_start_reduce_scatter(Comm *comm, Tensor out, Tensor in)
{
    check_part(comm, "reduce_scatter", out, in);
    return start(comm, REDUCE_SCATTER, out, in, in, SUM, 0, 0);
}

Request *comm_start_all_gather(Comm *comm, Tensor out, Tensor in)
{
    check_part(comm, "all_gather", in, out);
    return start(comm, ALL_GATHER, out, in, out, SUM, 0, 0);
}

Request *comm_start_all_to_all(Comm *comm, Tensor out, Tensor in)
{
    if (tensor_count(out) != tensor_count(in) || out.dtype != in.dtype || tensor_count(in) % comm->size)
        fail("all_to_all: %s, %s; but both must have as many elements, a multiple of %d ranks", tensor_describe(out),
             tensor_describe(in), comm->size);
    if (overlap(out, in))
        fail("all_to_all: %s and %s overlap", out.name, in.name);
    return start(comm, ALL_TO_ALL, out, in, in, SUM, 0, 0);
}

Request *comm_start_broadcast(Comm *comm, Tensor t, int root)
{
    return start(comm, BROADCAST, t, NONE, t, SUM, root, 0);
}

static void check_peer(const Comm *comm, const char *op, Tensor t, int peer)
{
    if (peer < 0 || peer >= comm->size || peer == comm->rank)
        fail("%s of %s: rank %d is not another rank of group %s, which has %d", op, t.name, peer, comm->name,
             comm->size);
}

Request *comm_start_send(Comm *comm, Tensor t, int to, int tag)
{
    check_peer(comm, "send", t, to);
    return start(comm, SEND, NONE, t, t, SUM, to, tag);
}

Request *comm_start_recv(Comm *comm, Tensor t, int from, int tag)
{
    check_peer(comm, "recv", t, from);
    return start(comm, RECV, t, NONE, t, SUM, from, tag);
}

Request *comm_start_shift(Comm *comm, Tensor out, Tensor in)
{
    enum { SHIFT_TAG = CLOCK_TAG - 1 };

    if (tensor_count(out) != tensor_count(in) || out.dtype != in.dtype)
        fail("shift: %s, %s; but both must have as many elements of one type", tensor_describe(out),
             tensor_describe(in));
    if (comm->size == 1)
        return start(comm, SEND, out, in, in, SUM, 0, 0);
    Request *q = comm_start_send(comm, in, (comm->rank + 1) % comm->size, SHIFT_TAG);
    q->also = comm_start_recv(comm, out, (comm->rank + comm->size - 1) % comm->size, SHIFT_TAG);
    return q;
}

void comm_all_reduce(Comm *comm, Tensor t, Reduce reduce)
{
    Request *q = comm_start_all_reduce(comm, t, reduce);
    comm_wait(&q);
}

void comm_reduce_scatter(Comm *comm, Tensor out, Tensor in)
{
    Request *q = comm_start_reduce_scatter(comm, out, in);
    comm_wait(&q);
}

void comm_all_gather(Comm *comm, Tensor out, Tensor in)
{
    Request *q = comm_start_all_gather(comm, out, in);
    comm_wait(&q);
}

void comm_all_to_all(Comm *comm, Tensor out, Tensor in)
{
    Request *q = comm_start_all_to_all(comm, out, in);
    comm_wait(&q);
}

void comm_broadcast(Comm *comm, Tensor t, int root)
{
    Request *q = comm_start_broadcast(comm, t, root);
    comm_wait(&q);
}
