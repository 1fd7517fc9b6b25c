/* A device as slow and as free as a GPU may be, for tests without one. Its memory is apart: what a pointer points to
 * lies elsewhere, and the host that follows the pointer crashes. Work is queued in streams and done late, some pieces
 * when somebody asks whether it is done: who doesn't wait for it finds that it isn't. fake_device.c also implements
 * device.h.
 */
#ifndef FAKE_DEVICE_H
#define FAKE_DEVICE_H

#include <stdbool.h>

typedef struct FakeStream FakeStream;
typedef struct FakeMark FakeMark;               /* a point in a stream */

FakeStream *fake_stream_create(void);

/* Work is over when `run` returns true; until then it is called again and again. It frees what it works on. */
void fake_queue(FakeStream *stream, bool (*run)(void *work), void *work);

void fake_step(FakeStream *stream);             /* one piece of its work, if there is any that can go on */

bool fake_idle(const FakeStream *stream);       /* nothing is left to do in it */

FakeMark *fake_mark(FakeStream *stream);
void fake_wait(FakeStream *stream, FakeMark *mark);             /* the stream goes on when the mark is passed */
bool fake_passed(FakeMark *mark);               /* if not, the mark's stream may do some pieces of work */

void *fake_storage(const void *on_device);      /* where it is */

#endif
