#include "comm.h"

#include <math.h>
#include <sched.h>
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
static int machine, local_rank, local_size, local_threads;
static bool starting, ended;
static const Transport *transport = &transport_mpi;     /* of tensors: comm_choose's choice */

Comm *world = &world_group;
const char *const comm_op_name[OPERATIONS] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast",
                                              "send", "recv", "sum"};

/* ---- Waiting: one loop for everything that is waited for ---- */

static double allowed;                          /* seconds beyond --timeout */
static char failing[ALARM_TEXT] = "fails";      /* the alarm of a rank that ends the others, and has said why */

/* Some rank has waited for --timeout seconds. Each rank that is asked says what it is doing; who stays silent for a
 * tenth of that is stuck. The lowest that spoke tells the person, and all end. asker: the rank that asked, with its
 * text; -1: it is this one. */
static _Noreturn void stalled(const char *doing, int asker, const char *asked)
{
    char (*said)[ALARM_TEXT] = calloc(world->size, sizeof *said), text[ALARM_TEXT], line[1024];
    const double begin = clock_seconds();
    int from, silent = 0, computing = 0, lowest = world->rank, at;

    if (!said)
        fail("a rank is stuck, and there is no memory to find out which");
    if (asker >= 0)
        memcpy(said[asker], asked, ALARM_TEXT);
    snprintf(said[world->rank], ALARM_TEXT, "%s", doing);
    mpi_alarm(said[world->rank]);
    while (clock_seconds() - begin < fmax(1, options.timeout / 10.)) {      /* an operator may take long */
        if ((from = mpi_alarmed(text)) >= 0)
            memcpy(said[from], text, ALARM_TEXT);
        sched_yield();
    }
    for (int r = world->size - 1; r >= 0; r--) {
        silent += !said[r][0];
        computing += !strcmp(said[r], "computes");
        lowest = said[r][0] ? r : lowest;
    }
    if (world->rank != lowest)
        sleep(2);                               /* for it to speak first */
    starting = false;                           /* no agreement with a rank that is stuck */
    at = snprintf(line, sizeof line,
                  silent ? "silent for %d seconds:"
                  : computing ? "a rank that computes keeps others waiting, for %d seconds (--timeout)"
                  : "all ranks wait for each other, for %d seconds", options.timeout + (int)allowed);
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
    const int asker = world->size > 1 ? mpi_alarmed(text) : -1;

    if (asker >= 0 && strcmp(text, failing))
        stalled(doing, asker, text);
}

static void progress(void)
{
    if (transport->progress)
        transport->progress();
}

void comm_allow(double bytes)
{
    enum { SLOW_DISK = 10000000 };              /* bytes a second: one that is slower has stopped */

    allowed = bytes / SLOW_DISK;
}

/* Until a handle is done; it is then NULL. MPI's own waits spin, and ranks that share a core would spin against each
 * other's work: this one yields, and looks at the clock. */
static void wait_for(const Transport *by, void **handle, const Comm *comm, const char *what, const Request *q)
{
    double begin = clock_seconds(), looked = begin;

    while (*handle && !by->done(*handle)) {
        const double now = clock_seconds();
        if (now - looked > 0.01) {              /* not every so many turns: with many ranks on a core each takes long */
            char doing[ALARM_TEXT];
            begin += fmax(0, now - looked - 1); /* stopped meanwhile (SIGSTOP), and so may the others have been */
            looked = now;
            if (by->pending && by->pending(*handle)) {
                begin = now;
                snprintf(doing, sizeof doing, "computes");
            } else if (q && q->op >= SEND)
                snprintf(doing, sizeof doing, "waits for %s %s rank %d of group %s", what,
                         q->op == SEND ? "to" : "from", q->peer, comm->name);
            else
                snprintf(doing, sizeof doing, "waits for %s, operation %lld of group %s", what,
                         (long long)(q ? q->operation : comm->operations), comm->name);
            answer_alarm(doing);
            if (options.timeout && now - begin > options.timeout + allowed)
                stalled(doing, -1, NULL);
        }
        progress();
        sched_yield();
    }
    *handle = NULL;
}

void comm_progress(void)
{
    progress();
    answer_alarm("computes");
}

/* The host waits for its GPU, since so many seconds. If a transfer that the GPU waits for never comes, this is where
 * the host is, for with NCCL comm_wait itself doesn't wait. */
