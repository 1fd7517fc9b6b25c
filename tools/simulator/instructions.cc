/* The table of arithmetic instructions. Each is a loop over the lanes, which the compiler vectorizes. */
#include "ptx.h"

#include <cmath>
#include <fenv.h>
#include <type_traits>
#include <utility>

#include "numbers.h"

typedef uint16_t U16;
typedef uint32_t U32;
typedef uint64_t U64;
typedef int16_t S16;
typedef int32_t S32;
typedef int64_t S64;

/* A lane's number in a register, or its bit of a predicate. */
template <typename T> static inline T value(const uint8_t *place, int lane)
{
    if constexpr (std::is_same_v<T, bool>)
        return *(const uint32_t *)place >> lane & 1;
    else
        return ((const T *)place)[lane];
}

template <typename F, typename D, typename... A, size_t... x>
static inline void run(Warp &w, const Instruction &i, uint32_t lanes, std::index_sequence<x...>)
{
    uint8_t *const to = w.registers + i.to[0];
    const uint8_t *const from[] = {w.registers + i.from[x]...};

    if constexpr (std::is_same_v<D, bool>) {
        uint32_t result = 0;
        for (int l = 0; l < LANES; l++)
            result |= (uint32_t)F()(value<A>(from[x], l)...) << l;
        w.predicate(i.to[0]) = (w.predicate(i.to[0]) & ~lanes) | (result & lanes);
    } else if (lanes == ~0u) {
#pragma GCC ivdep
        for (int l = 0; l < LANES; l++)
            ((D *)to)[l] = F()(value<A>(from[x], l)...);
    } else {
        for (; lanes; lanes &= lanes - 1)
            ((D *)to)[__builtin_ctz(lanes)] = F()(value<A>(from[x], __builtin_ctz(lanes))...);
    }
}

/* The operation that a function of one lane's numbers is. Its types are those of the registers. */
template <typename F, typename D, typename... A> static Operation operation(D (F::*)(A...) const)
{
    return {[](Warp &w, const Instruction &i, uint32_t lanes) {
        run<F, D, A...>(w, i, lanes, std::index_sequence_for<A...>());
    }, {sizeof(D)}, {sizeof(A)...}};
}

template <typename F> static Operation operation(F)
{
    return operation(&F::operator());
}

/* OPn(name, type of the result, types of n operands, the result as an expression of a, b and c) */
#define OP1(NAME, D, A, ...) {NAME, operation([](A a) -> D { return __VA_ARGS__; })}
#define OP2(NAME, D, A, B, ...) {NAME, operation([](A a, B b) -> D { return __VA_ARGS__; })}
#define OP3(NAME, D, A, B, C, ...) {NAME, operation([](A a, B b, C c) -> D { return __VA_ARGS__; })}
#define COMPARE(NAME, T, EXPRESSION) OP2("setp." NAME, bool, T, T, EXPRESSION)
#define COMPARE_ALL(TYPE, T) \
    COMPARE("eq." TYPE, T, a == b), COMPARE("ne." TYPE, T, a < b || a > b), COMPARE("lt." TYPE, T, a < b), \
    COMPARE("le." TYPE, T, a <= b), COMPARE("gt." TYPE, T, a > b), COMPARE("ge." TYPE, T, a >= b)
/* equ ...: also true if one is NaN */
#define COMPARE_UNORDERED(TYPE, T) \
    COMPARE("equ." TYPE, T, !(a < b || a > b)), COMPARE("neu." TYPE, T, a != b), COMPARE("ltu." TYPE, T, !(a >= b)), \
    COMPARE("leu." TYPE, T, !(a > b)), COMPARE("gtu." TYPE, T, !(a <= b)), COMPARE("geu." TYPE, T, !(a < b))
#define SELECT(TYPE, T) OP3("selp." TYPE, T, T, T, bool, c ? a : b)

