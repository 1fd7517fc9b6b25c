#include "ops.h"

#include <math.h>
#include <stdlib.h>

#include "device.h"
#include "error.h"
#include "kernels.h"
#include "operator.h"
#include "print.h"
#include "trace.h"

void tensor_zero(Tensor t)
{
    trace_operand(t, TRACE_ZERO);
    op_begin("zero", OPERANDS(t), OPERANDS(), OPERANDS(), 0, t.data, "a tensor");
    device_zero(t.data, tensor_bytes(t));
    op_end();
}

void tensor_copy(Tensor to, Tensor from)
{
    op_begin("copy", OPERANDS(to), OPERANDS(), OPERANDS(from), 0,
             to.data && from.data && tensor_count(to) == tensor_count(from) && to.dtype == from.dtype,
             "two tensors of one count and type");
    device_copy(to.data, from.data, tensor_bytes(to));
    op_end();
}

double tensor_item(Tensor t)
{
    double x;
    real y;

    op_begin("item", OPERANDS(), OPERANDS(), OPERANDS(t), 0,
             tensor_count(t) == 1 && (t.dtype == F64 || t.dtype == REAL), "one number");
    if (t.dtype == F64) {
        device_download(&x, t.data, sizeof x);
    } else {
        device_download(&y, t.data, sizeof y);
        x = y;
    }
    op_end();
    return x;
}

void tensor_convert(Tensor to, Tensor from)
{
    op_begin("convert", OPERANDS(to), OPERANDS(), OPERANDS(from), 0,
             to.data && from.data && tensor_count(to) == tensor_count(from) && is_stored(to.dtype)
                 && is_stored(from.dtype),
             "two tensors of one count, each REAL, BF16 or F16");
    tensor_convert_kernel(to, from);
    op_end();
}

void tensor_scale(Tensor t, double factor)
{
    op_begin("scale", OPERANDS(), OPERANDS(t), OPERANDS(), 0, t.data && is_stored(t.dtype),
             "a tensor, REAL, BF16 or F16");
    tensor_scale_kernel(t, factor);
    op_end();
}

void embedding_forward(Tensor out, Tensor ids, Tensor weight)
{
    op_begin("embedding_forward", OPERANDS(out), OPERANDS(), OPERANDS(ids, weight), 0,
             is_matrix_of(weight.dtype, out, tensor_count(ids), tensor_width(weight))
                 && are_ids(ids, tensor_count(ids)),
             "out (R, H), ids (R) I32, weight (V, H), of one type");
    embedding_forward_kernel(out, ids, weight);
    op_end();
}

void embedding_backward(Tensor d_weight, Tensor d_out, Tensor ids)
{
    op_begin("embedding_backward", OPERANDS(), OPERANDS(d_weight), OPERANDS(d_out, ids), 0,
             is_matrix_of(d_out.dtype, d_out, tensor_count(ids), tensor_width(d_weight))
                 && are_ids(ids, tensor_count(ids))
                 && is_gradient(d_weight.dtype),
             "d_weight (V, H), d_out (R, H), ids (R) I32; d_weight REAL or BF16");
    embedding_backward_kernel(d_weight, d_out, ids);
    op_end();
}

void layernorm_forward(Tensor out, Tensor stats, Tensor x, Tensor weight, Tensor bias)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x);

    op_begin("layernorm_forward", OPERANDS(out, stats), OPERANDS(), OPERANDS(x, weight, bias), 0,
             is_matrix_of(x.dtype, x, rows, width) && is_matrix_of(x.dtype, out, rows, width)
                 && is_matrix(stats, rows, 2)
                 && is_vector_of(x.dtype, weight, width) && is_vector_of(x.dtype, bias, width),
             "out (R, H), stats (R, 2), x (R, H), weight (H), bias (H), of one type; stats REAL");
    layernorm_forward_kernel(out, stats, x, weight, bias);
    op_end();
}

