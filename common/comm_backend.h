/* What comm.c and a transport (comm_mpi.c, comm_nccl.c) share. */
#ifndef COMM_BACKEND_H
#define COMM_BACKEND_H

#include "comm.h"

enum { RECV = COMM_OPS };                       /* a transfer too, though only its sender counts it */

struct Comm {
    const char *name;
    int rank, size;
    void *transport;                            /* the transport's own */
    int64_t operations;                         /* started so far */
    int64_t calls[COMM_OPS], bytes[COMM_OPS], predicted_calls[COMM_OPS], predicted_bytes[COMM_OPS];
    Comm *next;                                 /* of all groups, in the order of their making */
};

/* One transfer of this rank, in a group of more than one. out and in are as comm.h says of the operation; ALL_REDUCE
 * and BROADCAST have out alone. count: elements of the full tensor. peer: SEND's receiver, RECV's sender,
 * BROADCAST's root. */
typedef struct {
    Comm *comm;
    int op;                                     /* a CommOp, or RECV */
    Reduce reduce;
    void *out, *in;
    int64_t count;
    DType dtype;
    int peer, tag;
    bool rendezvous;                            /* SEND: doesn't end before its RECV has begun */
} Transfer;
void *transport_start(Transfer t);
bool transport_done(void *handle);              /* true: it is done, and the handle gone */

/* `bytes` bytes of host memory of each rank, to all ranks, in their order. */
void *transport_start_gather(Comm *comm, void *all, const void *mine, int64_t bytes);

void transport_begin(int *argc, char ***argv, Comm *all, int *local_rank, int *local_size);
void *transport_split(Comm *comm, int color, int *rank, int *size);     /* NULL: in no group */
void transport_end(void);
_Noreturn void transport_abort(int status);     /* and takes all other ranks along */

/* Apart from all groups, so that it arrives whatever they are doing: one short text from a rank to all others. */
enum { ALARM_TEXT = 128 };
void transport_alarm(const char text[ALARM_TEXT]);
int transport_alarmed(char text[ALARM_TEXT]);   /* who has sent one, with its text; -1: nobody. Lets transfers go on. */

#endif
