/* The ranks: their start, groups of them, waiting and its deadlines, numbers between their hosts. */
#include <fcntl.h>
#include <mpi.h>
#include <omp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transport.h"
#include "../base/device.h"
#include "../base/error.h"
#include "../base/options.h"
#include "../base/print.h"
#include "../base/threads.h"

static MPI_Comm mpi_world = MPI_COMM_WORLD;
static Comm world_group = {.name = "world", .mpi = &mpi_world};
Comm *world = &world_group;
struct CommLocal comm_local;

const char *const comm_op_name[COMM_OPS] = {
    [ALL_REDUCE] = "all_reduce", [REDUCE_SCATTER] = "reduce_scatter", [ALL_GATHER] = "all_gather",
    [ALL_TO_ALL] = "all_to_all", [BROADCAST] = "broadcast", [SEND] = "send", [EXCHANGE] = "exchange", [RECV] = "recv",
    [NUMBER] = "sum"};

static bool ended;

/* ---- Deadlines ---- */

static char doing[160];

/* Ends all ranks. The launcher forwards this rank's line first. MPI_Abort may never return, because the launcher cannot
 * be reached, or because a signal has interrupted MPI: then an alarm, with the default action, ends the rank. */
_Noreturn void ranks_abort(int status)
{
    static int first;
    int started;

    signal(SIGALRM, SIG_DFL);
    alarm(1);
    usleep(100000);
    if (!first && MPI_Initialized(&started) == MPI_SUCCESS && started) {
        first = status;                         /* MPI_Abort exits, and so calls this a second time */
        dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);       /* it also prints a line, which says no more */
        MPI_Abort(MPI_COMM_WORLD, status);
    }
    _exit(first ? first : status);
}

/* Prints what this rank has waited for too long, and gives the others a moment to print theirs. */
_Noreturn void comm_deadline_passed(void)
{
    dprintf(STDERR_FILENO, "%s: rank %d %s, for %d seconds (--timeout)\n", error_name(), world->rank, doing,
            options.timeout);
    usleep(options.timeout < 100 ? 50000 * options.timeout : 5000000);
    ranks_abort(1);
}

static void on_alarm(int number)
{
    (void)number;
    comm_deadline_passed();
}

void comm_deadline(const char *format, ...)
{
    va_list list;

    alarm(0);
    if (!options.timeout)
        return;
    va_start(list, format);
    vsnprintf(doing, sizeof doing, format, list);
    va_end(list);
    alarm(options.timeout);
}

void comm_deadline_met(void)
{
    alarm(0);
}

/* ---- Start and end ---- */

/* Counts the cores per rank: those that this machine's ranks may use, divided by the ranks; or, if a launcher has bound
 * each rank to fewer, those. */
static void count_cores(MPI_Comm local)
{
    cpu_set_t mine = threads_cores(), together;

    MPI_Allreduce(&mine, &together, sizeof mine / sizeof(uint64_t), MPI_UINT64_T, MPI_BOR, local);
    const int all = CPU_COUNT(&together) ? CPU_COUNT(&together) : omp_get_num_procs(), bound = CPU_COUNT(&mine);
    const int share = all > comm_local.size ? all / comm_local.size : 1;
    comm_local.cores = bound && bound < share ? bound : share;
    if (omp_get_proc_bind() != omp_proc_bind_false && bound > share && world->rank == 0)
        fprintf(stderr, "%s: the ranks of a machine bind their threads to the same cores (OMP_PROC_BIND, OMP_PLACES or "
                "GOMP_CPU_AFFINITY is set), and so wait for each other: set OMP_PROC_BIND=false\n", error_name());
}

/* A launcher that belongs to another MPI than the program starts ranks that do not see each other. */
static void check_launcher(void)
{
    static const char *const counts[] = {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"};

    for (int i = 0; i < 3 && world->size == 1; i++) {
        const char *ranks = getenv(counts[i]);
        if (ranks && atoi(ranks) > 1)
            fail("%s is %s, but this rank is alone, because the launcher cannot start this program's MPI; take mpicc "
                 "and mpiexec of one installation (make check-machine), or srun --mpi=pmi2 for MPICH, --mpi=pmix for "
                 "Open MPI", counts[i], ranks);
    }
}

/* A rank that exits without comm_exit ends the others: they would wait for it, and mpiexec could report success. */
static void at_exit(void)
{
    if (!ended)
        ranks_abort(1);
}

void comm_begin(int *argc, char ***argv)
{
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESETHAND | SA_NODEFER};
    MPI_Comm local;
    int threads;

    sigaction(SIGALRM, &action, NULL);
    comm_deadline("starts");                    /* --timeout is not known yet: by its default */
    MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &threads);         /* operators' threads don't call MPI */
    MPI_Comm_rank(mpi_world, &world->rank);
    MPI_Comm_size(mpi_world, &world->size);
    check_launcher();
    MPI_Comm_split_type(mpi_world, MPI_COMM_TYPE_SHARED, world->rank, MPI_INFO_NULL, &local);
    MPI_Comm_rank(local, &comm_local.rank);
    MPI_Comm_size(local, &comm_local.size);
    count_cores(local);
    MPI_Comm_free(&local);
    comm_deadline_met();
    error_set_rank(world->rank, world->size > 1 ? ranks_abort : NULL);
    if (world->size > 1)
        atexit(at_exit);
}