void layernorm_backward(Tensor d_x, Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x, Tensor stats, Tensor weight)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x);

    op_begin("layernorm_backward", OPERANDS(), OPERANDS(d_x, d_weight, d_bias), OPERANDS(d_out, x, stats, weight), 0,
             is_matrix_of(x.dtype, x, rows, width) && is_matrix_of(x.dtype, d_x, rows, width)
                 && is_matrix_of(x.dtype, d_out, rows, width)
                 && is_matrix(stats, rows, 2) && is_vector_of(x.dtype, weight, width)
                 && is_vector_of(d_bias.dtype, d_weight, width)
                 && is_vector_of(d_bias.dtype, d_bias, width) && is_gradient(d_bias.dtype),
             "d_x (R, H), d_weight (H), d_bias (H), d_out (R, H), x (R, H), stats (R, 2), weight (H), of one type but "
             "d_weight and d_bias, which are REAL or BF16, and stats, REAL");
    layernorm_backward_kernel(d_x, d_weight, d_bias, d_out, x, stats, weight);
    op_end();
}

void linear_forward(Tensor out, Tensor x, Tensor weight, Tensor bias)
{
    const int64_t rows = tensor_rows(x), k = tensor_width(x), m = tensor_width(out);

    op_begin("linear_forward", OPERANDS(out), OPERANDS(), OPERANDS(x, weight, bias), 2.0 * rows * k * m,
             is_matrix_of(x.dtype, x, rows, k) && is_matrix_of(x.dtype, out, rows, m)
                 && is_matrix_of(x.dtype, weight, m, k)
                 && (!bias.data || is_vector_of(x.dtype, bias, m)),
             "out (R, out), x (R, in), weight (out, in), bias (out) or none, of one type");
    linear_forward_kernel(out, x, weight, bias);
    op_end();
}

void linear_backward_input(Tensor d_x, Tensor d_out, Tensor weight)
{
    const int64_t rows = tensor_rows(d_out), k = tensor_width(d_x), m = tensor_width(d_out);

    op_begin("linear_backward_input", OPERANDS(d_x), OPERANDS(), OPERANDS(d_out, weight), 2.0 * rows * k * m,
             is_matrix_of(d_x.dtype, d_x, rows, k) && is_matrix_of(d_x.dtype, d_out, rows, m)
                 && is_matrix_of(d_x.dtype, weight, m, k),
             "d_x (R, in), d_out (R, out), weight (out, in), of one type");
    linear_backward_input_kernel(d_x, d_out, weight);
    op_end();
}

void linear_backward_weight(Tensor d_weight, Tensor d_bias, Tensor d_out, Tensor x)
{
    const int64_t rows = tensor_rows(x), k = tensor_width(x), m = tensor_width(d_out);

    op_begin(
        "linear_backward_weight", OPERANDS(), OPERANDS(d_weight, d_bias), OPERANDS(d_out, x), 2.0 * rows * k * m,
        is_matrix_of(x.dtype, x, rows, k) && is_matrix_of(x.dtype, d_out, rows, m) && is_gradient(d_weight.dtype)
            && is_matrix_of(d_weight.dtype, d_weight, m, k)
            && (!d_bias.data || is_vector_of(d_weight.dtype, d_bias, m)),
        "d_weight (out, in) and d_bias (out) or none, of one type, REAL or BF16; d_out (R, out) and x (R, in), of one "
        "type");
    linear_backward_weight_kernel(d_weight, d_bias, d_out, x);
    op_end();
}

static bool is_fp8(Tensor t, int64_t rows, int64_t width)
{
    return t.data && t.scale && (t.dtype == E4M3 || t.dtype == E5M2) && tensor_rows(t) == rows
           && tensor_width(t) == width;
}

void quantize(Tensor out, Tensor transposed, Tensor x)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x);

    op_begin("quantize", OPERANDS(out, transposed), OPERANDS(), OPERANDS(x), 0,
             is_matrix_of(x.dtype, x, rows, width) && (out.data || transposed.data)
                 && (!out.data || is_fp8(out, rows, width))
                 && (!transposed.data || is_fp8(transposed, width, rows))
                 && (!out.data || !transposed.data || (out.scale == transposed.scale && out.dtype == transposed.dtype)),
             "out (R, W) and transposed (W, R), or one of them, E4M3 or E5M2, with the same scale tensor; x (R, W)");
    quantize_kernel(out, transposed, x);
    op_end();
}

static bool fp8_fits(Tensor out, Tensor x, Tensor weight)
{
    const int64_t rows = tensor_rows(x), k = tensor_width(x), m = tensor_rows(weight);

    return is_fp8(x, rows, k) && is_fp8(weight, m, k) && (x.dtype == E4M3 || weight.dtype == E4M3)
           && is_matrix_of(out.dtype, out, rows, m) && rows % 16 == 0 && k % 16 == 0 && m % 16 == 0;
}

