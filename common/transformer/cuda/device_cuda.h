/* Declarations that the files of the CUDA backend share: checked calls, waiting, scratch memory. */
#ifndef DEVICE_CUDA_H
#define DEVICE_CUDA_H

#include <cuda_runtime_api.h>
#include <stdint.h>

extern "C" {                                /* the headers of C */
#include "../../base/device.h"
#include "../../base/error.h"
#include "../../base/memory.h"
#include "../../base/print.h"
}

/* Checks a CUDA call: a failure ends the program with the call, its place in the source, and CUDA's message. A kernel
 * fails after its launch; then this names the first later call that returns the error. */
#define CUDA(call) cuda_check(call, #call, __FILE__, __LINE__)
void cuda_check(cudaError_t error, const char *call, const char *file, int line);

/* Allocates an operator's scratch memory: not zeroed, and not tracked. Free it with device_free as soon as its last
 * reader is queued, since its next user is queued after that. */
void *device_scratch(int64_t bytes);

/* Waits until the GPU has reached the event; meanwhile calls device_while_waiting's function. */
void cuda_wait(cudaEvent_t event);

/* allocator.cu: call it before any allocation. */
void memory_begin(int device);

/* matmul.cu: creates the libraries' handles, which allocate GPU memory by themselves. Call it at the start, so that
 * memory_check_fits sees less memory available. */
void matmul_begin(void);

extern bool device_tf32;                    /* device_use_tf32 was called, and the GPU has it */
int device_capability(void);                /* 80: sm_80 */

#endif
