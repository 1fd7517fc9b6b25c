/* Streams and events of libcudart. */
#include "runtime.h"

#include <chrono>
#include <sched.h>
#include <utility>

#include "ptx.h"

static cudaError_t last_error;

cudaError_t error(cudaError_t e)
{
    return last_error = e;
}

/* ---- streams ---- */

static std::vector<cudaStream_t> streams;
static Clock host;                              /* what the host has seen done */

static cudaStream_t new_stream(void)
{
    cudaStream_t s = new CUstream_st{(int)streams.size(), {}, 0, 0, {}};

    streams.push_back(s);
    return s;
}

cudaStream_t stream_or_default(cudaStream_t stream)
{
    if (streams.empty())
        new_stream();
    return stream ? stream : streams[0];
}

/* Runs a stream's first piece, or what it waits for. Returns false if that has not ended. */
static bool stream_step(cudaStream_t s)
{
    if (s->queue.empty() || !s->queue.front().run())
        return false;
    s->queue.pop_front();
    s->done++;
    return true;
}

void gpu_runs(void)
{
    if (simulated_order() == IN_ORDER)
        for (bool on = true; on;) {
            on = false;
            for (cudaStream_t s : streams)
                while (stream_step(s))
                    on = true;
        }
    else if (!streams.empty() && chance(simulated_order() == SHUFFLED ? 4 : 64) == 0)
        for (int steps = chance(8); steps > 0; steps--)
            stream_step(streams[chance(streams.size())]);
}

void enqueue_polled(cudaStream_t stream, std::function<bool()> work)
{
    cudaStream_t s = stream_or_default(stream);

    clock_join(s->clock, host);
    s->queue.push_back({work, s->clock});
    s->queued++;
    gpu_runs();
}

void stream_work(cudaStream_t s, const char *name)
{
    work_begins(name, s->index, s->done + 1, s->queue.front().clock);
}

void enqueue(cudaStream_t stream, const char *name, std::function<void()> work)
{
    cudaStream_t s = stream_or_default(stream);

    enqueue_polled(s, [=] {
        stream_work(s, name);
        work();
        return true;
    });
}

/* ---- events ---- */

typedef std::chrono::steady_clock::time_point Time;

struct CUevent_st {
    cudaStream_t stream;                        /* NULL: not recorded */
    uint32_t number;                            /* the stream's work that it follows */
    Clock clock;
    std::shared_ptr<Time> time;
};

static bool passed(const CUevent_st &e)
{
    return !e.stream || e.stream->done >= e.number;
}

/* Works toward an event; returns whether it is passed. */
static bool advance(const CUevent_st &e)
{
    while (!passed(e) && stream_step(e.stream))
        ;
    return passed(e);
}

static void host_waits(const CUevent_st &e)
{
    while (!advance(e)) {
        for (cudaStream_t s : streams)          /* what this stream waits for may need another */
            stream_step(s);
        sched_yield();
    }
    clock_join(host, e.clock);
}

static CUevent_st end_of(cudaStream_t s)
{
    CUevent_st e = {s, s->queued, s->clock, NULL};

    clock_join(e.clock, host);
    e.clock.resize(std::max<size_t>(e.clock.size(), s->index + 1));
    e.clock[s->index] = s->queued;
    return e;
}

extern "C" {

CUDA_CALL(cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int),
          stream_or_default(NULL); *stream = new_stream())
CUDA_CALL(cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned), stream_or_default(NULL); *stream = new_stream())
CUDA_CALL(cudaDeviceGetStreamPriorityRange(int *lowest, int *highest), *lowest = 0, *highest = -5)
CUDA_CALL(cudaStreamDestroy(cudaStream_t))      /* its work ends, and events may still refer to it */
CUDA_CALL(cudaStreamSynchronize(cudaStream_t stream), host_waits(end_of(stream_or_default(stream))))
CUDA_CALL(cudaDeviceSynchronize(void), for (cudaStream_t s : streams) host_waits(end_of(s)))
CUDA_CALL(cudaEventCreate(cudaEvent_t *event), *event = new CUevent_st())
CUDA_CALL(cudaEventCreateWithFlags(cudaEvent_t *event, unsigned), *event = new CUevent_st())
CUDA_CALL(cudaEventDestroy(cudaEvent_t event), delete event)
CUDA_CALL(cudaEventSynchronize(cudaEvent_t event), host_waits(*event))

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    cudaStream_t s = stream_or_default(stream);
    const CUevent_st e = *event;

    if (!e.stream)                              /* like CUDA: no effect if the event was never recorded */
        return cudaSuccess;
    clock_join(s->clock, e.clock);
    enqueue_polled(s, [=] { return advance(e); });
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    auto time = std::make_shared<Time>();

    enqueue_polled(stream, [=] { *time = std::chrono::steady_clock::now(); return true; });
    *event = end_of(stream_or_default(stream));
    event->time = time;
    return cudaSuccess;
}

/* The host may ask any number of times; each time some work runs. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    for (int steps = 1 + chance(4); steps > 0 && !passed(*event); steps--)
        stream_step(event->stream);
    gpu_runs();
    if (!passed(*event))
        return error(cudaErrorNotReady);
    clock_join(host, event->clock);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    if (!from->stream || !to->stream)
        return error(cudaErrorInvalidResourceHandle);
    if (!passed(*from) || !passed(*to))
        return error(cudaErrorNotReady);
    *milliseconds = std::chrono::duration<float, std::milli>(*to->time - *from->time).count();
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void) { return std::exchange(last_error, cudaSuccess); }

const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaSuccess ? "no error" : e == cudaErrorNotReady ? "device not ready"
         : e == cudaErrorMemoryAllocation ? "out of memory" : e == cudaErrorInvalidValue ? "invalid argument"
         : e == cudaErrorInvalidConfiguration ? "invalid configuration argument" : "an error of the simulated GPU";
}

}