void linear_fp8(Tensor out, Tensor x, Tensor weight, Tensor bias)
{
    op_begin(
        "linear_fp8", OPERANDS(out), OPERANDS(), OPERANDS(x, weight, bias), 2.0 * tensor_count(out) * tensor_width(x),
        fp8_fits(out, x, weight) && (!bias.data || is_vector_of(out.dtype, bias, tensor_width(out))),
        "out (R, out), x (R, in) and weight (out, in) in fp8 with scales, one of them E4M3, bias (out) like out or "
        "none; all dimensions multiples of 16");
    linear_fp8_kernel(out, x, weight, bias, false);
    op_end();
}

void linear_fp8_add(Tensor out, Tensor x, Tensor weight)
{
    op_begin(
        "linear_fp8_add", OPERANDS(), OPERANDS(out), OPERANDS(x, weight), 2.0 * tensor_count(out) * tensor_width(x),
        fp8_fits(out, x, weight) && is_gradient(out.dtype),
        "out (R, out), REAL or BF16, x (R, in) and weight (out, in) in fp8 with scales, one of them E4M3; all "
        "dimensions multiples of 16");
    linear_fp8_kernel(out, x, weight, NONE, true);
    op_end();
}

/* The table is computed on the host, in double, in any build. */
void rope_table(Tensor rope, int64_t first)
{
    const int64_t T = rope.shape[0], D = tensor_width(rope);

    op_begin("rope_table", OPERANDS(rope), OPERANDS(), OPERANDS(), 0, is_matrix(rope, T, D) && D % 2 == 0,
             "rope (T, D), D even");
    real *table = malloc(tensor_bytes(rope));
    if (!table)
        fail("not enough memory on the host for a rope table: needs %s", bytes_text(tensor_bytes(rope)));
    for (int64_t t = 0; t < T; t++)
        for (int64_t i = 0; i < D / 2; i++) {
            const double angle = (first + t) * pow(10000, -2.0 * i / D);
            table[t * D + i] = cos(angle);
            table[t * D + D / 2 + i] = sin(angle);
        }
    device_upload(rope.data, table, tensor_bytes(rope));
    free(table);
    op_end();
}

static bool rope_fits(Tensor qkv, Tensor rope)
{
    const int64_t T = rope.shape[0], D = tensor_width(rope);

    return is_matrix(rope, T, D) && qkv.data && is_stored(qkv.dtype) && tensor_rows(qkv) % T == 0
           && tensor_width(qkv) % (3 * D) == 0;
}

void rope_forward(Tensor qkv, Tensor rope)
{
    op_begin("rope_forward", OPERANDS(), OPERANDS(qkv), OPERANDS(rope), 0, rope_fits(qkv, rope),
             "qkv (B*T, 3*A*D), rope (T, D)");
    rope_kernel(qkv, rope, false);
    op_end();
}

void rope_backward(Tensor d_qkv, Tensor rope)
{
    op_begin("rope_backward", OPERANDS(), OPERANDS(d_qkv), OPERANDS(rope), 0, rope_fits(d_qkv, rope),
             "d_qkv (B*T, 3*A*D), rope (T, D)");
    rope_kernel(d_qkv, rope, true);
    op_end();
}

void gelu_forward(Tensor out, Tensor x)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x);

    op_begin("gelu_forward", OPERANDS(out), OPERANDS(), OPERANDS(x), 0,
             is_matrix_of(x.dtype, out, rows, width)
                 && is_matrix_of(x.dtype, x, rows, width), "out (R, F), x (R, F), of one type");
    gelu_forward_kernel(out, x);
    op_end();
}

void gelu_backward(Tensor d_x, Tensor d_out, Tensor x)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x);

    op_begin("gelu_backward", OPERANDS(d_x), OPERANDS(), OPERANDS(d_out, x), 0,
             is_matrix_of(x.dtype, d_x, rows, width) && is_matrix_of(x.dtype, d_out, rows, width)
                 && is_matrix_of(x.dtype, x, rows, width),
             "d_x (R, F), d_out (R, F), x (R, F), of one type");
    gelu_backward_kernel(d_x, d_out, x);
    op_end();
}

