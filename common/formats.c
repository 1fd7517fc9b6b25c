#include "formats.h"

#include <stdlib.h>

#include "device.h"
#include "error.h"

void formats_read(real *to, const void *from, DType dtype, int64_t count)
{
    const uint16_t *half = from;
    const uint8_t *byte = from;

    switch (dtype) {
    case BF16:
        for (int64_t i = 0; i < count; i++)
            to[i] = float_of_bf16(half[i]);
        break;
    case F16:
        for (int64_t i = 0; i < count; i++)
            to[i] = float_of_f16(half[i]);
        break;
    case E4M3:
        for (int64_t i = 0; i < count; i++)
            to[i] = float_of_e4m3(byte[i]);
        break;
    case E5M2:
        for (int64_t i = 0; i < count; i++)
            to[i] = float_of_e5m2(byte[i]);
        break;
    default:
        memcpy(to, from, count * sizeof *to);
    }
}

void formats_write(void *to, const real *from, DType dtype, int64_t count)
{
    uint16_t *half = to;
    uint8_t *byte = to;

    switch (dtype) {
    case BF16:
        for (int64_t i = 0; i < count; i++)
            half[i] = bf16_of(from[i]);
        break;
    case F16:
        for (int64_t i = 0; i < count; i++)
            half[i] = f16_of(from[i]);
        break;
    case E4M3:
        for (int64_t i = 0; i < count; i++)
            byte[i] = e4m3_of(from[i]);
        break;
    case E5M2:
        for (int64_t i = 0; i < count; i++)
            byte[i] = e5m2_of(from[i]);
        break;
    default:
        memcpy(to, from, count * sizeof *from);
    }
}

void tensor_to_host(real *to, Tensor t)
{
    if (t.dtype == REAL) {
        device_download(to, t.data, tensor_bytes(t));
        return;
    }
    void *stored = host_alloc(tensor_bytes(t), t.name);
    device_download(stored, t.data, tensor_bytes(t));
    formats_read(to, stored, t.dtype, tensor_count(t));
    free(stored);
}

void tensor_from_host(Tensor t, const real *from)
{
    if (t.dtype == REAL) {
        device_upload(t.data, from, tensor_bytes(t));
        return;
    }
    void *stored = host_alloc(tensor_bytes(t), t.name);
    formats_write(stored, from, t.dtype, tensor_count(t));
    device_upload(t.data, stored, tensor_bytes(t));
    free(stored);
}

double format_largest(DType dtype)
{
    switch (dtype) {
    case BF16:
        return float_of_bf16(0x7f7f);
    case F16:
        return float_of_f16(0x7bff);
    case E4M3:
        return float_of_e4m3(0x7e);
    case E5M2:
        return float_of_e5m2(0x7b);
    case F32:
        return 0x1.fffffep127;
    default:
        return 0x1.fffffffffffffp1023;
    }
}
