/* The device: where tensors lie and operators run. The backends have it: transformer/cpu/device.c is the machine's CPU,
 * transformer/cuda/device.cu a GPU.
 *
 * A device is a stream: operators and copies are queued in order, and the host may run ahead. device_wait, and every
 * call that brings numbers to the host, waits for what was queued before. On the CPU every call is complete when it
 * returns. */
#ifndef DEVICE_H
#define DEVICE_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "tensor.h"

/* ---- start, and what the device is ---- */

/* Call it first in main. Where OpenBLAS has taken kernels of a much older processor, it starts the program again, once,
 * with the variable that chooses better ones, and does not return; a variable that the user has set stays. */
void device_prepare(char **argv);

/* The device that a rank takes, before it does: a GPU's UUID; zeros on the CPU. Ends the program if it can use none. */
typedef struct {
    char uuid[16];
} DeviceId;
DeviceId device_id(int local_rank);

/* Takes the device for this process, number local_rank of those on this machine. Call threads_set before. */
void device_init(int local_rank);
const char *device_name(void);              /* "2 threads of Intel(R) Xeon(R) Processor with SkylakeX kernels"; of a
                                             * GPU it says if its peak is estimated */
int64_t device_memory_available(void);      /* bytes that can still be taken without swapping; -1: unknown */

/* The peak arithmetic rate, in FLOP/s, for MFU. On a GPU that of matmuls of the dtype, from the datasheet, or
 * estimated; on the CPU the rate of its own REAL matmul, measured once. 0: the device does not support the dtype. */
double device_peak_flops(DType dtype);

/* Lets F32 matmuls round their inputs to TF32, a float with 10 bits of mantissa, and use the tensor cores. Returns
 * false if the device has no TF32. */
bool device_use_tf32(void);

/* How the device computes with a dtype: natively; emulated (it rounds what it stores and computes in REAL); not. */
typedef enum { SUPPORT_NATIVE, SUPPORT_EMULATED, SUPPORT_NONE } Support;
Support device_supports(DType dtype);

/* ---- memory and copies ---- */
void *device_alloc(int64_t bytes);          /* zeroed; NULL: not enough memory */
void device_free(void *data, int64_t bytes);
void *device_pinned(int64_t bytes);         /* memory of the host, to and from which a GPU copies fastest, and while the
                                             * host runs ahead; zeroed, never freed */
void device_zero(void *data, int64_t bytes);
void device_copy(void *to, const void *from, int64_t bytes);        /* both on the device; must not overlap */
void device_upload(void *to, const void *from, int64_t bytes);      /* from the host */
void device_download(void *to, const void *from, int64_t bytes);    /* to the host; waits */
void number_to_host(double *to, double number);         /* the CPU's; as on a GPU, *to is NaN until the host has waited
                                                         * for the device, or for an event recorded later */
void device_wait(void);
extern int64_t device_waits;                /* how often the host has waited, by device_wait and device_download */
void device_while_waiting(void (*look)(double seconds));    /* sets what the host calls repeatedly while it waits for
                                                             * the device; seconds: how long it has waited */

void *device_stream(void);                  /* for a library that orders its work with ours: a GPU's cudaStream_t */

/* ---- for transfers between ranks, from the host's memory or the device's ---- */
bool device_is_host(void);                  /* tensors lie in the host's memory: on the CPU */

/* A point in the stream: recorded now, reached when the work queued before it is done. */
typedef struct {
    double seconds;                         /* on the CPU: when it was recorded */
    void *handle;                           /* on a GPU */
} DeviceEvent;
DeviceEvent device_event(void);
double device_event_seconds(DeviceEvent *event);        /* on clock_seconds's clock; waits until reached; frees it */

/* Names a range of time for the device's profiler; ranges nest. */
void device_range_begin(const char *name);
void device_range_end(void);

/* Seconds of a monotonic clock. */
static inline double clock_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

#endif
