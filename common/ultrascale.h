/* All of common/, for a train.c. It has rooms, and in each of them layers, bottom first: a file includes only headers
 * above its own in this list (tests/layers.sh checks that). */
#ifndef ULTRASCALE_H
#define ULTRASCALE_H

#include <math.h>
#include <stdlib.h>

/* ==== What a program computes with ==== */

/* base: what everything stands on */
#include "base/error.h"                 /* one line that says what is wrong; all ranks end */
#include "base/print.h"                 /* output for the user; numbers in words */
#include "base/random.h"                /* counter-based random numbers */
#include "base/options.h"               /* the command line's choices; sizes of known models */
#include "base/tensor.h"                /* a pointer, a name, a dtype, a shape */
#include "base/memory.h"                /* the memory tracker: bytes by category, measured and predicted */
#include "base/threads.h"               /* the CPU's threads, and their cores */
#include "base/start.h"                 /* nohup; to start the program again */
#include "base/device.h"                /* the CPU or GPU: device.c in transformer/cpu, device.cu in transformer/cuda */
#include "base/trace.h"                 /* the timeline */
#include "base/allocate.h"              /* allocating tensors */
#include "base/formats.h"               /* bf16, fp16 and fp8 */

/* comm: ranks. Its files, each of which calls only earlier ones, are: ranks mpi nccl transport traffic pretend check
 * groups */
#include "comm/comm.h"                  /* groups of ranks, collectives, point-to-point transfers, traffic counters */

/* transformer: operators, the model, its optimizer and its data */
#include "transformer/operands.h"       /* what operators take: the rule of shapes and dtypes */
#include "transformer/op_call.h"        /* checks and statistics around every operator */
#include "transformer/ops.h"            /* the operators; their kernels are in cpu/ and cuda/ */
#include "transformer/model.h"          /* the parameters, and where each lies */
#include "transformer/optimizer.h"      /* AdamW */
#include "transformer/data.h"           /* batches */

/* ==== The laboratory: run, around the training step ==== */

#include "run/outputs.h"                /* output files: complete or absent */
#include "run/json.h"                   /* JSON files */
#include "run/config_file.h"            /* the model as Hugging Face describes it */
#include "run/safetensors.h"            /* tensors in files */
#include "run/saved_steps.h"            /* a directory of checkpoints: step-N and latest */
#include "run/checkpoint.h"             /* the full model in files */
#include "run/command_line.h"           /* options: parsing, --help */
#include "run/prediction.h"             /* predicted memory and traffic, compared with the machine and the counts */
#include "run/report.h"                 /* memory, traffic and time, as JSON; a CSV row per step */
#include "run/timeline.h"               /* a step of all ranks, drawn */
#include "run/run.h"                    /* a run's start, steps and end */
#include "run/evaluation.h"             /* validation loss, samples */

#endif
