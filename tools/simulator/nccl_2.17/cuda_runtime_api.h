/* What comm/nccl.c uses of CUDA. */
typedef enum { cudaSuccess, cudaErrorNotReady } cudaError_t;
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };

const char *cudaGetErrorString(cudaError_t);
cudaError_t cudaGetLastError(void), cudaDeviceGetStreamPriorityRange(int *, int *),
    cudaStreamCreateWithPriority(cudaStream_t *, unsigned, int), cudaStreamDestroy(cudaStream_t),
    cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned), cudaEventCreateWithFlags(cudaEvent_t *, unsigned),
    cudaEventDestroy(cudaEvent_t), cudaEventRecord(cudaEvent_t, cudaStream_t), cudaEventQuery(cudaEvent_t);
