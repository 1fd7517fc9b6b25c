#include "formats.h"

#include <stdlib.h>

#include "device.h"
#include "error.h"

/* One loop per dtype, so that the compiler vectorizes each. */
#define CONVERT(dtype, to_type, from_type, convert) \
    case dtype: \
        for (int64_t i = 0; i < count; i++) \
            ((to_type *)to)[i] = convert(((const from_type *)from)[i]); \
        break

void formats_read(real *to, const void *from, DType dtype, int64_t count)
{
    switch (dtype) {
    CONVERT(BF16, real, uint16_t, float_of_bf16);
    CONVERT(F16, real, uint16_t, float_of_f16);
    CONVERT(E4M3, real, uint8_t, float_of_e4m3);
    CONVERT(E5M2, real, uint8_t, float_of_e5m2);
    default:
        memcpy(to, from, count * sizeof *to);
    }
}

void formats_write(void *to, const real *from, DType dtype, int64_t count)
{
    switch (dtype) {
    CONVERT(BF16, uint16_t, real, bf16_of);
    CONVERT(F16, uint16_t, real, f16_of);
    CONVERT(E4M3, uint8_t, real, e4m3_of);
    CONVERT(E5M2, uint8_t, real, e5m2_of);
    default:
        memcpy(to, from, count * sizeof *from);
    }
}

void tensor_to_host(real *to, Tensor t)
{
    void *stored = t.dtype == REAL ? to : host_alloc(tensor_bytes(t), t.name);

    device_download(stored, t.data, tensor_bytes(t));
    if (t.dtype != REAL) {
        formats_read(to, stored, t.dtype, tensor_count(t));
        free(stored);
    }
}

void tensor_from_host(Tensor t, const real *from)
{
    void *stored = t.dtype == REAL ? NULL : host_alloc(tensor_bytes(t), t.name);

    if (stored)
        formats_write(stored, from, t.dtype, tensor_count(t));
    device_upload(t.data, stored ? stored : from, tensor_bytes(t));
    free(stored);
}

double format_largest(DType dtype)
{
    static const double largest[] = {[F64] = 0x1.fffffffffffffp1023, [F32] = 0x1.fffffep127, [BF16] = 0x1.fep127,
                                     [F16] = 65504, [E4M3] = 448, [E5M2] = 57344};

    return largest[dtype];
}
