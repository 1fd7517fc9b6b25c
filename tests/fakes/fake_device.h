/* A fake device for tests without a GPU, as slow as a GPU may be. It has its own memory: a device pointer's data lies
 * elsewhere, and the host crashes if it dereferences the pointer. Work is queued in streams and runs late, a few pieces
 * per query for completion: code that does not wait finds it unfinished. fake_device.c also implements device.h.
 */
#ifndef FAKE_DEVICE_H
#define FAKE_DEVICE_H

#include <stdbool.h>

typedef struct FakeStream FakeStream;
typedef struct FakeMark FakeMark;               /* a point in a stream's queue of work */

FakeStream *fake_stream_create(void);

/* Queues a piece of work. The stream calls `run` until it returns true; run frees `work`. */
void fake_queue(FakeStream *stream, bool (*run)(void *work), void *work);

void fake_step(FakeStream *stream);             /* calls the first queued piece once, unless it is running */

bool fake_idle(const FakeStream *stream);       /* returns whether the stream has no work left */

FakeMark *fake_mark(FakeStream *stream);
void fake_wait(FakeStream *stream, FakeMark *mark);             /* the stream waits until the mark is passed */
bool fake_passed(FakeMark *mark);               /* if not yet, first runs up to three pieces of the mark's stream */

void *fake_storage(const void *on_device);      /* the host address of a device pointer's data */

#endif
