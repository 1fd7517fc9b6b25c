/* What the files of the CUDA backend share beside device.h: checked calls, waiting, scratch memory. */
#ifndef DEVICE_CUDA_H
#define DEVICE_CUDA_H

#include <cuda_runtime_api.h>

#include "../device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every call of CUDA's goes through this: a failure ends the program and names the call, where it is, and CUDA's
 * message. Kernels fail later than they start: then the call named is the first one that heard of it. */
#define CUDA(call) cuda_check(call, #call, __FILE__, __LINE__)
void cuda_check(cudaError_t error, const char *call, const char *file, int line);

/* Memory that an operator needs for itself, not zeroed and in no account but the reserve. It may be given back as soon
 * as its last reader is queued: whoever gets it next is queued behind. */
void *device_scratch(int64_t bytes);
void device_scratch_free(void *data, int64_t bytes);

/* From now on until it is told false, scratch is the same in every run of the same operators, for a CUDA graph that
 * repeats them: pieces of a block that nobody else gets, as large as all scratch together has been so far. */
void device_scratch_fix(bool yes);

/* Until the GPU has come to it; meanwhile the host looks after other ranks. */
void cuda_wait(cudaEvent_t event);

/* memory.cu: before anything is taken. */
void memory_begin(int device);

/* matmul.cu: creates what its libraries need, which they take from the GPU by themselves. At the start: so memory_plan
 * finds it gone. */
void matmul_begin(void);

bool device_uses_tf32(void);
int device_capability(void);                /* 80: sm_80 */

#ifdef __cplusplus
}
#endif

#endif
