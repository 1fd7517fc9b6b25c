/* The program's start and end: choosing the transport, agreeing on start-up errors, ending all ranks alike. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../device.h"
#include "../error.h"
#include "../options.h"
#include "transport.h"
#include "watchdog.h"

static Comm world_group = {.name = "world"};
static int machine, local_rank, local_size, local_threads;
static bool ended;
static pid_t launcher;                          /* the parent when the program began */

Comm *world = &world_group;
bool comm_starting;
const Transport *comm_transport = &transport_mpi;

/* Agrees over all ranks: returns the lowest rank that failed, with its status; or the world's size, with 0. */
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

/* MPI_Finalize waits without a deadline for ranks that are stopped before it, in it, or in their exit. So no rank calls
 * it before the watchdogs of all ranks have a deadline for the exit. */
_Noreturn void comm_exit(int status)
{
    const double begin = clock_seconds();

    if (world->size > 1 && !comm_orphaned()) {
        char all[world->size], mine = 0;
        watchdog_expect(comm_deadline(), world->rank, "end the program");
        comm_gather(world, all, &mine, 1, "the other ranks to end");
        watchdog_expect(comm_deadline(), world->rank, "end the program");   /* comm_watch may have reset it meanwhile */
    }
    ended = true;
    while (comm_transport->end && !comm_transport->end() && clock_seconds() - begin < 10)
        sched_yield();
    if (!comm_orphaned())
        mpi_end();
    exit(status);
}

/* The parent process has changed: the launcher is gone. A program without mpiexec may outlive its shell. */
bool comm_orphaned(void)
{
    return world->size > 1 && getppid() != launcher;
}

static void end_all(const char *line, int status)
{
    static const char *first;                   /* this rank's first error, if agreeing on it failed in turn */

    if (comm_starting) {
        first = line;
        error_cleanup_now();
        if (first_failed(status, &status) == world->rank)
            fprintf(stderr, "%s\n", line);
        comm_exit(status);
    }
    ended = true;
    /* where several ranks fail alike, the lowest prints its line and ends the others; alarms arrive only while a rank
     * polls for them */
    char text[ALARM_TEXT];
    bool told = false;
    if (world->size > 1)
        mpi_alarm(alarm_fails);
    const double until = clock_seconds() + 0.3 * (world->rank < 4 ? world->rank : 4);
    while (world->size > 1 && !told && clock_seconds() < until) {
        for (int from; (from = mpi_alarmed(text)) >= 0;)
            told |= from < world->rank && !strcmp(text, alarm_fails);
        usleep(1000);
    }
    if (told)
        sleep(2);
    if (first && !told)
        fprintf(stderr, "%s\n", first);
    if (!told)
        fprintf(stderr, "%s\n", line);
    fflush(stderr);
    if (world->size > 1)
        usleep(100000);                         /* a launcher that is told to end all ranks forwards no more lines */
    error_cleanup_now();                        /* last, since other ranks may still write to these files */
    if (world->size > 1)
        mpi_abort(status);
    exit(status);
}

/* Aborts if the rank exits without comm_exit: the others would wait for it, and mpiexec could report success. */
static void at_exit(void)
{
    if (!ended && world->size > 1)
        mpi_abort(1);
}

/* Returns --timeout for MPI's own start, which precedes the parsing of options; the default if it is invalid. */
static int timeout_of(int argc, char **argv)
{
    static const char name[] = "--timeout";
    const size_t length = strlen(name);
    int seconds = options.timeout;

    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], name, length) || (argv[i][length] && argv[i][length] != '='))
            continue;
        const char *text = argv[i][length] ? argv[i] + length + 1 : i + 1 < argc ? argv[i + 1] : "";
        const long n = strtol(text, NULL, 10);
        seconds = n >= 0 && n <= 1000000 ? n : options.timeout;
    }
    return seconds;
}

void comm_begin(int *argc, char ***argv)
{
    launcher = getppid();
    watchdog_start();
    watchdog_expect(timeout_of(*argc, *argv), -1, "start");
    mpi_begin(argc, argv, world, &machine, &local_rank, &local_size, &local_threads);
    watchdog_expect(0, world->rank, "");
    if (world->size == 1)
        watchdog_stop();                        /* there is no other rank to wait for */
    comm_starting = true;
    comm_waiting_begins();
    error_end_with(end_all);
    atexit(at_exit);
}

