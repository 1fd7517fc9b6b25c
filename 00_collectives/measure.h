/* How long a collective takes, and a hop. */
#ifndef MEASURE_H
#define MEASURE_H

#include "../common/ultrascale.h"

/* Of an algorithm: the hops that follow one another, and the bytes that these send, over the tensor's. */
typedef struct { double hops, volume; } Steps;

typedef struct {
    const char *label;
    void (*run)(Comm *, Tensor);                        /* on all ranks of the group */
    Steps steps;
} Column;

/* nccl-tests: what a rank must send and receive at least, over the tensor's bytes. name: "all_reduce"; n: ranks. */
double bus_factor(const char *name, int n);

/* Prints a table of times for sizes that double from min to max, with `ours` columns of algorithms and one more of the
 * library (run NULL: it has none). Below it the fit, and where the ring, which comes first, passes others. plot: a
 * figure to draw, or NULL. t has at least max bytes. */
void measure_table(const char *name, const Column *columns, int ours, Tensor t, int64_t min, int64_t max,
                   const char *plot);

/* Writes --machine's file. shift: sends to the next rank. links: groups of the first 2, 4, 8, ... ranks; NULL where
 * this rank is in none. between: a group with a rank per node; NULL: there is one node. */
void measure_machine(const char *path, void (*shift)(Comm *, Tensor), Comm **links, Comm *between, Tensor t,
                     int64_t max);

#endif
