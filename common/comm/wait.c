/* Waiting: one loop for all that is waited for, its deadline, and who is named when the deadline has passed. And how
 * long this rank has waited in a step.
 */
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../device.h"
#include "../error.h"
#include "../options.h"
#include "transport.h"
#include "watchdog.h"

char alarm_fails[ALARM_TEXT] = "fails";

static double allowed;                          /* seconds beyond --timeout */

/* Some rank has waited for --timeout seconds. Each rank that is asked says what it is doing; who stays silent for a
 * tenth of that is stuck. The lowest that spoke tells the person, and all end. asker: the rank that asked, with its
 * text; -1: it is this one. */
static _Noreturn void stalled(const char *doing, int asker, const char *asked)
{
    char (*said)[ALARM_TEXT] = calloc(world->size, sizeof *said), text[ALARM_TEXT], line[1024];
    const double begin = clock_seconds();
    int from, silent = 0, stopped = 0, computing = 0, lowest = world->rank, at;

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
        stopped += !strncmp(said[r], "was stopped", strlen("was stopped"));
        computing += !strcmp(said[r], "computes");
        lowest = said[r][0] ? r : lowest;
    }
    if (world->rank != lowest)
        sleep(2);                               /* for it to speak first */
    comm_starting = false;                      /* no agreement with a rank that is stuck */
    at = snprintf(line, sizeof line,
                  silent ? "silent for %d seconds:"
                  : stopped ? "a rank that was stopped kept others waiting, for %d seconds (--timeout)"
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

static volatile double went_on = -INFINITY;     /* when this rank was last continued (SIGCONT) after a stop */

static void on_continue(int signal_number)
{
    (void)signal_number;
    went_on = clock_seconds();
}

static void answer_alarm(const char *doing)
{
    char text[ALARM_TEXT];
    const int asker = world->size > 1 ? mpi_alarmed(text) : -1;

    if (asker >= 0 && strcmp(text, alarm_fails))
        stalled(clock_seconds() - went_on < options.timeout ? "was stopped, and goes on" : doing, asker, text);
}

void comm_watch(const char *todo, bool now)
{
    static double said;
    static bool watched;

    if ((!watched && !todo) || (watched && !now && clock_seconds() - said < 1))
        return;
    said = clock_seconds();
    watched = todo != NULL;
    watchdog_expect(todo ? comm_deadline() : 0, world->rank, todo ? todo : "");
}

static const char *const beside_transfers = "go on beside its GPU's transfers";

void comm_transfer_begins(void)
{
    comm_watch(beside_transfers, false);
}

static void progress(bool now)
{
    if (comm_transport->progress)
        comm_watch(comm_transport->progress() ? beside_transfers : NULL, now);
}

void comm_allow(double bytes)
{
    enum { SLOW_DISK = 10000000 };              /* bytes a second: one that is slower has stopped */

    allowed = bytes / SLOW_DISK;
    progress(true);                             /* the watchdog must know it too */
}

/* MPI's own waits spin, and ranks that share a core would spin against each other's work: this one yields, and looks at
 * the clock. */
void comm_wait_for(const Transport *by, void **handle, const Comm *comm, const char *what, const Request *q)
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
        progress(false);
        sched_yield();
    }
    *handle = NULL;
}

void comm_progress(void)
{
    progress(false);
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
    const bool waits = comm_transport->unfinished && comm_transport->unfinished(&t, &since);

    stopped = seconds < now - looked ? 0 : stopped + fmax(0, now - looked - 1);
    looked = now;
    progress(false);
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
    comm_wait_for(&transport_mpi, &handle, comm, what, NULL);
}

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

void comm_wait_begins(void)
{
    if (!options.report)
        return;
    if (waits_begun - waits_read == WAITS)
        read_wait();
    waits[waits_begun % WAITS].begin = device_event();
}

void comm_wait_ends(void)
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

void comm_was_late(double seconds)
{
    late += seconds;
}

void comm_waits_reset(void)
{
    comm_waited();                              /* reads what belongs to the step before */
    waited = late = 0;
}

double comm_deadline(void)
{
    return options.timeout ? options.timeout + allowed : 0;
}

void comm_waiting_begins(void)
{
    device_while_waiting(while_device_works);
    signal(SIGCONT, on_continue);
}
