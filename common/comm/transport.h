/* Declarations that the files of comm/ share, bottom first: a file calls only its own functions and those of files
 * above it here. */
#ifndef TRANSPORT_H
#define TRANSPORT_H

#include "comm.h"

extern const char *const comm_op_name[COMM_OPS];

struct Comm {
    const char *name;
    int rank, size, *members;                   /* members: their ranks in world; NULL: world itself */
    void *mpi, *nccl;                           /* the group in MPI and in NCCL */
    int64_t operations;                         /* collectives started so far */
    bool used[COMM_OPS];                        /* operations that comm_predict has named */
    bool sends[2];                              /* comm_sends_to: to the next rank, to the previous one */
    int64_t calls[COMM_OPS], bytes[COMM_OPS], predicted_calls[COMM_OPS], predicted_bytes[COMM_OPS];
    Comm *next;                                 /* the group created next */
};

/* ---- ranks.c: starts the ranks, splits them into groups, waits, and ends ranks that wait too long ---- */

void ranks_end(void);
_Noreturn void ranks_abort(int status);         /* ends all ranks */

/* Until comm_deadline_met, a rank that takes longer than --timeout prints what it is doing and ends all ranks. Those
 * that wait print a line each. A rank without a line is the one that the others wait for. */
void comm_deadline(const char *format, ...) __attribute__((format(printf, 1, 2)));
void comm_deadline_met(void);
_Noreturn void comm_deadline_passed(void);      /* prints the line and ends all ranks now */

void comm_wait_for(bool (*done)(void *handle), void **handle);  /* until *handle is done; sets it to NULL */

/* ---- mpi.c and nccl.c: carry tensors ---- */

/* One transfer of this rank, in a group of several ranks. out and in are those of comm.h's operation; ALL_REDUCE and
 * BROADCAST have only out. count: elements of the full tensor; EXCHANGE: of in. peer: the receiver of a SEND or
 * EXCHANGE, RECV's sender, BROADCAST's root. from: EXCHANGE's sender. */
typedef struct {
    Comm *comm;
    CommOp op;                                  /* all ranks call the same, except SEND, RECV and EXCHANGE */
    int64_t number;                             /* of the group's collectives */
    Reduce reduce;
    void *out, *in;
    int64_t count, out_count;                   /* out_count: elements of out */
    DType dtype;
    int peer, from, tag;
    bool rendezvous;                            /* SEND: does not end before its RECV has started */
} Transfer;

/* Tensors travel by MPI or by NCCL. NULL: nothing to do. */
typedef struct {
    void *(*start)(Transfer t);                 /* returns a handle */

    /* Returns true once the buffers are ready for what the host does, or queues on the device, from now on; the handle
     * is then freed. */
    bool (*done)(void *handle);
    void (*prepare)(void);                      /* before CUDA's first call in this process */
    void (*connect)(Comm *comm);                /* before a group's first transfer; all groups have their `used` */
    void (*end)(void);                          /* before the program ends */
} Transport;

extern const Transport transport_mpi;           /* a GPU's tensors through the host's memory */
void *mpi_start_host(Transfer t);               /* buffers in host memory; returns a handle of transport_mpi */
bool mpi_done(void *handle);

void mpi_check_count(const Comm *comm, CommOp op, DType dtype, int64_t count);  /* fails if MPI cannot count so far */

extern const Transport *const transport_nccl;   /* tensors from GPU to GPU; NULL: not in this build */

/* MPI guarantees tags up to 32,767 only, so 12 bits of a tag are sent. --pretend and --check use larger tags. */
enum { TAGS = 4096, CLOCK_TAG = TAGS, LABEL_TAG = 2 * TAGS };

/* ---- transport.c ---- */

extern const Transport *comm_transport;         /* the one that carries tensors */

/* ---- traffic.c: the counters of comm.h ---- */

int64_t traffic_count(const Transfer *t);       /* counts a transfer; returns the bytes that this rank sends */
void traffic_step_begins(void);

/* ---- pretend.c and check.c: instruments of --pretend and --check, beside a transfer ---- */

enum { LABEL = 64, SENT_LABEL = LABEL + 8 };    /* bytes: "tag 3 and 100 F64", and the sender's comm_hops */

/* --pretend: seconds of comm_clock. Two F64, which MPI carries. */
typedef struct {
    double ready;                               /* when the last of a transfer's ranks was ready */
    double seconds;                             /* that the transfer takes from then on */
} LinkTime;

typedef struct {
    void *clock;                                /* MPI's handle, for the two below; NULL: no --pretend, or arrived */
    LinkTime transfer, received;                /* received: what an exchange receives */
} Pretended;

typedef struct {
    Request *before;                            /* the request started before this one and not waited for */
    Tensor written, watched;                    /* must hold NaN until the wait; must not change until then */
    void *out_copy, *in_copy;
    void *label;                                /* MPI's handle, for the labels below */
    char own[SENT_LABEL], sent[SENT_LABEL], wanted[LABEL];     /* of what is sent; of what is received: its sender's,
                                                                 * ours */
    int64_t hops;                               /* comm_hops at its start */
} Checked;

struct Request {
    Transfer t;
    Tensor out, in;
    void *handle;                               /* the transport's */
    int span;                                   /* in the trace */
    Pretended pretended;
    Checked checked;
};

static inline bool is_point_to_point(CommOp op)
{
    return op == SEND || op == RECV || op == EXCHANGE;
}

void pretend_step_begins(void);
void pretend_left_together(int span, double last);      /* all left a comm_sum, traced as span, when the last came */
void pretend_begin(Request *q, int64_t bytes);  /* before the transfer; bytes: that this rank sends */
void pretend_end(Request *q, double waited_from);       /* waits for its simulated end; waited_from: by comm_clock */

void check_agreement(const Transfer *t, const char *name);      /* compares the ranks' calls of a collective */
void check_begin(Request *q, const char *name); /* before the transfer of tensor `name`: check_agreement, then gives the
                                                 * transfer private copies; sends a point-to-point label */
void check_label(Request *q);                   /* waits for the labels, and compares them */
void check_end(Request *q);                     /* after the transfer: fails if a buffer in flight was touched */
void check_waited_for(void);                    /* between steps: fails if a request was never waited for */

#endif
