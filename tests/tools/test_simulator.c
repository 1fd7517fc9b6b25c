/* The simulated GPU (tools/simulator) finds mistakes that are planted in kernels, and its tensor cores have the layouts
 * of a second statement of them. */
#include <stdio.h>
#include <string.h>

#include "../harness.h"
#include "../../tools/simulator/fragments.h"

/* ---- layouts ---- */

/* CuTe (NVIDIA's CUTLASS) states a layout as sizes and strides: the digits of an index, the first one fastest, times
 * strides. */
typedef struct {
    int size, stride;
} Mode;

static int cute(int index, const Mode *modes, int count)
{
    int place = 0;

    for (int i = 0; i < count; i++) {
        place += index % modes[i].size * modes[i].stride;
        index /= modes[i].size;
    }
    return place;
}

/* include/cute/atom/mma_traits_sm80.hpp, SM80_16x8x16_F32F16F16F32_TN; copy_traits_sm75.hpp, SM75_U32x4_LDSM_N and
 * SM75_U16x8_LDSM_T. Places count from the first dimension: M of A (M, K), N of B (N, K), M of C (M, N). */
static void layouts_are_cutes(void **state)
{
    static const Mode a_lane[] = {{4, 32}, {8, 1}}, a[] = {{2, 16}, {2, 8}, {2, 128}};
    static const Mode b_lane[] = {{4, 16}, {8, 1}}, b[] = {{2, 8}, {2, 64}};
    static const Mode c_lane[] = {{4, 32}, {8, 1}}, c[] = {{2, 16}, {2, 8}};
    static const Mode plain[] = {{32, 1}, {4, 1024}};
    static const Mode t_lane[] = {{4, 256}, {8, 16}}, t[] = {{16, 1}, {2, 128}, {4, 1024}};

    for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < 8; i++) {
            const Element e = left_element(lane, i), m = matrix_element(lane, i % 2, 0);
            const Element n = matrix_element(lane, i % 2, 1);
            assert_int_equal(e.row + 16 * e.column, cute(lane, a_lane, 2) + cute(i, a, 3));
            /* bits of the 32 rows of 128 bits, which four matrices are */
            assert_int_equal(128 * (8 * (i / 2) + m.row) + 16 * m.column, lane * 32 + cute(16 * i, plain, 2));
            assert_int_equal(128 * (8 * (i / 2) + n.row) + 16 * n.column, cute(lane, t_lane, 2) + cute(16 * i, t, 3));
        }
        for (int i = 0; i < 4; i++) {
            const Element e = right_element(lane, i), s = sum_element(lane, i);
            assert_int_equal(e.column + 8 * e.row, cute(lane, b_lane, 2) + cute(i, b, 2));
            assert_int_equal(s.row + 16 * s.column, cute(lane, c_lane, 2) + cute(i, c, 2));
        }
    }
}

/* ---- mistakes ---- */

/* Which of two racing accesses comes first depends on the order; so words may have alternatives: "these|or these". */
static bool has_words(const char *text, const char *words)
{
    char part[200];
    const size_t length = strcspn(words, "|");

    snprintf(part, sizeof part, "%.*s", (int)length, words);
    return strstr(text, part) || (words[length] && has_words(text, words + length + 1));
}

/* Mistakes in a program of their own, planted_kernels.cu. Without its mistake each kernel runs well. */
static void mistakes_are_found(void **state)
{
    static const struct {
        const char *kernel;
        int mistake;
        const char *words;
    } planted[] = {
        {"barriers", 1, "no barrier orders the two|never written"},
        {"barriers", 2, "no barrier orders the two"},
        {"barriers", 3, "of the warp are not here"},
        {"lanes", 1, "no barrier orders the two"},
        {"lanes", 2, "0x80, outside of shared memory"},
        {"lanes", 3, "shared memory that was never written"},
        {"elements", 1, "planted_kernels.cu:56), thread 40 of block 15, \"ld.global.f32"},
        {"elements", 2, "no barrier orders the two"},
        {"elements", 3, "is no multiple of the 16 bytes"},
        {"elements", 7, "outside of the GPU's memory"},
        {"elements", 8, "that was never written"},
        {"copies", 1, "an asynchronous copy is in flight"},
        {"copies", 2, "no barrier orders the two"},
        {"copies", 9, "0x1fc, outside of shared memory"},
        {"freed", 1, "or freed"},
        {"copied", 1, "outside of every allocation"},
        {"streams", 1, "no event and no wait orders the two"},
        {"streams", 2, "no event and no wait orders the two|or freed"},
    };
    static const char *const orders[] = {"in-order", "reversed", "shuffled"};

    for (int o = 0; o < 3; o++)
        for (size_t i = 0; i < sizeof planted / sizeof *planted; i++) {
            run_well("env SIMULATED_ORDER=%s " BUILD "/simulated/planted_kernels %s 0", orders[o], planted[i].kernel);
            Result r = run("env SIMULATED_ORDER=%s " BUILD "/simulated/planted_kernels %s %d", orders[o],
                           planted[i].kernel, planted[i].mistake);
            if (r.status != 1 || !has_words(r.err, planted[i].words))
                fail_msg("%s, mistake %d, %s: status %d, and not \"%s\", but\n%s", planted[i].kernel,
                         planted[i].mistake, orders[o], r.status, planted[i].words, r.err);
            result_free(r);
        }
}

/* ---- counts ---- */

/* The ladder's README derives these from the source, for n = 512. */
static void counts_follow_from_the_source(void **state)
{
    enum { N = 256, MULTIPLY_ADDS = N * N * N / 32, WARPS = N * N / 32 };
    char expected[4][100];

    Result r = run("env SIMULATED_COUNTS=1 " BUILD "/simulated/ladder --size %d --rungs 1,3,5 --seconds 0 --copy 0", N);
    assert_int_equal(r.status, 0);
    snprintf(expected[0], 100, "float %.1f, ex2 0.0, mma 0.0,", MULTIPLY_ADDS / 1e3);
    snprintf(expected[1], 100, "memory: %.1f sectors,", (WARPS * (33.0 * N + 32)) / 1e3);         /* rung 1 */
    snprintf(expected[2], 100, "shared memory: %.1f wavefronts,", (2 + 2.0 / 32) * MULTIPLY_ADDS / 1e3);  /* rung 3 */
    /* rung 5: per tile 8 steps deep, 8 warps load 16 times from A and from B, and copy one row of each: 4 wavefronts */
    snprintf(expected[3], 100, "wavefronts, %.1f without conflicts", N / 128 * (N / 128) * (N / 8) * 8 * 34 * 4 / 1e3);
    for (int i = 0; i < 4; i++)
        if (!strstr(r.out, expected[i]))
            fail_msg("no \"%s\" in\n%s", expected[i], r.out);
    result_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_are_cutes),
        cmocka_unit_test(mistakes_are_found),
        cmocka_unit_test(counts_follow_from_the_source),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
