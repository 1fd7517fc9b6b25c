/* What the files of comm/ share: transports, which carry tensors; MPI, which starts ranks; requests; waiting. */
#ifndef TRANSPORT_H
#define TRANSPORT_H

#include "../comm.h"

enum { RECV = COMM_OPS, NUMBER, OPERATIONS };   /* RECV: only its sender counts it; NUMBER: comm_sum's, for --check */
extern const char *const comm_op_name[OPERATIONS];

struct Comm {
    const char *name;
    int rank, size;
    void *mpi, *nccl;                           /* what MPI and NCCL know the group by */
    int64_t operations;                         /* started so far */
    bool used[COMM_OPS + 1];                    /* comm_predict has named it; the last: SHIFT */
    int64_t calls[COMM_OPS], bytes[COMM_OPS], predicted_calls[COMM_OPS], predicted_bytes[COMM_OPS];
    Comm *next;                                 /* of all groups, in the order of their making */
};

/* ---- Transports: what carries tensors ---- */

/* One transfer of this rank, in a group of more than one. out and in are as comm.h says of the operation; ALL_REDUCE
 * and BROADCAST have out alone. count: elements of the full tensor. peer: SEND's receiver, RECV's sender,
 * BROADCAST's root. */
typedef struct {
    Comm *comm;
    int op;                                     /* a CommOp, or RECV */
    int64_t operation;                          /* the how-manieth of the group, for messages */
    Reduce reduce;
    void *out, *in;
    int64_t count;
    DType dtype;
    int peer, tag;
    bool shift;                                 /* SEND, RECV: a half of comm_start_shift's; the send comes first */
    bool rendezvous;                            /* SEND: doesn't end before its RECV has begun */
    bool staged;                                /* for MPI: by staged.c */
} Transfer;

typedef struct {
    const char *name;
    void *(*start)(Transfer t);
    /* True: what the host does now, or queues on the device, finds the buffers ready; the handle is gone. A transfer
     * may go on only while this is called, or progress. */
    bool (*done)(void *handle);

    /* The rest may be NULL. */
    void (*prepare)(void);                      /* before the device is taken */
    bool (*progress)(void);                     /* of all transfers; fails if one has failed. True: the device still has
                                                 * some of those to do that are done for the host */
    bool (*pending)(void *handle);              /* the device hasn't come to its start: nobody else is waited for */
    bool (*unfinished)(Transfer *t, double *since);     /* one that is done, but which the device still waits for, and
                                                         * since when: the oldest */
    /* Before the first transfer, of groups of more than one in the order of their making: what comm->used names. Waits
     * for the group's ranks, maybe inside a library. */
    void (*connect)(Comm *comm);
    bool (*end)(void);                          /* to be called until true, before the program ends */
} Transport;

extern const Transport transport_mpi;           /* tensors in the host's memory */
extern const Transport transport_staged;        /* a GPU's, over MPI and through the host's memory */
extern const Transport *const transport_nccl;   /* GPUs' own; NULL: this build is without */

/* ---- MPI, whatever carries tensors: starts the ranks, and carries numbers of the host ---- */

void mpi_begin(int *argc, char ***argv, Comm *all, int *machine, int *local_rank, int *local_size, int *local_threads);
void *mpi_split(Comm *comm, int color, int *rank, int *size);   /* NULL: in no group */
void mpi_end(void);
_Noreturn void mpi_abort(int status);           /* and takes all other ranks along */

/* `bytes` bytes of host memory of each rank, to all ranks, in their order; a handle of transport_mpi. */
void *mpi_start_gather(Comm *comm, void *all, const void *mine, int64_t bytes);

/* Apart from all groups, so that it arrives whatever they are doing: one short text from a rank to all others. */
enum { ALARM_TEXT = 128 };
void mpi_alarm(const char text[ALARM_TEXT]);
int mpi_alarmed(char text[ALARM_TEXT]);         /* who has sent one, with its text; -1: nobody. Lets transfers go on. */

/* MPI promises tags to 32,767 only. So only 12 bits of a message's tag travel, which is enough, since messages are
 * received in the order sent. The numbers above them are for what --pretend and --check send. */
enum { SHIFT_TAG = -1, TAGS = 4096, CLOCK_TAG = TAGS, LABEL_TAG = 2 * TAGS };

/* ---- groups.c ---- */

struct Request {
    Comm *comm;
    int op, span;                               /* span: in the trace */
    int peer;                                   /* a message's */
    int64_t operation;                          /* a collective's number in its group */
    void *handle;                               /* the transport's */
    Request *also;                              /* a shift's other half */
    Request *open;                              /* --check: the one started before it and not waited for */
    /* --pretend */
    void *clock;                                /* MPI's, for `when` */
    double when[2];                             /* from when on all its ranks take part; how long it then takes */
    double begin;                               /* a message's: when it left; a receive's: when it was started */
    /* --check: check.c */
    Tensor out, in, written, watched;
    void *out_copy, *in_copy;
    void *label;                                /* MPI's, for the two below */
    int32_t sent[4], wanted[4];                 /* a message: what its sender says of it, and its receiver */
};

/* ---- start.c ---- */

extern bool comm_starting;                      /* a rank that fails waits until all know */
extern const Transport *comm_transport;         /* of tensors: comm_choose's choice */

/* ---- wait.c ---- */

/* Until a handle is done; it is then NULL. q: the request that it belongs to, or NULL. */
void comm_wait_for(const Transport *by, void **handle, const Comm *comm, const char *what, const Request *q);

/* `bytes` bytes of each rank, to all; waits. */
void comm_gather(Comm *comm, void *all, const void *mine, int64_t bytes, const char *what);

extern char alarm_fails[ALARM_TEXT];            /* the alarm of a rank that ends the others, and has said why */
double comm_deadline(void);                     /* --timeout, with what comm_allow adds; 0: there is none */
/* For a transport whose calls wait by themselves: NCCL's, and CUDA's where a queue is full, which it stays while a
 * transfer doesn't end. There only the watchdog keeps the time; it hears once a second from a rank whose device has
 * transfers to do. todo: what the rank has until the deadline to do, and NULL: nothing; now: not a second later. */
void comm_watch(const char *todo, bool now);
void comm_transfer_begins(void);
void comm_waiting_begins(void);                 /* from now on the device, and signals, are looked after */

void comm_wait_begins(void);                    /* what passes between these two is comm_waited's */
void comm_wait_ends(void);
void comm_was_late(double seconds);             /* so much of it is comm_late's */
void comm_waits_reset(void);

/* ---- --check: check.c ---- */

void check_agreement(const Transfer *t, const char *name);      /* before a collective, over its group */
void check_begin(Request *q, Transfer *t);      /* gives the transfer copies to work on; a message its label */
void check_label(const Request *q);             /* when it has come */
void check_end(Request *q);                     /* after the transfer: nobody has touched what was under way */
void check_waited_for(void);                    /* at a step's begin: no transfer is under way that nobody waited for */

#endif
