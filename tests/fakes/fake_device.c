#include "fake_device.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "../../common/device.h"
#include "../../common/error.h"

/* ---- Streams ---- */

typedef struct Piece {
    bool (*run)(void *work);
    void *work;
    struct Piece *next;
} Piece;

struct FakeStream {
    Piece *first, *last;
    bool running;                               /* the first piece is running: a nested fake_step does nothing */
};

struct FakeMark {
    FakeStream *stream;
    bool passed;
};

static FakeStream compute;
static void (*look_meanwhile)(double seconds);

static void *must(void *memory)
{
    if (!memory)
        fail("the fake device has no memory");
    return memory;
}

FakeStream *fake_stream_create(void)
{
    return must(calloc(1, sizeof(FakeStream)));
}

void fake_queue(FakeStream *s, bool (*run)(void *work), void *work)
{
    Piece *p = must(malloc(sizeof *p));

    *p = (Piece){.run = run, .work = work};
    if (s->first)
        s->last->next = p;
    else
        s->first = p;
    s->last = p;
}

void fake_step(FakeStream *s)
{
    Piece *p = s->first;

    if (!p || s->running)
        return;
    s->running = true;
    if (p->run(p->work)) {
        s->first = p->next;
        free(p);
    }
    s->running = false;
}

bool fake_idle(const FakeStream *s)
{
    return !s->first;
}

static bool pass(void *work)
{
    ((FakeMark *)work)->passed = true;
    return true;
}

FakeMark *fake_mark(FakeStream *s)
{
    FakeMark *m = must(malloc(sizeof *m));      /* never freed: others may wait for it */

    *m = (FakeMark){.stream = s};
    fake_queue(s, pass, m);
    return m;
}

/* Between two queries a stream runs from none to three pieces, at random. */
bool fake_passed(FakeMark *m)
{
    static unsigned x = 12345;
    const bool then = m->passed;

    x = x * 1664525 + 1013904223;
    for (int pieces = x >> 16 & 3; pieces > 0 && !then; pieces--)
        fake_step(m->stream);
    return m->passed;
}

static bool passed(void *work)
{
    return fake_passed(work);
}

void fake_wait(FakeStream *s, FakeMark *m)
{
    fake_queue(s, passed, m);
}

static void wait_for(FakeMark *m)
{
    const double begin = clock_seconds();

    while (!fake_passed(m)) {
        if (look_meanwhile)
            look_meanwhile(clock_seconds() - begin);
        sched_yield();
    }
}

/* ---- Memory: an inaccessible range of addresses, and a range of the same size that stores the data ---- */

static const int64_t arena_bytes = 1ll << 36;
static char *arena, *storage;
static int64_t used;

typedef struct Freed {
    void *data;
    int64_t bytes;
    struct Freed *next;
} Freed;

static Freed *freed;                            /* reused for the same size, like a stream-ordered memory pool */

void *fake_storage(const void *on_device)
{
    const int64_t at = (const char *)on_device - arena;

    if (!arena || at < 0 || at > arena_bytes)
        fail("the device got a pointer to the host's memory");
    return storage + at;
}

typedef struct {
    void *to;
    const void *from;                           /* NULL: zeros */
    int64_t bytes;
    void *free_after;
} Copy;

static bool copy(void *work)
{
    Copy *c = work;

    if (c->from)
        memcpy(c->to, c->from, c->bytes);
    else
        memset(c->to, 0, c->bytes);
    free(c->free_after);
    free(c);
    return true;
}

static void queue_copy(void *to, const void *from, int64_t bytes, void *free_after)
{
    Copy *c = must(malloc(sizeof *c));

    *c = (Copy){to, from, bytes, free_after};
    fake_queue(&compute, copy, c);
}

