/* Streams: work that the host has queued, and that the simulated GPU runs when it likes. Only a stream's own order and
 * events say what comes before what. In order, work runs as soon as it may; reversed, as late as it may, when the host
 * waits for it; shuffled, at random times in between. */
#ifndef RUNTIME_H
#define RUNTIME_H

#include <cuda_runtime_api.h>
#include <deque>
#include <functional>
#include <memory>

#include "memory.h"

struct Queued {
    std::function<bool()> run;          /* returns whether it has ended; else it is called again */
    Clock clock;                        /* what was before it */
};

struct CUstream_st {
    int index;
    std::deque<Queued> queue;
    uint32_t queued, done;              /* pieces of work since the start */
    Clock clock;                        /* what is before its next work */
};

cudaStream_t stream_or_default(cudaStream_t stream);

/* Queues work on memory, or work that may end later and calls stream_work before it accesses memory. */
void enqueue(cudaStream_t stream, const char *name, std::function<void()> work);
void enqueue_polled(cudaStream_t stream, std::function<bool()> work);
void stream_work(cudaStream_t stream, const char *name);

void gpu_runs(void);                    /* some work, or none */

/* Environment variables that CUDA reads at a process's first call only. */
struct Settings {
    int queues;                         /* CUDA_DEVICE_MAX_CONNECTIONS */
    bool eager;                         /* CUDA_MODULE_LOADING and CUDA_MODULE_DATA_LOADING */
};
const Settings &settings(void);
int multiprocessors(void);

/* Returns an error that stays until cudaGetLastError clears it. */
cudaError_t error(cudaError_t e);

/* A call of the CUDA runtime that is a statement here, or nothing. */
#define CUDA_CALL(call, ...) cudaError_t call { __VA_ARGS__; return cudaSuccess; }

#endif