/* The unsigned and the signed type of one width. Sums and products wrap around, so they are unsigned. */
#define INTEGERS(BITS, U, S) \
    OP2("add.u" BITS, U, U, U, a + b), OP2("add.s" BITS, U, U, U, a + b), \
    OP2("sub.u" BITS, U, U, U, a - b), OP2("sub.s" BITS, U, U, U, a - b), \
    OP2("mul.lo.u" BITS, U, U, U, (U64)a * b), OP2("mul.lo.s" BITS, U, U, U, (U64)a * b), \
    OP3("mad.lo.u" BITS, U, U, U, U, (U64)a * b + c), OP3("mad.lo.s" BITS, U, U, U, U, (U64)a * b + c), \
    OP2("div.u" BITS, U, U, U, b ? a / b : (U)-1), OP2("rem.u" BITS, U, U, U, b ? a % b : a), \
    OP2("div.s" BITS, S, S, S, b == -1 ? (S)(0 - (U)a) : b ? a / b : (S)-1), \
    OP2("rem.s" BITS, S, S, S, b == -1 ? 0 : b ? a % b : a), \
    OP2("min.u" BITS, U, U, U, a < b ? a : b), OP2("min.s" BITS, S, S, S, a < b ? a : b), \
    OP2("max.u" BITS, U, U, U, a > b ? a : b), OP2("max.s" BITS, S, S, S, a > b ? a : b), \
    OP1("neg.s" BITS, U, U, 0 - a), OP1("abs.s" BITS, S, S, a < 0 ? 0 - a : a), OP1("not.b" BITS, U, U, ~a), \
    OP2("and.b" BITS, U, U, U, a & b), OP2("or.b" BITS, U, U, U, a | b), OP2("xor.b" BITS, U, U, U, a ^ b), \
    OP2("shl.b" BITS, U, U, U32, b >= 8 * sizeof(U) ? 0 : (U)(a << b)), \
    OP2("shr.u" BITS, U, U, U32, b >= 8 * sizeof(U) ? 0 : a >> b), \
    OP2("shr.s" BITS, S, S, U32, a >> (b >= 8 * sizeof(S) ? 8 * sizeof(S) - 1 : b)), \
    OP1("mov.u" BITS, U, U, a), OP1("mov.s" BITS, U, U, a), OP1("mov.b" BITS, U, U, a), \
    COMPARE_ALL("s" BITS, S), COMPARE_ALL("u" BITS, U), COMPARE_ALL("b" BITS, U), \
    SELECT("b" BITS, U), SELECT("u" BITS, U), SELECT("s" BITS, U)

static void fma_down(Warp &w, const Instruction &i, uint32_t lanes)        /* rounded to -Inf */
{
    const float *const a = w.lane<float>(i.from[0]), *const b = w.lane<float>(i.from[1]);
    const float *const c = w.lane<float>(i.from[2]);

    fesetround(FE_DOWNWARD);
    for (; lanes; lanes &= lanes - 1) {
        const int l = __builtin_ctz(lanes);
        w.lane<float>(i.to[0])[l] = fmaf(a[l], b[l], c[l]);
    }
    fesetround(FE_TONEAREST);
}

static U32 insert_bits(U32 a, U32 b, U32 at, U32 count)         /* the first bits of a, into b at a place */
{
    const U64 mask = ((1ull << std::min(count & 255, 32u)) - 1) << std::min(at & 255, 32u);

    return (b & ~mask) | (((U64)a << std::min(at & 255, 32u)) & mask);
}

/* As PTX: of a number and NaN, the number. */
#define LEAST(a, b) (a < b || b != b ? a : b)
#define MOST(a, b) (a > b || b != b ? a : b)

