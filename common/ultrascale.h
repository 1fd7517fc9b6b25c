/* All of common/, for a train.c. It stands in layers, bottom first: each unit includes only units above it in this list
 * (tests/layers.sh). */
#ifndef ULTRASCALE_H
#define ULTRASCALE_H

#include <math.h>
#include <stdlib.h>

/* bottom */
#include "error.h"          /* what is wrong, in one line; all ranks end alike */
#include "print.h"          /* what a person reads; numbers in words */
#include "random.h"         /* counter-based random numbers */
#include "options.h"        /* what the command line chose */
#include "presets.h"        /* sizes of known models */

/* memory */
#include "tensor.h"         /* a pointer, a name, a type, a shape */
#include "memory.h"         /* the account of every byte, and what was predicted */
#include "device.h"         /* the CPU or GPU that computes: cpu/device.c, cuda/device.cu */
#include "trace.h"          /* the timeline */
#include "allocate.h"       /* memory for tensors */
#include "formats.h"        /* the small number formats */

/* ranks */
#include "comm.h"           /* groups of ranks, collectives, messages: comm/ */

/* compute */
#include "operator.h"       /* what is around every operator */
#include "ops.h"            /* the operators: ops.c; their kernels in cpu/ and cuda/ */
#include "model.h"          /* which parameters there are, and where */
#include "optimizer.h"      /* AdamW */

/* files */
#include "outputs.h"        /* what a run leaves, written by one program at a time */
#include "data.h"           /* batches */
#include "safetensors.h"    /* tensors in files */
#include "checkpoint.h"     /* the whole model in files: checkpoint/ */

/* around a step */
#include "command_line.h"   /* options: --help, what they may be */
#include "playbook.h"       /* its formulas, to compare memory with */
#include "prediction.h"     /* memory and traffic: what a step will take, and took */
#include "metrics.h"        /* a row a step, as CSV */
#include "report.h"         /* memory, traffic and time, as JSON */
#include "run.h"            /* a run's life, and what it leaves */
#include "text.h"           /* evaluation and samples */

#endif
