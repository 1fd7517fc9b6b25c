#include "fp8.h"

#include "../common/transformer/cpu/kernel_cpu.h"

void quantize_kernel(Tensor out, Tensor transposed, Tensor x)
{
    enum { COLUMNS = 16 };
    const int64_t rows = tensor_rows(x), width = tensor_width(x);
    const DType dtype = out.data ? out.dtype : transposed.dtype;
    float *scale = out.data ? out.scale : transposed.scale;
    real amax = 0;

    for (int64_t i = 0; i < rows; i++) {
        const real *in = load(x, i * width, width, 0);
        real most = 0, nan = 0;                     /* nan: NaN if there is NaN or Inf, else 0 */
#pragma omp simd reduction(max : most) reduction(+ : nan)
        for (int64_t j = 0; j < width; j++) {
            const real a = in[j] < 0 ? -in[j] : in[j];
            most = a > most ? a : most;
            nan += a * 0;
        }
        amax = most > amax || nan != 0 ? most + nan : amax;
    }
    *scale = amax == 0 ? 1 : amax / (real)format_largest(dtype);
    const real s = *scale;
    if (out.data) {
#pragma omp parallel for
        for (int64_t i = 0; i < rows; i++) {
            const real *in = load(x, i * width, width, 0);
            real *o = scratch(1, width);
            for (int64_t j = 0; j < width; j++)
                o[j] = in[j] / s;
            formats_write(element(out, i * width), o, dtype, width);
        }
    }
    if (transposed.data) {
#pragma omp parallel for
        for (int64_t first = 0; first < width; first += COLUMNS) {
            const int64_t n = width - first < COLUMNS ? width - first : COLUMNS;
            real *o = scratch(1, COLUMNS * rows);
            for (int64_t i = 0; i < rows; i++) {
                const real *in = load(x, i * width + first, n, 0);
                for (int64_t j = 0; j < n; j++)
                    o[j * rows + i] = in[j] / s;
            }
            for (int64_t j = 0; j < n; j++)
                formats_write(element(transposed, (first + j) * rows), o + j * rows, dtype, rows);
        }
    }
}

/* Products of two fp8 numbers are exact in float. The scales are multiplied in at the end, as on a GPU. */
void linear_fp8_kernel(Tensor out, Tensor x, Tensor weight, Tensor bias, bool add)
{
    linear_product(out, x, weight, bias, add, (real)*x.scale * *weight.scale);
}
