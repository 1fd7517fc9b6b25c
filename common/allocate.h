/* Memory for tensors: taken from the device, entered into the account (memory.h) and shown in the trace. */
#ifndef ALLOCATE_H
#define ALLOCATE_H

#include "memory.h"
#include "tensor.h"

/* New memory, zeroed. Fails with the tensor's size and what is in use when the device has no more. */
Tensor tensor_create(Category category, DType dtype, const char *name, Shape shape);
void tensor_free(Tensor *t, Category category);                 /* and sets it to NONE */

#endif
