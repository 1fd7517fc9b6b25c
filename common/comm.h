/* Communication between the ranks of a run: MPI starts them and gives each its number. */
#ifndef COMM_H
#define COMM_H

#include <stdbool.h>
#include <stdint.h>

typedef struct Comm Comm;
extern Comm *world;                             /* all ranks */

/* Joins the ranks that mpiexec started; started as it is, a program is a world of one. After it, fail() ends all
 * ranks. comm_exit is how a program ends in agreement: every rank calls it, with the same status. */
void comm_begin(int *argc, char ***argv);
_Noreturn void comm_exit(int status);

int comm_rank(const Comm *comm);
int comm_size(const Comm *comm);
int comm_local_rank(void);                      /* among the ranks on this machine */
int comm_local_size(void);

/* While starting, every rank runs the same checks, and a rank may be the only one whose check fails (its machine has
 * less memory). Each rank calls this when its own went well: if another's didn't, that one prints its line, and all
 * end alike. From comm_started on, a rank that fails takes the others with it at once. */
void comm_agree(void);
void comm_started(void);

/* Host numbers: losses, norms, flags. In a fixed order; not in the account of bytes. */
double comm_sum(Comm *comm, double x);

/* MPI moves data only while it is called: every operator calls this when it ends. */
void comm_progress(void);

#endif
