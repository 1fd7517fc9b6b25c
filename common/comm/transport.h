/* Declarations that the files of comm/ share: transports, which carry tensors; MPI, which starts ranks; requests;
 * waiting. */
#ifndef TRANSPORT_H
#define TRANSPORT_H

#include "../comm.h"

enum { RECV = COMM_OPS, NUMBER, OPERATIONS };   /* RECV: counted by its sender only; NUMBER: comm_sum, for --check */
extern const char *const comm_op_name[OPERATIONS];

struct Comm {
    const char *name;
    int rank, size;
    void *mpi, *nccl;                           /* the group in MPI and in NCCL */
    int64_t operations;                         /* collectives started so far */
    bool used[COMM_OPS + 1];                    /* operations that comm_predict has named; the last: SHIFT */
    int64_t calls[COMM_OPS], bytes[COMM_OPS], predicted_calls[COMM_OPS], predicted_bytes[COMM_OPS];
    Comm *next;                                 /* the group created next */
};

/* ---- Transports: MPI, MPI through the host, NCCL ---- */

/* One transfer of this rank, in a group of several ranks. out and in are those of comm.h's operation; ALL_REDUCE and
 * BROADCAST have only out. count: elements of the full tensor. peer: SEND's receiver, RECV's sender, BROADCAST's
 * root. */
typedef struct {
    Comm *comm;
    int op;                                     /* a CommOp, or RECV */
    int64_t operation;                          /* its number in the group, for messages */
    Reduce reduce;
    void *out, *in;
    int64_t count;
    DType dtype;
    int peer, tag;
    bool shift;                                 /* SEND, RECV: one half of comm_start_shift; the send starts first */
    bool rendezvous;                            /* SEND: does not end before its RECV has started */
    bool staged;                                /* for MPI: staged.c started it */
} Transfer;

typedef struct {
    const char *name;
    void *(*start)(Transfer t);                 /* returns a handle */

    /* Returns true once the buffers are ready for what the host does, or queues on the device, from now on; the handle
     * is then freed. Transfers may progress only inside this call and `progress`. */
    bool (*done)(void *handle);

    /* The rest may be NULL. */
    void (*prepare)(void);                      /* before the device is taken */
    bool (*progress)(void);                     /* lets all transfers progress; fails if one has failed. Returns whether
                                                 * the device still has some that are done for the host */
    bool (*pending)(void *handle);              /* the device has not reached its start: no other rank is waited for */
    bool (*unfinished)(Transfer *t, double *since);     /* finds the oldest that is done for the host but not on the
                                                         * device, and since when the device waits for it */

    /* Connects a group of several ranks for the operations in comm->used, before the first transfer, in the order in
     * which groups were created. Waits for the group's ranks, maybe inside a library. */
    void (*connect)(Comm *comm);
    bool (*end)(void);                          /* call it until it returns true, before the program ends */
} Transport;

extern const Transport transport_mpi;           /* tensors in the host's memory */
extern const Transport transport_staged;        /* tensors on a GPU, over MPI through the host's memory */
extern const Transport *const transport_nccl;   /* tensors from GPU to GPU; NULL: not in this build */

/* ---- MPI, whichever transport carries tensors: starts the ranks, and carries numbers between hosts ---- */

void mpi_begin(int *argc, char ***argv, Comm *all, int *machine, int *local_rank, int *local_size, int *local_threads);
void *mpi_split(Comm *comm, int color, int *rank, int *size);   /* NULL: in no group */
void mpi_end(void);
_Noreturn void mpi_abort(int status);           /* ends all other ranks too */

/* Starts to gather `bytes` bytes of host memory from each rank to all, in rank order; returns a transport_mpi
 * handle. */
void *mpi_start_gather(Comm *comm, void *all, const void *mine, int64_t bytes);

/* Alarms: one short text from a rank to all others, outside all groups, so that it arrives whatever they do. */
enum { ALARM_TEXT = 128 };
void mpi_alarm(const char text[ALARM_TEXT]);
int mpi_alarmed(char text[ALARM_TEXT]);         /* returns an alarm's sender, and its text; -1: no alarm. Lets MPI
                                                 * progress */

/* MPI guarantees tags up to 32,767 only, so 12 bits of a tag are sent. That is enough, since receives are posted in the
 * order of the sends. Larger tags are --pretend's and --check's. */
enum { SHIFT_TAG = -1, TAGS = 4096, CLOCK_TAG = TAGS, LABEL_TAG = 2 * TAGS };

/* ---- groups.c ---- */

struct Request {
    Comm *comm;
    int op, span;                               /* span: in the trace */
    int peer;                                   /* of a send or receive */
    int64_t operation;                          /* a collective's number in its group */
    void *handle;                               /* the transport's */
    Request *also;                              /* a shift's other half */
    Request *open;                              /* --check: the request started before it and not waited for */
    /* --pretend */
    void *clock;                                /* MPI's handle, for `when` */
    double when[2];                             /* when the last of its ranks joined; seconds that it takes from then */
    double begin;                               /* when a send left, or a receive was started */
    /* --check: check.c */
    Tensor out, in, written, watched;
    void *out_copy, *in_copy;
    void *label;                                /* MPI's handle, for the two below */
    int32_t sent[4], wanted[4];                 /* of a send or receive: the sender's label, the receiver's */
};

/* ---- start.c ---- */

extern bool comm_starting;                      /* start-up: a rank that fails waits until all ranks know */
extern const Transport *comm_transport;         /* comm_choose's choice */

/* ---- wait.c ---- */

/* Waits until *handle is done, and sets it to NULL. q: the request that it belongs to, or NULL. */
void comm_wait_for(const Transport *by, void **handle, const Comm *comm, const char *what, const Request *q);

/* Gathers `bytes` bytes from each rank to all; waits. */
void comm_gather(Comm *comm, void *all, const void *mine, int64_t bytes, const char *what);

extern char alarm_fails[ALARM_TEXT];            /* the alarm of a rank that ends the others and has printed why */
double comm_deadline(void);                     /* seconds: --timeout and comm_extend_timeout's; 0: no deadline */

/* Sets the watchdog for calls that wait by themselves: NCCL's, and CUDA's while a queue is full, which it stays until a
 * transfer ends. There only the watchdog keeps the time; a rank whose device has transfers in flight calls this once
 * per second. todo: the rank's task until the deadline; NULL: none. now: do not wait for the second to pass. */
void comm_watch(const char *todo, bool now);
void comm_transfer_begins(void);
void comm_waiting_begins(void);                 /* installs what runs while the host waits for its device, and SIGCONT's
                                                 * handler */

void comm_wait_begins(void);                    /* comm_waited counts the time between these two */
void comm_wait_ends(void);
void comm_was_late(double seconds);             /* adds to comm_pretend_overrun */
void comm_waits_reset(void);

/* ---- --check: check.c ---- */

void check_agreement(const Transfer *t, const char *name);      /* before a collective: compares the ranks' calls */
void check_begin(Request *q, Transfer *t);      /* gives the transfer private copies; sends a point-to-point label */
void check_label(const Request *q);             /* compares labels, once they have arrived */
void check_end(Request *q);                     /* after the transfer: fails if a buffer in flight was touched */
void check_waited_for(void);                    /* between steps: fails if a request was never waited for */

#endif
