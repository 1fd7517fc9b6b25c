/* All of common/, for a train.c. It has layers, bottom first: a file includes only headers above its own in this list
 * (tests/layers.sh checks that). */
#ifndef ULTRASCALE_H
#define ULTRASCALE_H

#include <math.h>
#include <stdlib.h>

/* bottom */
#include "error.h"          /* one line that says what is wrong; all ranks end */
#include "print.h"          /* output for the user; numbers in words */
#include "random.h"         /* counter-based random numbers */
#include "options.h"        /* the command line's choices; sizes of known models */

/* memory */
#include "tensor.h"         /* a pointer, a name, a dtype, a shape */
#include "memory.h"         /* the memory tracker: bytes by category, measured and predicted */
#include "device.h"         /* the CPU or GPU: cpu/device.c, cuda/device.cu */
#include "trace.h"          /* the timeline */
#include "allocate.h"       /* allocating tensors */
#include "formats.h"        /* bf16, fp16 and fp8 */

/* ranks */
#include "comm.h"           /* groups of ranks, collectives, point-to-point transfers, traffic counters. Its files, each
                             * of which calls only earlier ones, are comm/: ranks mpi nccl transport traffic
                             * pretend check groups */

/* compute */
#include "operands.h"       /* what operators take: the rule of shapes and dtypes */
#include "operator.h"       /* checks and statistics around every operator */
#include "ops.h"            /* the operators: ops.c; their kernels in cpu/ and cuda/ */
#include "model.h"          /* the parameters, and where each lies */
#include "optimizer.h"      /* AdamW */

/* files */
#include "outputs.h"        /* output files: complete or absent */
#include "data.h"           /* batches */
#include "safetensors.h"    /* tensors in files */
#include "checkpoint.h"     /* the full model in files */

/* around a step */
#include "command_line.h"   /* options: parsing, --help */
#include "prediction.h"     /* predicted memory and traffic, compared with the machine and the measurements */
#include "report.h"         /* memory, traffic and time, as JSON; a CSV row per step */
#include "timeline.h"       /* a step of all ranks, drawn */
#include "run.h"            /* a run's start, steps and end */
#include "text.h"           /* validation loss, samples */

#endif