static void while_device_works(double seconds)
{
    static double looked, stopped;              /* when last; how long it was stopped (SIGSTOP) in this wait */
    const double now = clock_seconds();
    char doing[ALARM_TEXT] = "computes";
    Transfer t;
    double since;
    const bool waits = transport->unfinished && transport->unfinished(&t, &since);

    stopped = seconds < now - looked ? 0 : stopped + fmax(0, now - looked - 1);
    looked = now;
    progress();
    if (waits && t.op >= SEND)
        snprintf(doing, sizeof doing, "waits for %s %s rank %d of group %s, on its GPU", comm_op_name[t.op],
                 t.op == SEND ? "to" : "from", t.peer, t.comm->name);
    else if (waits)
        snprintf(doing, sizeof doing, "waits for %s, operation %lld of group %s, on its GPU", comm_op_name[t.op],
                 (long long)t.operation, t.comm->name);
    answer_alarm(doing);
    if (waits && options.timeout && fmin(seconds, now - since) - stopped > options.timeout + allowed)
        stalled(doing, -1, NULL);
}

void comm_gather(Comm *comm, void *all, const void *mine, int64_t bytes, const char *what)
{
    if (comm->size == 1) {
        memcpy(all, mine, bytes);
        return;
    }
    void *handle = mpi_start_gather(comm, all, mine, bytes);
    wait_for(&transport_mpi, &handle, comm, what, NULL);
}

/* ---- How long this rank has waited in a step ---- */

/* Between two points of the device's stream: with NCCL it is a GPU's stream that waits, not the host; and while the
 * host waits, what was queued before may still compute. They are read later, so that nobody waits for the clock; number
 * n is at n mod WAITS. */
enum { WAITS = 4096 };
static struct { DeviceEvent begin, end; } waits[WAITS];
static int64_t waits_begun, waits_read;
static double waited, late;             /* late: --pretend, of these: what a transfer really took longer */

static void read_wait(void)
{
    const int64_t i = waits_read++ % WAITS;
    const double begin = device_event_seconds(&waits[i].begin), end = device_event_seconds(&waits[i].end);

    waited += end - begin;
}

static void wait_begins(void)
{
    if (!options.report)
        return;
    if (waits_begun - waits_read == WAITS)
        read_wait();
    waits[waits_begun % WAITS].begin = device_event();
}

static void wait_ends(void)
{
    if (options.report)
        waits[waits_begun++ % WAITS].end = device_event();
}

double comm_waited(void)
{
    while (waits_read < waits_begun)
        read_wait();
    return waited;
}

double comm_late(void)
{
    return late;
}

/* ---- The program's beginning and end ---- */

/* What all ranks must know before they go on or end: the lowest rank that failed, and its status; or size, and 0. */
static int first_failed(int status, int *its_status)
{
    int *all = calloc(world->size, sizeof *all), r;

    if (!all)
        mpi_abort(1);
    comm_gather(world, all, &status, sizeof status, "the other ranks to start");
    for (r = 0; r < world->size && !all[r]; r++)
        ;
    *its_status = r < world->size ? all[r] : 0;
    free(all);
    return r;
}

_Noreturn void comm_exit(int status)
{
    const double begin = clock_seconds();

    ended = true;
    while (transport->end && !transport->end() && clock_seconds() - begin < 10)
        sched_yield();
    mpi_end();
    exit(status);
}

static void end_all(const char *line, int status)
{
    static const char *first;                   /* what this rank failed with, when another then didn't answer */

    if (starting) {
        first = line;
        error_cleanup_now();
        if (first_failed(status, &status) == world->rank)
            fprintf(stderr, "%s\n", line);
        comm_exit(status);
    }
    ended = true;
    /* where several fail alike, the lowest speaks, and ends the others */
    char text[ALARM_TEXT];
    bool told = false;
    if (world->size > 1)
        mpi_alarm(failing);
    usleep(300000 * (world->rank < 4 ? world->rank : 4));
    for (int from; world->size > 1 && (from = mpi_alarmed(text)) >= 0;)
        told |= from < world->rank && !strcmp(text, failing);
    if (told)
        sleep(2);
    if (first && !told)
        fprintf(stderr, "%s\n", first);
    if (!told)
        fprintf(stderr, "%s\n", line);
    fflush(stderr);
    if (world->size > 1)
        usleep(100000);                         /* a launcher that is told to end all forwards no more lines */
    error_cleanup_now();                        /* as late: who writes to them meanwhile would have other complaints */
    if (world->size > 1)
        mpi_abort(status);
    exit(status);
}

