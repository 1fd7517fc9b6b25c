/* All parts at once, for a stage's train.c. Read them in this order: */
#ifndef ULTRASCALE_H
#define ULTRASCALE_H

#include <math.h>
#include <stdlib.h>

#include "tensor.h"         /* a pointer, a name, a type, a shape */
#include "memory.h"         /* the account of every byte, and what was predicted */
#include "device.h"         /* the CPU or GPU that computes */
#include "ops.h"            /* what is computed */
#include "model.h"          /* which parameters there are, and where */
#include "optimizer.h"      /* AdamW */
#include "data.h"           /* batches */
#include "comm.h"           /* the ranks */
#include "options.h"        /* the command line */
#include "playbook.h"       /* formulas to compare memory with */
#include "trace.h"          /* the timeline */
#include "run.h"            /* everything around a step */
#include "text.h"           /* evaluation and samples */
#include "error.h"          /* what is wrong, in one line */

#endif