void ranks_end(void)
{
    comm_deadline("waits for the other ranks to end");
    MPI_Finalize();
    comm_deadline_met();
    ended = true;
}

/* ---- Groups ---- */

Comm *comm_split(Comm *comm, int color, const char *name)
{
    Comm *last = world, *c = host_alloc(sizeof *c, "a group of ranks");
    MPI_Comm *mpi = host_alloc(sizeof *mpi, "a group of ranks");

    comm_deadline("waits for the other ranks of group %s to form groups", comm->name);
    MPI_Comm_split(*(MPI_Comm *)comm->mpi, color < 0 ? MPI_UNDEFINED : color, comm->rank, mpi);
    comm_deadline_met();
    if (*mpi == MPI_COMM_NULL)
        return NULL;
    *c = (Comm){.name = name, .mpi = mpi};
    MPI_Comm_rank(*mpi, &c->rank);
    MPI_Comm_size(*mpi, &c->size);
    c->members = host_alloc(c->size * sizeof *c->members, "a group of ranks");
    comm_gather_host(c, c->members, &world->rank, sizeof *c->members);
    while (last->next)
        last = last->next;
    return last->next = c;
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

const int *comm_members(const Comm *comm)
{
    return comm->members;
}

const Comm *comm_next(const Comm *comm)
{
    return comm->next;
}

Range comm_shard(const Comm *comm, int64_t count)
{
    return range_split(count, comm->rank, comm->size);
}

/* ---- Waiting, and numbers between hosts ---- */

/* MPI's blocking calls spin, and keep a rank on the same core from working. So every transfer is started, and this one
 * loop waits for it. */
void comm_wait_for(bool (*done)(void *handle), void **handle)
{
    while (*handle && !done(*handle))
        sched_yield();
    *handle = NULL;
}

static bool request_done(void *request)
{
    int done;

    MPI_Test(request, &done, MPI_STATUS_IGNORE);
    return done;
}

void comm_gather_host(Comm *comm, void *all, const void *mine, int64_t bytes)
{
    MPI_Request request;
    void *handle = &request;

    MPI_Iallgather(mine, bytes, MPI_BYTE, all, bytes, MPI_BYTE, *(MPI_Comm *)comm->mpi, &request);
    comm_deadline("waits for the other ranks' numbers, after operation %lld of group %s", (long long)comm->operations,
                  comm->name);
    comm_wait_for(request_done, &handle);
    comm_deadline_met();
}

/* Programs without comm_begin must not call MPI. */
void comm_progress(void)
{
    int there;

    if (world->size > 1)
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, mpi_world, &there, MPI_STATUS_IGNORE);
}

void comm_wait_until(double moment)
{
    while (clock_seconds() < moment) {
        comm_progress();
        sched_yield();                          /* to ranks on this core that have real work */
    }
}

void comm_check_same(const char *what, uint64_t hash)
{
    uint64_t all[world->size];

    comm_gather_host(world, all, &hash, sizeof hash);
    for (int r = 1; r < world->size; r++)
        if (all[r] != all[0])
            fail("%s: rank %d has another than rank 0; all ranks must have the same", what, r);
}

const char *comm_rank_table(void)
{
    struct Process { char host[64]; int pid; } mine = {.pid = getpid()}, all[world->size];
    const char *table = "ranks   ";

    gethostname(mine.host, sizeof mine.host - 1);
    comm_gather_host(world, all, &mine, sizeof mine);
    for (int r = 0; r < world->size; r++) {
        if (r > 0)
            table = format_text(strcmp(all[r].host, all[r - 1].host) ? "%s\n" : "%s, ", table);
        table = format_text("%srank %d = %s:%d", table, r, all[r].host, all[r].pid);
    }
    return table;
}
