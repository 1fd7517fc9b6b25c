/* The device: where tensors live and operators run. cpu/device.c is the machine itself; cuda/device.cu is a GPU.
 *
 * Work on a device is a stream: operators and copies are queued in order and the host may run ahead; device_wait
 * and everything that brings numbers to the host waits for what was queued before. On the CPU every call is done
 * when it returns.
 */
#ifndef DEVICE_H
#define DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* First of all, before MPI too; may exec the program anew. */
void device_prepare(char **argv);

/* Takes the device for this process, one of `local_ranks` on this machine, the local_rank-th of them.
 * threads: of the CPU, 0: the machine's cores divided over the local ranks. */
void device_init(int local_rank, int local_ranks, int threads);
const char *device_name(void);              /* "2 threads of Intel(R) Xeon(R) Processor" */
enum { DEVICE_IDENTITY = 33 };
const char *device_identity(void);          /* which of its machine's devices: a GPU's id from NVIDIA; the CPU: "" */
int device_threads(void);
int64_t device_memory_available(void);      /* bytes that can still be taken without swapping; -1: not known */
int64_t device_memory_beside(void);         /* an estimate of what operators will take from a GPU and in no account: for
                                             * scratch, and for kernels that aren't loaded yet; 0: the CPU */
int64_t device_memory_reserved(void);       /* bytes taken from a GPU: in use, scratch, or free and kept; 0: the CPU */

/* Arithmetic rate, in FLOP/s, that MFU is a fraction of: a GPU's datasheet peak for matmuls of the type, or on the CPU
 * the rate of the machine's own matmul of REAL, measured once. 0: not known. */
double device_peak_flops(DType dtype);

/* From now on matmuls of F32 round what they read to TF32, a float with 10 bits of mantissa, and take the tensor cores.
 * false: this device has none. */
bool device_use_tf32(void);

/* How the device computes with elements of a type: by itself; by rounding what it stores, while it computes in REAL;
 * or not at all. */
typedef enum { SUPPORT_NATIVE, SUPPORT_EMULATED, SUPPORT_NONE } Support;
Support device_supports(DType dtype);

void *device_alloc(int64_t bytes);          /* zeroed; NULL: no more memory */
void device_free(void *data, int64_t bytes);
void device_zero(void *data, int64_t bytes);
void device_copy(void *to, const void *from, int64_t bytes);        /* both on the device; must not overlap */
void device_upload(void *to, const void *from, int64_t bytes);      /* from the host */
void device_download(void *to, const void *from, int64_t bytes);    /* to the host; waits */
void device_wait(void);
void device_while_waiting(void (*look)(double seconds));    /* to be called again and again while the host waits */

/* The stream, for a library that orders its work with ours: a GPU's cudaStream_t; NULL on the CPU. */
void *device_stream(void);

int device_multiprocessors(void);           /* a GPU's; 0: the CPU */
void device_lend(int multiprocessors);      /* so many are taken by transfers beside what is called from now on */
int device_multiprocessors_left(void);      /* by these: a matmul that counts on more may end in two waves */

/* For messages between ranks, which leave from the host's memory or from the device's. */
bool device_is_host(void);                  /* tensors lie in the host's memory: on the CPU */
/* Before device_init, which would take it: the GPU's place in this machine, or "" if there is none; returns how many
 * there are, 0 on the CPU. Nothing is set up yet, and the environment may still be changed. */
enum { DEVICE_PLACE = 32 };
int device_find(int local_rank, char place[DEVICE_PLACE]);
void *device_host_alloc(int64_t bytes);     /* of the host, for fast copies to the device; NULL: no more memory */
void device_download_start(void *to, const void *from, int64_t bytes);  /* queued; an event says when it is done */
void device_upload_start(void *to, const void *from, int64_t bytes);    /* queued; `from` stays as it is till then */

/* A point in the stream: recorded now, reached when the work queued before it is done. */
typedef struct {
    double seconds;                         /* on the CPU: when it was recorded */
    void *handle;                           /* on a GPU */
} DeviceEvent;
DeviceEvent device_event(void);
bool device_event_reached(const DeviceEvent *event);    /* without waiting */
double device_event_seconds(DeviceEvent *event);    /* on clock_seconds's clock; waits until reached; frees it */

/* A named range of time for a profiler of the device's; they nest. */
void device_range_begin(const char *name);
void device_range_end(void);

/* Seconds of a clock that only goes forward. */
double clock_seconds(void);

#ifdef __cplusplus
}
#endif

#endif
