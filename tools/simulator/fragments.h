/* Where the elements of a tensor core's operands lie, as the formulas of the PTX ISA manual ("Warp Level Matrix
 * Multiply-Accumulate Instructions": m16n8k16 with .f16 and .bf16; ldmatrix). test_simulator.c compares them with the
 * strides of CuTe. In C, so that both use them.
 */
#ifndef FRAGMENTS_H
#define FRAGMENTS_H

typedef struct {
    int row, column;
} Element;

/* Element i (of 8) of the left operand, 16 x 16, that a lane holds: two per register, the first in the lower half. */
static inline Element left_element(int lane, int i)
{
    const Element e = {lane / 4 + (i & 2 ? 8 : 0), lane % 4 * 2 + (i & 1) + (i & 4 ? 8 : 0)};

    return e;
}

/* Element i (of 4) of the right operand, 16 x 8. */
static inline Element right_element(int lane, int i)
{
    const Element e = {lane % 4 * 2 + (i & 1) + (i & 2 ? 8 : 0), lane / 4};

    return e;
}

/* Element i (of 4) of the sum, 16 x 8: one per register. */
static inline Element sum_element(int lane, int i)
{
    const Element e = {lane / 4 + (i & 2 ? 8 : 0), lane % 4 * 2 + (i & 1)};

    return e;
}

/* ldmatrix: element i (of 2) of each 8 x 8 matrix that a lane gets, in the matrix as it lies in memory. The lanes 8j to
 * 8j + 7 give the addresses of the rows of matrix j. */
static inline Element matrix_element(int lane, int i, int transposed)
{
    const Element e = {lane / 4, lane % 4 * 2 + i}, t = {lane % 4 * 2 + i, lane / 4};

    return transposed ? t : e;
}

#endif