void residual_forward(Tensor out, Tensor x, Tensor branch, Tensor bias)
{
    const int64_t rows = tensor_rows(x), width = tensor_width(x);

    op_begin("residual_forward", OPERANDS(out), OPERANDS(), OPERANDS(x, branch, bias), 0,
             is_matrix_of(x.dtype, x, rows, width) && is_matrix_of(x.dtype, branch, rows, width)
                 && is_matrix_of(x.dtype, out, rows, width)
                 && is_vector_of(x.dtype, bias, width),
             "out (R, H), x (R, H), branch (R, H), bias (H), of one type");
    residual_forward_kernel(out, x, branch, bias);
    op_end();
}

void residual_backward(Tensor d_bias, Tensor d_out)
{
    op_begin("residual_backward", OPERANDS(), OPERANDS(d_bias), OPERANDS(d_out), 0,
             is_matrix_of(d_out.dtype, d_out, tensor_rows(d_out), tensor_width(d_out)) && is_gradient(d_bias.dtype)
                 && is_vector_of(d_bias.dtype, d_bias, tensor_width(d_out)),
             "d_bias (H), d_out (R, H); d_bias REAL or BF16");
    residual_backward_kernel(d_bias, d_out);
    op_end();
}

void cross_entropy_forward(Tensor loss, Tensor lse, Tensor logits, Tensor targets, double scale)
{
    const int64_t rows = tensor_rows(logits);

    op_begin("cross_entropy_forward", OPERANDS(lse), OPERANDS(loss), OPERANDS(logits, targets), 0,
             is_f64_scalar(loss) && is_vector(lse, rows)
                 && is_matrix_of(logits.dtype, logits, rows, tensor_width(logits))
                 && are_ids(targets, rows),
             "lse (R), loss (1) F64, logits (R, V), targets (R) I32; lse REAL");
    cross_entropy_forward_kernel(loss, lse, logits, targets, scale);
    op_end();
}

void cross_entropy_backward(Tensor d_logits, Tensor logits, Tensor lse, Tensor targets, double scale)
{
    const int64_t rows = tensor_rows(logits);

    op_begin("cross_entropy_backward", OPERANDS(d_logits), OPERANDS(), OPERANDS(logits, lse, targets), 0,
             is_matrix_of(logits.dtype, d_logits, rows, tensor_width(logits))
                 && is_matrix_of(logits.dtype, logits, rows, tensor_width(logits)) && is_vector(lse, rows)
                 && are_ids(targets, rows),
             "d_logits (R, V), logits (R, V), lse (R), targets (R) I32; the first two of one type, lse REAL");
    cross_entropy_backward_kernel(d_logits, logits, lse, targets, scale);
    op_end();
}

void cross_entropy_max(Tensor max, Tensor logits)
{
    const int64_t rows = tensor_rows(logits);

    op_begin("cross_entropy_max", OPERANDS(max), OPERANDS(), OPERANDS(logits), 0,
             is_vector(max, rows) && is_matrix_of(logits.dtype, logits, rows, tensor_width(logits)),
             "max (R) REAL, logits (R, V)");
    cross_entropy_max_kernel(max, logits);
    op_end();
}

void cross_entropy_sums(Tensor sums, Tensor logits, Tensor max, Tensor targets)
{
    const int64_t rows = tensor_rows(logits);

    op_begin("cross_entropy_sums", OPERANDS(sums), OPERANDS(), OPERANDS(logits, max, targets), 0,
             is_matrix(sums, rows, 2) && is_matrix_of(logits.dtype, logits, rows, tensor_width(logits))
                 && is_vector(max, rows)
                 && are_ids(targets, rows),
             "sums (R, 2) and max (R) REAL, logits (R, V), targets (R) I32");
    cross_entropy_sums_kernel(sums, logits, max, targets);
    op_end();
}

void cross_entropy_loss(Tensor loss, Tensor lse, Tensor sums, Tensor max, double scale)
{
    const int64_t rows = tensor_rows(sums);

    op_begin("cross_entropy_loss", OPERANDS(lse), OPERANDS(loss), OPERANDS(sums, max), 0,
             is_f64_scalar(loss) && is_vector(lse, rows) && is_matrix(sums, rows, 2) && is_vector(max, rows),
             "lse (R), loss (1) F64, sums (R, 2), max (R)");
    cross_entropy_loss_kernel(loss, lse, sums, max, scale);
    op_end();
}

