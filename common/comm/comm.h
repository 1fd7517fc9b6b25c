/* Communication: groups of ranks, with collectives and point-to-point transfers on them. MPI starts the ranks, and
 * carries small values of the host between them. Tensors go over MPI or NCCL, behind comm/transport.h.
 *
 * Every call adds to traffic counters: per group and operation, the calls and the logical bytes that this rank sends.
 * The bytes are those of a ring, exact by range_split. For a full tensor of K elements on n ranks, rank r sends:
 *   reduce_scatter  K - |shard r|       all_gather  K - |shard (r + 1) mod n|       all_reduce  the sum of both
 *   all_to_all      K - |shard r|, with K local elements      broadcast  K, from the root      send  K
 * A library may put other bytes on the wire. The playbook's formulas count those of a ring. */
#ifndef COMM_H
#define COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "../base/tensor.h"

typedef struct Comm Comm;                       /* a group of ranks, as this rank sees it */
typedef struct Request Request;                 /* a transfer in flight */
typedef enum { SUM, MAX } Reduce;
typedef enum {
    ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, BROADCAST, SEND,
    EXCHANGE,                                   /* counted as SEND */
    RECV, NUMBER,                               /* not counted; NUMBER: comm_sum */
    COMM_OPS
} CommOp;

extern Comm *world;                             /* all ranks */

/* This rank among those of its machine. cores: for this rank, those that the machine's ranks may use divided by the
 * ranks, but at most those that it is bound to. sharing: ranks that compute on this rank's device, itself included; set
 * by comm_choose. */
extern struct CommLocal {
    int rank, size, cores, sharing;
} comm_local;

/* ---- groups ---- */

/* Splits comm into one group per color; each group orders its ranks as comm does. A rank with color < 0 joins no group
 * and gets NULL. All ranks of comm must call it. Messages and traffic tables show the name. */
Comm *comm_split(Comm *comm, int color, const char *name);
int comm_rank(const Comm *comm);
int comm_size(const Comm *comm);
const char *comm_name(const Comm *comm);
const int *comm_members(const Comm *comm);      /* their ranks in world; not of world itself */
const Comm *comm_next(const Comm *comm);        /* the group that this rank joined next, from world on; NULL: none */
Range comm_shard(const Comm *comm, int64_t count);      /* this rank's shard of `count` elements, by range_split */

/* ---- collectives: all ranks of the group call them in the same order, with the same counts ----
 * A shard may lie inside the full tensor, at its own place (in place). After an in-place reduce_scatter the other
 * ranks' shards are undefined. In a group of one rank each is a copy, or nothing.
 *
 * comm_start_ starts one: leave its buffers alone until comm_wait. With --check, the start waits until all ranks of the
 * group have called it. */
Request *comm_start_all_reduce(Comm *comm, Tensor t, Reduce reduce);
Request *comm_start_reduce_scatter(Comm *comm, Tensor out, Tensor in);  /* out: this rank's shard of the sum of in */
Request *comm_start_all_gather(Comm *comm, Tensor out, Tensor in);      /* in: this rank's shard of out */
Request *comm_start_all_to_all(Comm *comm, Tensor out, Tensor in);      /* in's block i goes to rank i, out's block i
                                                                         * comes from it; blocks are equal; out and in
                                                                         * do not overlap */
Request *comm_start_broadcast(Comm *comm, Tensor t, int root);

/* Starts a send to, or a receive from, a neighbor in the ring of the group's ranks. Receives must be posted in the
 * order of the peer's sends, because NCCL has no tags; --check compares tag, count and dtype of both sides. A send
 * never waits for a receive of its own rank. */
Request *comm_start_send(Comm *comm, Tensor t, int to, int tag);
Request *comm_start_recv(Comm *comm, Tensor t, int from, int tag);

/* Starts to send `in` to rank `to` and to receive `out` from rank `from`, any ranks of the group. `in` or `out` may be
 * NONE: then only the other is transferred. Ranks between which nothing is sent need not call it. Counted as a send; in
 * a group of one rank it is a copy, counted as a call of 0 bytes. If comm_predict names EXCHANGE, comm_connect connects
 * all pairs of ranks. */
Request *comm_start_exchange(Comm *comm, Tensor out, int from, Tensor in, int to);