void *device_alloc(int64_t bytes)
{
    void *data = NULL;

    if (!arena) {
        arena = mmap(NULL, arena_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        storage = mmap(NULL, arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (arena == MAP_FAILED || storage == MAP_FAILED)
            fail("the fake device has no memory");
    }
    for (Freed **at = &freed; *at && !data; at = &(*at)->next)
        if ((*at)->bytes == bytes) {
            Freed *f = *at;
            data = f->data;
            *at = f->next;
            free(f);
            device_zero(data, bytes);
            return data;
        }
    data = arena + used;
    used += (bytes + 255) / 256 * 256;
    return used > arena_bytes ? NULL : data;
}

void device_free(void *data, int64_t bytes)
{
    Freed *f = must(malloc(sizeof *f));

    *f = (Freed){data, bytes, freed};
    freed = f;
}

void device_zero(void *data, int64_t bytes)
{
    queue_copy(fake_storage(data), NULL, bytes, NULL);
}

void device_copy(void *to, const void *from, int64_t bytes)
{
    queue_copy(fake_storage(to), fake_storage(from), bytes, NULL);
}

void device_upload(void *to, const void *from, int64_t bytes)
{
    char *staged = must(malloc(bytes + 1));

    memcpy(staged, from, bytes);
    queue_copy(fake_storage(to), staged, bytes, staged);
}

void device_download(void *to, const void *from, int64_t bytes)
{
    device_wait();
    memcpy(to, fake_storage(from), bytes);
}

void device_wait(void)
{
    if (compute.first)
        wait_for(fake_mark(&compute));
}

void device_while_waiting(void (*look)(double seconds))
{
    look_meanwhile = look;
}

void *device_stream(void)
{
    return &compute;
}

void *device_host_alloc(int64_t bytes)
{
    return malloc(bytes + 1);
}

void device_download_start(void *to, const void *from, int64_t bytes)
{
    queue_copy(to, fake_storage(from), bytes, NULL);
}

void device_upload_start(void *to, const void *from, int64_t bytes)
{
    queue_copy(fake_storage(to), from, bytes, NULL);
}

DeviceEvent device_event(void)
{
    return (DeviceEvent){.seconds = clock_seconds(), .handle = fake_mark(&compute)};
}

bool device_event_reached(const DeviceEvent *event)
{
    return fake_passed(event->handle);
}

double device_event_seconds(DeviceEvent *event)
{
    wait_for(event->handle);
    return event->seconds;
}

/* ---- What it is ---- */

void device_prepare(char **argv)
{
    (void)argv;
}

void device_init(int local_rank, int local_ranks, int threads)
{
    (void)local_rank, (void)local_ranks, (void)threads;
}

int device_find(int local_rank, char place[DEVICE_PLACE])
{
    const int count = getenv("FAKE_GPUS") ? atoi(getenv("FAKE_GPUS")) : 64;

    snprintf(place, DEVICE_PLACE, count ? "0000:%02x:00.0" : "", count ? local_rank % count : 0);
    return count;
}

static int lent;

int device_multiprocessors(void)
{
    return getenv("FAKE_MULTIPROCESSORS") ? atoi(getenv("FAKE_MULTIPROCESSORS")) : 256;
}

void device_lend(int multiprocessors)
{
    lent = multiprocessors;
}

int device_multiprocessors_left(void)
{
    return device_multiprocessors() - lent;
}

bool device_is_host(void)
{
    return false;
}

const char *device_identity(void)
{
    return "";
}

const char *device_name(void)
{
    return "no device";
}

int device_threads(void)
{
    return 1;
}

int64_t device_memory_available(void)
{
    return -1;
}

double device_peak_flops(DType dtype)
{
    (void)dtype;
    return 0;
}

Support device_supports(DType dtype)
{
    (void)dtype;
    return SUPPORT_EMULATED;
}

int64_t device_memory_beside(void)
{
    return 0;
}

int64_t device_memory_reserved(void)
{
    return 0;
}

bool device_use_tf32(void)
{
    return false;
}

void device_range_begin(const char *name)
{
    (void)name;
}

void device_range_end(void)
{
}

double clock_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}
