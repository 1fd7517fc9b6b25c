#ifndef DEVICE_CPU_H
#define DEVICE_CPU_H

#include "../device.h"

/* Returns scratch memory for `count` reals, per thread and number (0 to 4). Its contents last until the next call with
 * that number. It is not tracked, like BLAS's own buffers and a GPU's scratch (device_cuda.h). */
real *scratch(int number, int64_t count);

#endif
