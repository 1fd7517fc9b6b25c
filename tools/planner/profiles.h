/* Profiles: what a framework does, and what its kernels reach on a generation of GPUs. */
#ifndef PROFILES_H
#define PROFILES_H

#include "costs.h"

typedef struct {
    const char *name;               /* of --for */
    const char *command;            /* whose command is printed; also in messages */
    int gradients;                  /* bytes per parameter */
    double memory_limit;            /* fraction of a GPU's memory that a grid may use */
    int stages;                     /* of ZeRO that it has: bit z for ZeRO-z */
    double attention[2];            /* of Ampere and Hopper: fraction of the peak, by a publication; 0: as fitted */
    bool interleaves;               /* pipeline stages in chunks */
    const char *measured;           /* GPUs on which the constants reproduce runs of it */
} Traits;
extern const Traits frameworks[FRAMEWORKS];
const char *framework_names(void);                      /* "09|megatron|..." */
Framework framework_named(const char *name);            /* FRAMEWORKS: none */

/* Constants of a kind of GPU, fitted to published runs; at most six. */
typedef struct {
    const char *name;
    Constants constants, start;     /* start: where a fit begins; 0: not fitted */
    double error;                   /* median, of runs of a source that the fit leaves out: the worst source */
    const char *source;
} Profile;
enum { NANOTRON, UNFUSED, AMPERE, HOPPER, PROFILES };
extern const Profile profiles[PROFILES];
int profile_for(Framework f, const Hardware *h);        /* its index */
/* Its constants: of these profiles (NULL: of the table), with the attention of the framework. */
Constants constants_for(Framework f, const Hardware *h, const Constants of[PROFILES]);
extern const Constants exact_constants;                 /* for --pretend: simulated hardware reaches its numbers */
Constants measured_constants(Framework f, const Hardware *h);   /* of a machine that 00_collectives measured */

#endif