#define FLOATS(TYPE, T) \
    OP2("add." TYPE, T, T, T, a + b), OP2("sub." TYPE, T, T, T, a - b), OP2("mul." TYPE, T, T, T, a * b), \
    OP3("fma.rn." TYPE, T, T, T, T, std::fma(a, b, c)), OP2("div.rn." TYPE, T, T, T, a / b), \
    OP2("min." TYPE, T, T, T, LEAST(a, b)), OP2("max." TYPE, T, T, T, MOST(a, b)), OP1("neg." TYPE, T, T, -a), \
    OP1("abs." TYPE, T, T, std::fabs(a)), OP1("sqrt.rn." TYPE, T, T, std::sqrt(a)), OP1("rcp.rn." TYPE, T, T, 1 / a), \
    OP1("mov." TYPE, T, T, a), COMPARE_ALL(TYPE, T), COMPARE_UNORDERED(TYPE, T), SELECT(TYPE, T)

static float flushed(float x)                                   /* .ftz: subnormals are 0 */
{
    return std::fabs(x) < 0x1p-126f ? std::copysign(0.f, x) : x;
}

#define FLOAT_OF(TYPE, T) OP1("cvt.rn.f32." TYPE, float, T, a), OP1("cvt.rn.f64." TYPE, double, T, a)

const Table arithmetic = {
    INTEGERS("16", U16, S16),
    INTEGERS("32", U32, S32),
    INTEGERS("64", U64, S64),
    OP2("mul.hi.u32", U32, U32, U32, (U64)a * b >> 32),
    OP2("mul.hi.s32", U32, S32, S32, (U64)((S64)a * b) >> 32),
    OP2("mul.hi.u64", U64, U64, U64, (unsigned __int128)a * b >> 64),
    OP2("mul.wide.u16", U32, U16, U16, (U32)a * b),
    OP2("mul.wide.u32", U64, U32, U32, (U64)a * b),
    OP2("mul.wide.s32", S64, S32, S32, (S64)a * b),
    OP1("popc.b32", U32, U32, __builtin_popcount(a)),
    {"bfi.b32", operation([](U32 a, U32 b, U32 c, U32 d) -> U32 { return insert_bits(a, b, c, d); })},
    OP2("and.pred", bool, bool, bool, a && b),
    OP2("or.pred", bool, bool, bool, a || b),
    OP2("xor.pred", bool, bool, bool, a != b),
    OP1("not.pred", bool, bool, !a),
    OP1("mov.pred", bool, bool, a),
    FLOATS("f32", float),
    FLOATS("f64", double),
    {"fma.rm.f32", {fma_down, {4}, {4, 4, 4}}},
    OP2("div.approx.f32", float, float, float, a / b),
    OP1("ex2.approx.f32", float, float, exp2f(a)),
    OP1("ex2.approx.ftz.f32", float, float, flushed(exp2f(flushed(a)))),

    FLOAT_OF("s32", S32),
    FLOAT_OF("u32", U32),
    FLOAT_OF("s64", S64),
    FLOAT_OF("u64", U64),
    OP1("cvt.sat.f32.f32", float, float, a > 0 ? a < 1 ? a : 1 : 0),
    OP1("cvt.f64.f32", double, float, a),
    OP1("cvt.rn.f32.f64", float, double, a),
    OP1("cvt.f32.f16", float, U16, float_of_half(a)),
    OP1("cvt.f32.bf16", float, U16, float_of_bfloat(a)),
    OP1("cvt.rn.f16.f32", U16, float, half_of(a)),
    OP1("cvt.rn.bf16.f32", U16, float, bfloat_of(a)),
    OP2("cvt.rn.f16x2.f32", U32, float, float, (U32)half_of(a) << 16 | half_of(b)),
    OP2("cvt.rn.bf16x2.f32", U32, float, float, (U32)bfloat_of(a) << 16 | bfloat_of(b)),
    OP1("cvt.s64.s32", S64, S32, a),
    OP1("cvt.u32.u64", U32, U64, a),
    OP1("cvt.u64.u32", U64, U32, a),
    OP1("cvt.u16.u32", U16, U32, a),
    OP1("cvt.u16.u64", U16, U64, a),
    OP1("cvt.u32.u16", U32, U16, a),
    OP1("cvt.u64.u16", U64, U16, a),
    OP1("cvta.to.global.u64", U64, U64, a),
    OP1("cvta.shared.u64", U64, U64, a + SHARED_WINDOW),
};
