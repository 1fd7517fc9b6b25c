#include "allocate.h"

#include "device.h"
#include "error.h"
#include "print.h"
#include "trace.h"

Tensor tensor_create(Category category, DType dtype, const char *name, Shape shape)
{
    Tensor t = {.name = name, .dtype = dtype, .dims = shape.dims};
    int64_t bytes = dtype_size(dtype);

    for (int i = 0; i < shape.dims; i++) {
        t.shape[i] = shape.n[i];
        bytes *= shape.n[i];
    }
    t.data = device_alloc(bytes);
    if (!t.data)
        fail("not enough memory for %s %s: needs %s beside %s in use, the device has less; " MEMORY_HINT,
             memory_name[category], name, bytes_text(bytes), bytes_text(memory_total().used));
    memory_track(category, bytes);
    trace_memory(t, memory_name[category], bytes, memory_entry(category).used);
    return t;
}

void tensor_free(Tensor *t, Category category)
{
    if (t->data) {
        memory_track(category, -tensor_bytes(*t));
        trace_memory(*t, memory_name[category], -tensor_bytes(*t), memory_entry(category).used);
        device_free(t->data, tensor_bytes(*t));
    }
    *t = NONE;
}