/* A rank that leaves without a word would keep the others waiting, under a launcher that reports success. */
static void at_exit(void)
{
    if (!ended && world->size > 1)
        mpi_abort(1);
}

void comm_begin(int *argc, char ***argv)
{
    mpi_begin(argc, argv, world, &machine, &local_rank, &local_size, &local_threads);
    if (transport_nccl && world->size > 1)
        transport_nccl->prepare();
    starting = true;
    device_while_waiting(while_device_works);
    error_end_with(end_all);
    atexit(at_exit);
}

static int nccl_digits(int version, int unit)          /* 22803: 2.28.3 */
{
    return version / unit % 100;
}

/* Why NCCL can't carry: which two ranks have the same GPU, or which has an old NCCL; false: it can. */
static bool nccl_cannot(char text[256])
{
    struct Place { char host[64], gpu[PLACE_TEXT]; int machine, ranks, gpus, nccl; };
    struct Place mine = {.machine = machine, .ranks = local_size, .gpus = device_count()};
    struct Place *all = calloc(world->size, sizeof *all);
    bool found = false;
    int needed;

    if (!all)
        fail("no memory for a table of %d ranks", world->size);
    gethostname(mine.host, sizeof mine.host - 1);
    transport_nccl->place(mine.gpu);
    mine.nccl = transport_nccl->version(&needed);
    comm_agree();                               /* a rank that failed would not come here */
    comm_gather(world, all, &mine, sizeof mine, "the other ranks' GPUs");
    for (int a = 0; a < world->size; a++)
        for (int b = a + 1; b < world->size && !found; b++)
            if (all[a].machine == all[b].machine && !strcmp(all[a].gpu, all[b].gpu)) {
                snprintf(text, 256, "ranks %d and %d share GPU %s of %s, which has %d ranks, and %d GPU%s for them", a,
                         b, all[a].gpu, all[a].host, all[a].ranks, all[a].gpus, all[a].gpus == 1 ? "" : "s");
                found = true;
            }
    for (int r = 0; r < world->size && !found; r++)
        if (all[r].nccl < needed) {
            snprintf(text, 256, "rank %d has NCCL %d.%d.%d, and from %d.%d on it can connect several pairs of ranks at "
                     "once", r, nccl_digits(all[r].nccl, 10000), nccl_digits(all[r].nccl, 100),
                     nccl_digits(all[r].nccl, 1), nccl_digits(needed, 10000), nccl_digits(needed, 100));
            found = true;
        }
    free(all);
    return found;
}

const char *comm_choose(void)
{
    static char words[320];
    char why[256];

    if (options.comm == COMM_NCCL && device_is_host())
        fail("--comm nccl, but tensors of this build lie in the host's memory, which MPI carries: NCCL is for the cuda "
             "build");
    if (options.comm == COMM_NCCL && !transport_nccl)
        fail("--comm nccl, but this build is without NCCL, as nccl.h was not found (make cuda NCCL_HOME=DIR)");
    if (device_is_host())
        return "MPI";
    transport = &transport_staged;
    snprintf(words, sizeof words, "MPI, through the host's memory");
    if (options.comm == COMM_MPI || world->size == 1)
        return words;
    if (transport_nccl && !nccl_cannot(why)) {
        transport = transport_nccl;
        return transport->name;
    }
    if (options.comm == COMM_NCCL)
        fail("--comm nccl, but %s%s", why, strstr(why, " share GPU ") ? ": NCCL wants one for each rank" : "");
    snprintf(words, sizeof words, "MPI, through the host's memory: %s",
             transport_nccl ? why : "this build is without NCCL");
    return words;
}

void comm_agree(void)
{
    int status;

    if (starting && first_failed(0, &status) < world->size) {           /* that rank prints its line */
        error_cleanup_now();
        comm_exit(status);
    }
}

void comm_started(void)
{
    comm_agree();
    starting = false;
}

