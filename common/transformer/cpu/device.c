/* The CPU as the device. Work is done when a call returns, so streams and events are trivial. What remains: memory, the
 * rate of this machine's matmul, and numbers that the host sees only once it has waited for them. */
#include "../../base/device.h"

#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "../../base/error.h"
#include "../../base/threads.h"

static char name[200];

/* Returns what follows `key` at the start of a line of a file in /proc, until the next call; empty: no such line. */
static const char *value_after(const char *path, const char *key)
{
    static char line[4096];                 /* enough for a CPU's list of flags */
    const char *value = "";
    FILE *f = fopen(path, "r");

    while (!*value && f && fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key)))
            value = line + strlen(key);
    if (f)
        fclose(f);
    line[strcspn(line, "\n")] = 0;
    return value + strspn(value, " \t:");
}

void device_init(int local_rank)
{
    const char *model = value_after("/proc/cpuinfo", "model name");

    (void)local_rank;                       /* all ranks of a machine have the same CPU */
    snprintf(name, sizeof name, "%s of %s with %s kernels", threads_text(), *model ? model : "this CPU",
             openblas_get_corename());
}

const char *device_name(void)
{
    return name;
}

int64_t device_memory_available(void)
{
    const char *value = value_after("/proc/meminfo", "MemAvailable:");

    return *value ? atoll(value) * 1024 : -1;
}

Support device_supports(DType dtype)
{
    return dtype == REAL ? SUPPORT_NATIVE : SUPPORT_EMULATED;
}

bool device_use_tf32(void)
{
    return false;
}

double device_peak_flops(DType dtype)
{
    /* in float64, whose MFU nobody reads, starts are short */
    enum { N = sizeof(real) == sizeof(double) ? 128 : 512, BATCH = 4 };
    static double rate;

    (void)dtype;                            /* every dtype is multiplied as REAL */
    if (rate)
        return rate;
    real *a = host_alloc(3 * N * N * sizeof *a, "measuring the matmul rate"), *b = a + N * N, *c = b + N * N;
    for (int trial = 0; trial < 5; trial++) {           /* the best trial is the least disturbed */
        const double begin = clock_seconds();
        for (int i = 0; i < BATCH; i++)
#ifdef REAL64
            cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, N, N, N, 1, a, N, b, N, 0, c, N);
#else
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, N, N, N, 1, a, N, b, N, 0, c, N);
#endif
        const double flops = 2.0 * N * N * N * BATCH / (clock_seconds() - begin);
        rate = flops > rate ? flops : rate;
    }
    free(a);
    return rate;
}

/* Large tensors get pages of 2 MB: AdamW streams through four tensors at once, and with small pages address translation
 * takes half of the time. Each tensor starts 1 KB deeper into its page than the previous one: tensors that start at the
 * same offset compete for the same cache lines. */
enum { HUGE_PAGE = 1 << 21, STAGGER = 1024 };

void *device_alloc(int64_t bytes)
{
    static int large;
    const bool is_large = bytes >= 2 * HUGE_PAGE;
    void *data;

    if (posix_memalign(&data, is_large ? HUGE_PAGE : 64, bytes + (is_large ? HUGE_PAGE : 1)))   /* 64: a cache line */
        return NULL;
    if (is_large) {
        madvise(data, bytes + HUGE_PAGE, MADV_HUGEPAGE);                /* optional: only faster */
        data = (char *)data + large++ % (HUGE_PAGE / STAGGER) * STAGGER;
    }
    device_zero(data, bytes);                                           /* takes the pages now, not in the first step */
    return data;
}

void device_free(void *data, int64_t bytes)
{
    free(bytes < 2 * HUGE_PAGE ? data : (char *)data - (intptr_t)data % HUGE_PAGE);
}

void *device_pinned(int64_t bytes)
{
    return host_alloc(bytes, "copies of the device's memory");
}

void device_zero(void *data, int64_t bytes)
{
#pragma omp parallel if (bytes >= HUGE_PAGE)
    {
        const Range part = range_split(bytes, omp_get_thread_num(), omp_get_num_threads());
        memset((char *)data + part.first, 0, part.count);
    }
}

void device_copy(void *to, const void *from, int64_t bytes)
{
    memcpy(to, from, bytes);
}

void device_upload(void *to, const void *from, int64_t bytes)
{
    memcpy(to, from, bytes);
}

/* Copies to the host that have started, and that it has not waited for. */
static struct {
    double *to, number, begun;
} late[8];
static int late_begun, late_ended;

void number_to_host(double *to, double number)
{
    late[late_begun % 8].to = to, late[late_begun % 8].number = number;
    late[late_begun++ % 8].begun = clock_seconds();
    *to = NAN;
}

/* Ends the copies that began before a point in the stream. */
static void end_copies(double point)
{
    for (; late_ended < late_begun && late[late_ended % 8].begun <= point; late_ended++)
        *late[late_ended % 8].to = late[late_ended % 8].number;
}

void device_download(void *to, const void *from, int64_t bytes)
{
    memcpy(to, from, bytes);
    device_wait();
}

int64_t device_waits;

void device_wait(void)
{
    device_waits++;
    end_copies(INFINITY);
}

bool device_is_host(void)
{
    return true;
}

DeviceId device_id(int local_rank)
{
    (void)local_rank;
    return (DeviceId){0};
}

DeviceEvent device_event(void)
{
    return (DeviceEvent){.seconds = clock_seconds()};
}

double device_event_seconds(DeviceEvent *event)
{
    end_copies(event->seconds);
    return event->seconds;
}

void device_range_begin(const char *text)
{
    (void)text;
}

void device_range_end(void)
{
}
