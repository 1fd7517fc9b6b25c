#include "kernel_cpu.h"

#include <stdlib.h>

#include "../../base/error.h"

real *scratch(int number, int64_t count)
{
    static _Thread_local struct { real *data; int64_t count; } buffer[5];

    if (buffer[number].count < count) {
        free(buffer[number].data);
        buffer[number].count = count;
        if (posix_memalign((void **)&buffer[number].data, 64, count * sizeof(real)))
            fail("not enough memory on the host for scratch: needs %lld numbers", (long long)count);
    }
    return buffer[number].data;
}