void ids_in_slice(Tensor out, Tensor ids, int64_t first, int64_t count)
{
    op_begin("ids_in_slice", OPERANDS(out), OPERANDS(), OPERANDS(ids), 0,
             are_ids(ids, tensor_count(ids)) && are_ids(out, tensor_count(ids)), "out (R) I32, ids (R) I32");
    ids_in_slice_kernel(out, ids, first, count);
    op_end();
}

void adamw_update(Tensor params, Tensor copy, Tensor m, Tensor v, Tensor gradients, AdamWArguments a)
{
    const int64_t count = tensor_count(params);

    op_begin("adamw_update", OPERANDS(copy), OPERANDS(params, m, v), OPERANDS(gradients, a.scale), 0,
             is_vector_of(params.dtype, params, count) && (!copy.data || is_vector_of(copy.dtype, copy, count))
                 && is_vector(m, count) && is_vector(v, count) && is_gradient(gradients.dtype)
                 && is_vector_of(gradients.dtype, gradients, count) && (!a.scale.data || is_f64_scalar(a.scale)),
             "copy or none, params, m, v and gradients of one count; m and v REAL, gradients REAL or BF16; scale (1) "
             "F64 or none");
    adamw_update_kernel(params, copy, m, v, gradients, a);
    op_end();
}

/* sum: the operand that receives the sum, if any; fits: whether it can. */
static void square_sum_begin(Operands sum, bool fits, const Tensor *list, int count)
{
    Tensor shown = count ? list[0] : NONE;      /* the first, or the first that doesn't fit */

    for (int i = count - 1; i >= 0; i--) {
        if (is_gradient(list[i].dtype) && list[i].data)
            continue;
        fits = false;
        shown = list[i];
    }
    for (int i = 1; fits && i < count; i++)
        op_reads(list[i]);
    op_begin("square_sum", sum, OPERANDS(), OPERANDS(shown), 0, fits,
             "tensors that are REAL or BF16, and a sum (1) F64");
}

double square_sum(const Tensor *list, int count)
{
    square_sum_begin(OPERANDS(), true, list, count);
    const double sum = square_sum_kernel(list, count);
    op_end();
    return sum;
}

void square_sum_into(Tensor sum, const Tensor *list, int count)
{
    square_sum_begin(OPERANDS(sum), is_f64_scalar(sum), list, count);
    square_sum_into_kernel(sum, list, count);
    op_end();
}

void clip_scale_into(Tensor scale, Tensor square_sum, double clip)
{
    op_begin("clip_scale", OPERANDS(scale), OPERANDS(), OPERANDS(square_sum), 0,
             is_f64_scalar(scale) && is_f64_scalar(square_sum), "scale (1) F64, square_sum (1) F64");
    clip_scale_into_kernel(scale, square_sum, clip);
    op_end();
}

void tensor_fill(Tensor t, double value)
{
    op_begin("fill", OPERANDS(t), OPERANDS(), OPERANDS(), 0, is_vector(t, tensor_count(t)), "a tensor");
    tensor_fill_kernel(t, value);
    op_end();
}

void tensor_add(Tensor to, Tensor from)
{
    op_begin("add", OPERANDS(), OPERANDS(to), OPERANDS(from), 0,
             is_vector(to, tensor_count(to)) && is_stored(from.dtype)
                 && is_vector_of(from.dtype, from, tensor_count(to)),
             "two tensors of one count, the first REAL");
    tensor_add_kernel(to, from);
    op_end();
}

void transpose_rows(Tensor out, Tensor in)
{
    op_begin("transpose_rows", OPERANDS(out), OPERANDS(), OPERANDS(in), 0,
             in.data && out.data && in.data != out.data && is_stored(in.dtype) && out.dtype == in.dtype && in.dims == 3
                 && out.dims == 3 && out.shape[0] == in.shape[1] && out.shape[1] == in.shape[0]
                 && out.shape[2] == in.shape[2],
             "out (Y, X, W), in (X, Y, W), of one type, not in place");
    transpose_rows_kernel(out, in);
    op_end();
}
