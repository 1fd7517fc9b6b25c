/* Waiting: the one loop in which a rank waits for others, its deadline, and the report on who is late. Also the time
 * that this rank has waited in a step.
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

/* Ends all ranks after some rank has waited for --timeout seconds. That rank asks all others; each replies with what it
 * is doing, and a rank that stays silent for a tenth of the timeout is stuck. The lowest rank that replied prints the
 * line. asker: the rank that asked, with its text; -1: this one. */
static _Noreturn void stalled(const char *doing, int asker, const char *asked)
{
    char (*reply)[ALARM_TEXT] = calloc(world->size, sizeof *reply), text[ALARM_TEXT], line[1024];
    const double begin = clock_seconds();
    int from, silent = 0, stopped = 0, computing = 0, lowest = world->rank, at;

    if (!reply)
        fail("a rank is stuck; not enough memory on the host to find out which");
    if (asker >= 0)
        memcpy(reply[asker], asked, ALARM_TEXT);
    snprintf(reply[world->rank], ALARM_TEXT, "%s", doing);
    mpi_alarm(reply[world->rank]);
    while (clock_seconds() - begin < fmax(1, options.timeout / 10.)) {      /* a rank may be inside a long operator */
        if ((from = mpi_alarmed(text)) >= 0)
            memcpy(reply[from], text, ALARM_TEXT);
        sched_yield();
    }
    for (int r = world->size - 1; r >= 0; r--) {
        silent += !reply[r][0];
        stopped += !strncmp(reply[r], "was stopped", strlen("was stopped"));
        computing += !strcmp(reply[r], "computes");
        lowest = reply[r][0] ? r : lowest;
    }
    if (world->rank != lowest)
        sleep(2);                               /* the lowest rank prints first */
    comm_starting = false;                      /* a rank that is stuck cannot agree */
    at = snprintf(line, sizeof line,
                  silent ? "silent for %d seconds:"
                  : stopped ? "a rank that was stopped kept others waiting, for %d seconds (--timeout)"
                  : computing ? "a rank that computes keeps others waiting, for %d seconds (--timeout)"
                  : "all ranks wait for each other, for %d seconds", options.timeout + (int)allowed);
    for (int r = 0; r < world->size && silent && at < (int)sizeof line; r++)
        if (!reply[r][0])
            at += snprintf(line + at, sizeof line - at, "%s rank %d", line[at - 1] == ':' ? "" : ",", r);
    for (int r = 0; r < world->size && at < (int)sizeof line; r++)
        if (reply[r][0])
            at += snprintf(line + at, sizeof line - at, "; rank %d %s", r, reply[r]);
    fail("%s", line);
}

static volatile double continued = -INFINITY;   /* when this rank was last continued (SIGCONT) after a stop */

static void on_continue(int signal_number)
{
    (void)signal_number;
    continued = clock_seconds();
}

static void reply_to_alarm(const char *doing)
{
    char text[ALARM_TEXT];
    const int asker = world->size > 1 ? mpi_alarmed(text) : -1;

    if (asker >= 0 && strcmp(text, alarm_fails))
        stalled(clock_seconds() - continued < options.timeout ? "was stopped, and continues" : doing, asker, text);
}

void comm_watch(const char *todo, bool now)
{
    static double sent;
    static bool watched;

    if ((!watched && !todo) || (watched && !now && clock_seconds() - sent < 1))
        return;
    sent = clock_seconds();
    watched = todo != NULL;
    watchdog_expect(todo ? comm_deadline() : 0, world->rank, todo ? todo : "");
}

static const char *const beside_transfers = "continue with GPU transfers in flight";

void comm_transfer_begins(void)
{
    comm_watch(beside_transfers, false);
}

static void progress(bool now)
{
    if (comm_transport->progress)
        comm_watch(comm_transport->progress() ? beside_transfers : NULL, now);
}

void comm_extend_timeout(double bytes)
{
    enum { SLOW_DISK = 10000000 };              /* bytes per second: a slower disk counts as stopped */

    allowed = bytes / SLOW_DISK;
    progress(true);                             /* tells the watchdog too */
}

/* Unlike MPI's own waits, which spin, this one yields to ranks that share its core, and looks at the clock. */
void comm_wait_for(const Transport *by, void **handle, const Comm *comm, const char *what, const Request *q)
{
    double begin = clock_seconds(), looked = begin;

    while (*handle && !by->done(*handle)) {
        const double now = clock_seconds();
        if (now - looked > 0.01) {              /* by time: with many ranks on a core one turn may take long */
            char doing[ALARM_TEXT];
            begin += fmax(0, now - looked - 1); /* a longer gap: this rank was stopped (SIGSTOP), perhaps all were */
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
            reply_to_alarm(doing);
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
    reply_to_alarm("computes");
}

/* Runs while the host waits for its GPU, which it has done for `seconds`. With NCCL comm_wait itself does not wait: if
 * a transfer never ends, the host is here. */
static void while_device_works(double seconds)
{
    static double looked, stopped;              /* last look; how long this rank was stopped (SIGSTOP) in this wait */
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
    reply_to_alarm(doing);
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

/* Waits are timed between two events in the device's stream. With NCCL the GPU's stream waits, not the host; and while
 * the host waits, operators queued before may still compute. The events are read later, so that reading does not wait;
 * number n is at n mod WAITS. */
enum { WAITS = 4096 };
static struct { DeviceEvent begin, end; } waits[WAITS];
static int64_t waits_begun, waits_read;
static double waited, late;             /* late: --pretend, the part of them that real transfers took longer */

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

double comm_pretend_overrun(void)
{
    return late;
}

void comm_was_late(double seconds)
{
    late += seconds;
}

void comm_waits_reset(void)
{
    comm_waited();                              /* reads the events of the previous step */
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