/* Waits until the buffers may be used, and sets *request to NULL; does nothing if it is NULL. With NCCL the GPU's
 * stream waits and the host continues: operators that are called from now on find the buffers ready. */
void comm_wait(Request **request);

/* The same collectives, waited for at once. */
#define comm_all_reduce(comm, t, reduce) comm_complete(comm_start_all_reduce(comm, t, reduce))
#define comm_reduce_scatter(comm, out, in) comm_complete(comm_start_reduce_scatter(comm, out, in))
#define comm_all_gather(comm, out, in) comm_complete(comm_start_all_gather(comm, out, in))
#define comm_all_to_all(comm, out, in) comm_complete(comm_start_all_to_all(comm, out, in))
#define comm_broadcast(comm, t, root) comm_complete(comm_start_broadcast(comm, t, root))
#define comm_exchange(comm, out, from, in, to) comm_complete(comm_start_exchange(comm, out, from, in, to))
void comm_complete(Request *request);           /* comm_wait for a request that has no variable */
void comm_barrier(Comm *comm);

/* ---- numbers on the host: losses, norms, flags; no traffic is counted ---- */
double comm_sum(Comm *comm, double x);          /* adds in the order of ranks: the same bits on all */
void comm_gather_host(Comm *comm, void *all, const void *mine, int64_t bytes);  /* all: each rank's `bytes` bytes */

/* ---- traffic ---- */
typedef struct {
    const char *group, *op;
    int64_t calls, bytes;                       /* of the current step */
    int64_t predicted_calls, predicted_bytes;
} CommStats;

/* Predicts `calls` calls of op per step, each on a full tensor of `elements` REALs; computes the bytes that this rank
 * sends. Predictions add up, so -1 calls take one back; 0 calls name an operation that is only used between steps. A
 * broadcast is counted as from rank 0. comm_predict_as: elements stored as dtype. */
void comm_predict(Comm *comm, CommOp op, int64_t calls, int64_t elements);
void comm_predict_as(Comm *comm, CommOp op, DType dtype, int64_t calls, int64_t elements);

void comm_sends_to(Comm *comm, int to);         /* names a neighbor that this rank sends to; -1: none */

/* Connects the ranks of every group for the operations that comm_predict has named, so that no step has to. Call it on
 * all ranks, once all groups exist. NCCL takes GPU memory for it. */
void comm_connect(void);

int comm_stats(CommStats *stats, int capacity); /* fills in those with calls or a prediction; returns how many */
int64_t comm_bytes(void);                       /* sent in the current step, over all groups */
void comm_stats_reset(void);                    /* starts a new step */
int64_t comm_hops(void);                        /* --check: how many sends and exchanges of the current step, up to this
                                                 * rank's last one, had to follow one another */

/* Seconds of the current step in which this host only waited, for transfers and for numbers of other ranks. Transfers
 * that overlap with computation are not included. */
double comm_waited(void);
double comm_pretend_overrun(void);              /* --pretend: of these, what transfers took beyond simulated time */

/* clock_seconds, without what transfers took beyond their simulated time, and what ranks then waited in comm_sum. So
 * under --pretend it measures what transfers would take there. */
double comm_clock(void);

/* ---- start and end of the program ---- */

/* Joins the ranks that mpiexec started; without mpiexec the program is a world of one rank. From then on a rank that
 * fails ends all. */
void comm_begin(int *argc, char ***argv);

/* Chooses the library that carries tensors, by --comm and the GPUs present. Call it on all ranks before device_init.
 * Returns the choice in words: "MPI, through the host's memory: NCCL needs a GPU for each rank". */
const char *comm_choose(void);

_Noreturn void comm_exit(int status);           /* every rank calls it, with the same status; fails if something printed
                                                 * could not be written */
void comm_check_same(const char *what, uint64_t hash);          /* fails if the ranks' hashes differ */

/* Returns "ranks   rank 0 = alpha:4711, rank 1 = alpha:4712" (host:pid), one line per machine, to find the rank of a
 * process that a launcher names; a format_text of print.h. */
const char *comm_rank_table(void);

void comm_progress(void);                       /* MPI moves data only inside its calls: every operator ends with it */
void comm_wait_until(double moment);            /* by clock_seconds; meanwhile data moves, and other ranks compute */

#endif