void comm_same(const char *lines)
{
    const int64_t length = strlen(lines) + 1;
    int64_t *lengths = calloc(world->size, sizeof *lengths), room = 0;

    if (!lengths)
        fail("no memory for comparing options");
    comm_agree();                               /* a rank that failed would not come here */
    comm_gather(world, lengths, &length, sizeof length, "the other ranks' options");
    for (int r = 0; r < world->size; r++)
        room = lengths[r] > room ? lengths[r] : room;
    char *all = calloc(world->size + 1, room), *mine = all + world->size * room;
    if (!all)
        fail("no memory for comparing options");
    strcpy(mine, lines);
    comm_agree();
    comm_gather(world, all, mine, room, "the other ranks' options");
    for (int r = 1; r < world->size; r++) {
        const char *a = all, *b = all + r * room;
        while (*a && *b && strcspn(a, "\n") == strcspn(b, "\n") && !strncmp(a, b, strcspn(a, "\n")))
            a += strcspn(a, "\n") + 1, b += strcspn(b, "\n") + 1;
        a = *a || !*b ? a : "nothing more", b = *b || !*a ? b : "nothing more";
        if (*a || *b)
            fail_usage("rank 0 has %.*s, but rank %d %.*s: all ranks must have the same", (int)strcspn(a, "\n"), a, r,
                       (int)strcspn(b, "\n"), b);
    }
    free(lengths);
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
    comm_gather(world, all, &mine, sizeof mine, "the other ranks to start");
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

    if (comm == world)
        comm_agree();                           /* a rank that failed would not come here */
    void *part = mpi_split(comm, color, &rank, &size);
    if (!part)
        return NULL;
    Comm *c = malloc(sizeof *c), *last = world;
    if (!c)
        fail("no memory for the group %s", name);
    *c = (Comm){.name = name, .rank = rank, .size = size, .mpi = part};
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

const char *comm_name(const Comm *comm)
{
    return comm->name;
}

const Comm *comm_next(const Comm *comm)
{
    return comm->next;
}

int comm_machine(void)
{
    return machine;
}

int comm_local_rank(void)
{
    return local_rank;
}

int comm_local_size(void)
{
    return local_size;
}

int comm_local_threads(void)
{
    return local_threads;
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
    wait_begins();
    comm_gather(comm, all, &x, sizeof x, "a sum");
    wait_ends();
    for (int r = 0; r < comm->size; r++)
        sum += all[r];
    free(all);
    return sum;
}

void comm_gather_host(Comm *comm, void *all, const void *mine, int64_t bytes)
{
    comm_gather(comm, all, mine, bytes, "a gathering");
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
                accounts[n++] = (CommAccount){c->name, comm_op_name[op], c->calls[op], c->bytes[op],
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
    if (options.check)
        check_waited_for();
    comm_waited();                              /* reads what belongs to the step before */
    waited = late = 0;
}

/* ---- Requests ---- */

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
    q->clock = transport_mpi.start((Transfer){.comm = t.comm, .op = t.op >= SEND ? t.op : ALL_REDUCE, .reduce = MAX,
                                              .out = q->when, .in = q->when, .count = 2, .dtype = F64, .peer = t.peer,
                                              .tag = t.tag + CLOCK_TAG});
}

/* whole: the full tensor, whose count, type and name are the transfer's. */
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
    q->comm = comm, q->op = op, q->peer = peer, q->operation = comm->operations, q->out = out, q->in = in;
    if (options.check && op < SEND)
        check_agreement(&t, whole.name);
    if (options.check)
        check_begin(q, &t);
    t.tag %= TAGS;
    q->span = trace_transfer_begin(comm_op_name[op]);
    if (options.pretend)
        pretend_begin(q, t, bytes);
    t.operation = comm->operations;
    q->handle = transport->start(t);
    return q;
}

static void finish(Request *q)
{
    const double began = clock_seconds();

    if (q->also)
        finish(q->also);
    wait_for(&transport_mpi, &q->label, q->comm, comm_op_name[q->op], q);
    if (options.check)
        check_label(q);                         /* before the wait for a message that would never come */
    wait_for(&transport_mpi, &q->clock, q->comm, comm_op_name[q->op], q);
    wait_for(transport, &q->handle, q->comm, comm_op_name[q->op], q);
    if (options.pretend)
        late += fmax(0, clock_seconds() - fmax(began, q->when[0] + q->when[1]));
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

void comm_wait(Request **request)
{
    Request *q = *request;

    if (!q)
        return;
    *request = NULL;
    wait_begins();
    finish(q);
    wait_ends();
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
    if (root < 0 || root >= comm->size)
        fail("broadcast of %s: rank %d is not in group %s, which has %d", t.name, root, comm->name, comm->size);
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
