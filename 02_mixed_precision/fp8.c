#include "fp8.h"

#include "../common/transformer/op_call.h"

void quantize(Tensor out, Tensor transposed, Tensor x)
{
    const Tensor copy = out.data ? out : transposed;
    const bool aligned = (uintptr_t)out.scale % 16 == 0 && (uintptr_t)transposed.scale % 16 == 0;

    OP_REQUIRE(!out.data || !transposed.data || out.scale == transposed.scale, "both outputs with one scale", out,
               transposed);
    OP_REQUIRE(aligned, "scales at multiples of 16 bytes", out, transposed);
    OP_REQUIRE(copy.scaling == PER_TENSOR || (tensor_rows(x) % 128 == 0 && tensor_width(x) % 128 == 0),
               "tiles with multiples of 128", out, transposed);
    OP_REQUIRE(copy.scaling == PER_TENSOR || !out.data || !transposed.data, "one output with tiles", out, transposed);
    OP_CALL(quantize_kernel(out, transposed, x), 0, "=?out R,W FP8; =?transposed W,R FP8; x R,W", out, transposed, x);
}

/* Whether cuBLASLt multiplies matrices with these scales. */
static bool scales_fit(Scaling x, Scaling weight)
{
    return x == weight ? x != PER_128X128 : x + weight == PER_1X128 + PER_128X128;
}

void linear_fp8(Tensor out, Tensor x, Tensor weight, Tensor bias)
{
    OP_REQUIRE(scales_fit(x.scaling, weight.scaling), "scales of the same kind", x, weight);
    OP_CALL(linear_fp8_kernel(out, x, weight, bias, false), 2.0 * tensor_count(out) * tensor_width(x),
            "=out R,M; x R,K FP8; weight M,K FP8; ?bias M", out, x, weight, bias);
}

void linear_fp8_add(Tensor out, Tensor x, Tensor weight)
{
    OP_REQUIRE(scales_fit(x.scaling, weight.scaling), "scales of the same kind", x, weight);
    OP_CALL(linear_fp8_kernel(out, x, weight, NONE, true), 2.0 * tensor_count(out) * tensor_width(x),
            "+out R,M G; x R,K FP8; weight M,K FP8", out, x, weight);
}
