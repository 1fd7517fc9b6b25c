/* Linear layers: matmuls (matmul.cu) with their biases. */
#include "kernel_cuda.cuh"

template <typename T, int N> __global__ void fill_rows(T *out, const T *row, int64_t rows, int64_t width)
{
    EACH_ROW(i, rows)
        EACH_COLUMN(j, N, width) {
            float v[N];
            load(v, row + j, N);
            store(out + i * width + j, v, N);
        }
}

/* Where cuBLASLt cannot add the bias, it is written to out, and the product is added to it. The sum is still rounded
 * once, but out is written, read and written again. */
void linear_product(Tensor out, Tensor x, Tensor weight, Tensor bias, bool add, bool at_once)
{
    if (at_once && matmul_with(CUBLASLT_EPILOGUE_BIAS, out, x, weight, bias, NONE))
        return;
    if (bias.data)
        FOR_TYPE(out.dtype, T, PACKED(rows_aligned(out, bias), T, N, LAUNCH_ROWS(out, N, fill_rows<T, N>, out, bias)));
    matmul(false, true, tensor_rows(x), tensor_width(out), tensor_width(x), 1, rows_of(x), rows_of(weight),
           add || bias.data, rows_of(out), 1);
}

void linear_forward_kernel(Tensor out, Tensor x, Tensor weight, Tensor bias)
{
    linear_product(out, x, weight, bias, false, bias.data);
}

void linear_backward_input_kernel(Tensor d_x, Tensor d_out, Tensor weight)
{
    const int64_t rows = tensor_rows(d_out), k = tensor_width(d_x), m = tensor_width(d_out);

    matmul(false, false, rows, k, m, 1, rows_of(d_out), rows_of(weight), 0, rows_of(d_x), 1);
}

void linear_backward_weight_kernel(Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x)
{
    const int64_t rows = tensor_rows(x), k = tensor_width(x), m = tensor_width(d_out), bytes = m * k * 4;

    if (d_weight.dtype == BF16 && x.dtype != BF16) {            /* cuBLAS adds to bf16 only from bf16 inputs */
        const Tensor product = {device_scratch(bytes), NULL, F32, 2, {m, k}};
        matmul(true, false, m, k, rows, 1, rows_of(d_out), rows_of(x), 0, rows_of(product), 1);
        tensor_add_kernel(d_weight, product);
        device_free(product.data, bytes);
    } else {
        matmul(true, false, m, k, rows, 1, rows_of(d_out), rows_of(x), 1, rows_of(d_weight), 1);
    }
    if (d_bias.data)
        column_sums_kernel(d_bias, d_out);
}
