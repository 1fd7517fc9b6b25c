/* Communication: groups of ranks, and collectives and messages on them. MPI starts the ranks, gives each its number
 * and carries numbers of the host; tensors travel over MPI too, or over NCCL, behind comm/transport.h.
 *
 * Every call adds to an account: per group and operation the calls and the logical bytes that this rank sends, as if
 * over a ring, exact by the cutting rule (range_part). For a full tensor of K elements on n ranks:
 *   reduce_scatter  K - |part r|          all_gather  K - |part r + 1 mod n|      all_reduce  both
 *   all_to_all      K - |part r|, K local elements    broadcast   K, the root        send        K
 * A library may put other bytes on the wire; their sum over a ring is what the playbook's formulas count.
 */
#ifndef COMM_H
#define COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor.h"

typedef struct Comm Comm;                       /* a group of ranks, as this rank sees it */
typedef struct Request Request;                 /* a transfer under way */
typedef enum { SUM, MAX } Reduce;
typedef enum {
    ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, ALL_TO_ALL, BROADCAST, SEND, COMM_OPS, SHIFT = COMM_OPS
} CommOp;

extern Comm *world;                             /* all ranks */

/* ---- groups ---- */
/* Ranks that give the same color form a group, in the order of their ranks in comm; color < 0: in none, returns NULL.
 * All ranks of comm must call it. The name is for the account and messages. */
Comm *comm_split(Comm *comm, int color, const char *name);
int comm_rank(const Comm *comm);
int comm_size(const Comm *comm);
const char *comm_name(const Comm *comm);
const Comm *comm_next(const Comm *comm);        /* this rank's group that was made after it, world being the first; or
                                                 * NULL */
int comm_local_rank(void);                      /* among the ranks on this machine */
int comm_machine(void);                         /* the world's first rank on this machine */
int comm_local_size(void);
int comm_local_threads(void);                   /* this rank's share of the cores that these may use together; no more
                                                 * than a launcher has bound it to; 0: not known */
Range comm_part(const Comm *comm, int64_t count);           /* this rank's, by range_part */

/* ---- collectives: all ranks of the group call them, in the same order, with the same counts ----
 * A part may lie inside the full tensor, at its own place (in place); after an in-place reduce_scatter the others'
 * parts are undefined. On a group of one each is a copy, or nothing. */
void comm_all_reduce(Comm *comm, Tensor t, Reduce reduce);
void comm_reduce_scatter(Comm *comm, Tensor out, Tensor in);    /* out: our part of the sum over the ranks' ins */
void comm_all_gather(Comm *comm, Tensor out, Tensor in);        /* in: our part of out */
void comm_all_to_all(Comm *comm, Tensor out, Tensor in);        /* nth part of in to rank n, of out from rank n; parts
                                                                 * are equal, and out is apart from in */
void comm_broadcast(Comm *comm, Tensor t, int root);
void comm_barrier(Comm *comm);

/* ---- the same, and messages, started only: buffers are not to be touched until comm_wait ----
 * With --check the start of a collective waits until all ranks of its group have come to it. */
Request *comm_start_all_reduce(Comm *comm, Tensor t, Reduce reduce);
Request *comm_start_reduce_scatter(Comm *comm, Tensor out, Tensor in);
Request *comm_start_all_gather(Comm *comm, Tensor out, Tensor in);
Request *comm_start_all_to_all(Comm *comm, Tensor out, Tensor in);
Request *comm_start_broadcast(Comm *comm, Tensor t, int root);
/* To a neighbour in the ring of the group's ranks, and from one. Messages between two ranks must be received in the
 * order sent: NCCL knows no tags. --check compares the tags, counts and types of both sides. A send never waits for a
 * receive of its own rank. */
Request *comm_start_send(Comm *comm, Tensor t, int to, int tag);
Request *comm_start_recv(Comm *comm, Tensor t, int from, int tag);
/* in to the next rank, out from the one before, around the ring: counts as a send. Alone: a copy, and a call that sends
 * nothing. */
Request *comm_start_shift(Comm *comm, Tensor out, Tensor in);

/* Waits until the buffers may be used, and sets the request to NULL. NULL: nothing to wait for. With NCCL not the host
 * waits but the GPU's stream: operators that are called from now on find them ready. */
void comm_wait(Request **request);

/* ---- numbers on the host: losses, norms, flags ---- not in the account of bytes */
double comm_sum(Comm *comm, double x);          /* in the order of ranks: the same number on all */
void comm_gather_host(Comm *comm, void *all, const void *mine, int64_t bytes);  /* `bytes` of each, in their order */

/* ---- the account ---- */
typedef struct {
    const char *group, *op;
    int64_t calls, bytes;                       /* of this step */
    int64_t predicted_calls, predicted_bytes;
} CommAccount;

/* In predict(): so many calls in a step, each on a full tensor of so many REAL elements; bytes are comm's work. SHIFT:
 * of comm_start_shift, which count as SEND. The second: of elements that are stored as dtype. */
void comm_predict(Comm *comm, CommOp op, int64_t calls, int64_t elements);
void comm_predict_as(Comm *comm, CommOp op, DType dtype, int64_t calls, int64_t elements);

/* When all groups are made and comm_predict has named, for each, all operations that there will be, if only between
 * steps: connects their ranks for these, so that none has to be connected amid a step. All ranks. True: a library has
 * taken memory from the GPU for it, which it keeps. */
bool comm_connect(void);

int comm_account(CommAccount *accounts, int most);  /* how many: those with calls or a prediction */
int64_t comm_bytes(void);                           /* sent in this step, over all groups */
/* With --report: seconds of this step in which this rank only waited, for transfers and for numbers of other ranks.
 * What passed while it computed is not among them. */
double comm_waited(void);
double comm_late(void);         /* --pretend: how much of it because real transfers took longer than pretended ones */
void comm_account_reset(void);                      /* a step begins */

/* ---- the program's beginning and end ---- */
/* Joins the ranks that mpiexec started; started as it is, a program is a world of one. After it, fail() ends all
 * ranks. comm_exit is how a program ends in agreement: every rank calls it, with the same status. */
void comm_begin(int *argc, char ***argv);

/* Before device_init, on all ranks: takes the library that carries tensors, by --comm and by the GPUs that there are,
 * sets what it wants in the environment, and returns it in words: "MPI, through the host's memory: ranks 0 and 1 share
 * GPU 0000:01:00.0 of alpha, which has 2 ranks, and 1 GPU for them". */
const char *comm_choose(void);

_Noreturn void comm_exit(int status);

/* Whether what started the ranks here (mpiexec's process on this machine) has died: the rank should end. */
bool comm_orphaned(void);

/* While starting, every rank runs the same checks, and a rank may be the only one whose check fails (its machine has
 * less memory). Each rank calls this when its own went well: if another's didn't, that one prints its line, and all
 * end alike. From comm_started on, a rank that fails takes the others with it at once. */
void comm_agree(void);
void comm_started(void);

/* Some rank reads or writes so many bytes, as long as its disk takes: a second more than --timeout for every 10 MB,
 * until it is called with 0. */
void comm_allow(double bytes);

/* Lines "NAME VALUE" that must be the same on all ranks: otherwise the program ends and shows the first that differ. */
void comm_same(const char *lines);

/* "rank 0 = alpha:4711, rank 1 = alpha:4712", a line a machine, to tell which process a launcher speaks of. */
char *comm_rank_table(void);

/* MPI moves data only while it is called: every operator calls this when it ends. It also answers a rank that has
 * waited too long and asks who is still there. NCCL's errors are found here. */
void comm_progress(void);

#endif
