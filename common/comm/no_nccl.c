/* In place of nccl.c: the CPU has no use for NCCL, and a build for GPUs may not have found it. */
#include <stddef.h>

#include "transport.h"

const Transport *const transport_nccl = NULL;
