/* Allocates tensors: takes memory from the device, tracks it by category (memory.h), and shows it in the trace. */
#ifndef ALLOCATE_H
#define ALLOCATE_H

#include "memory.h"
#include "tensor.h"

/* Allocates a zeroed tensor. Fails with the tensor's size and the memory in use if the device has too little. */
Tensor tensor_create(Category category, DType dtype, const char *name, Shape shape);

/* Frees t's memory and sets *t to NONE. */
void tensor_free(Tensor *t, Category category);

#endif