/* Returns whether NCCL cannot be used, and why: two ranks share a GPU, or a rank has none. */
static bool nccl_cannot(char text[256])
{
    struct Place { char host[64], gpu[DEVICE_PLACE]; int machine, ranks, gpus; };
    struct Place mine = {.machine = machine, .ranks = local_size};
    struct Place *all = host_alloc(world->size * sizeof *all, "a table of ranks");
    bool found = false;

    gethostname(mine.host, sizeof mine.host - 1);
    watchdog_expect(comm_deadline(), world->rank, "find its GPU");
    mine.gpus = device_find(local_rank, mine.gpu);
    watchdog_expect(0, world->rank, "");
    comm_agree();                               /* if a rank failed, all end here */
    comm_gather(world, all, &mine, sizeof mine, "the other ranks' GPUs");
    for (int r = 0; r < world->size && !found; r++)
        if (all[r].gpus == 0) {
            snprintf(text, 256, "rank %d finds no GPU on %s", r, all[r].host);
            found = true;
        }
    for (int a = 0; a < world->size; a++)
        for (int b = a + 1; b < world->size && !found; b++)
            if (all[a].machine == all[b].machine && !strcmp(all[a].gpu, all[b].gpu)) {
                snprintf(text, 256, "ranks %d and %d share GPU %s of %s, which has %d ranks, and %d GPU%s for them", a,
                         b, all[a].gpu, all[a].host, all[a].ranks, all[a].gpus, all[a].gpus == 1 ? "" : "s");
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
        fail("--comm nccl: this build's tensors lie in the host's memory, which needs --comm mpi; NCCL is for the cuda "
             "build");
    if (options.comm == COMM_NCCL && !transport_nccl)
        fail("--comm nccl: this build is without NCCL, because nccl.h was not found (make cuda NCCL_HOME=DIR)");
    if (device_is_host())
        return "MPI";
    comm_transport = &transport_staged;
    snprintf(words, sizeof words, "MPI, through the host's memory");
    if (options.comm == COMM_MPI || world->size == 1)
        return words;
    if (transport_nccl && !nccl_cannot(why)) {
        comm_transport = transport_nccl;
        comm_transport->prepare();
        return comm_transport->name;
    }
    if (options.comm == COMM_NCCL)
        fail("--comm nccl: %s; NCCL needs one GPU per rank", why);
    snprintf(words, sizeof words, "MPI, through the host's memory: %s",
             transport_nccl ? why : "this build is without NCCL");
    return words;
}

void comm_agree(void)
{
    int status;

    if (comm_starting && first_failed(0, &status) < world->size) {      /* that rank prints its line */
        error_cleanup_now();
        comm_exit(status);
    }
}

void comm_started(void)
{
    comm_agree();
    comm_starting = false;
}

void comm_check_same(const char *lines)
{
    const int64_t length = strlen(lines) + 1;
    int64_t *lengths = host_alloc(world->size * sizeof *lengths, "comparing options"), room = 0;

    comm_agree();                               /* if a rank failed, all end here */
    comm_gather(world, lengths, &length, sizeof length, "the other ranks' options");
    for (int r = 0; r < world->size; r++)
        room = lengths[r] > room ? lengths[r] : room;
    char *all = host_alloc((world->size + 1) * room, "comparing options"), *mine = all + world->size * room;
    strcpy(mine, lines);
    comm_agree();
    comm_gather(world, all, mine, room, "the other ranks' options");
    for (int r = 1; r < world->size; r++) {
        const char *a = all, *b = all + r * room;
        for (size_t n; *a && *b && (n = strcspn(a, "\n")) == strcspn(b, "\n") && !strncmp(a, b, n);)
            a += n + (a[n] == '\n'), b += n + (b[n] == '\n');
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
    struct Process { char host[64]; int pid; } mine = {.pid = getpid()};
    struct Process *all = host_alloc(world->size * sizeof *all, "a table of ranks");
    const size_t size = 128 * (size_t)world->size + 1;
    char *table = host_alloc(size, "a table of ranks"), *to = table;

    gethostname(mine.host, sizeof mine.host - 1);
    comm_gather(world, all, &mine, sizeof mine, "the other ranks to start");
    for (int r = 0; r < world->size; r++)
        to += snprintf(to, size - (to - table), "%srank %d = %s:%d",
                       r == 0 ? "" : strcmp(all[r].host, all[r - 1].host) ? "\n" : ", ", r, all[r].host, all[r].pid);
    free(all);
    return table;
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
