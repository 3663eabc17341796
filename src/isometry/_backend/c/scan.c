/* The recurrence h_t = sigma(W h_{t-1} + u_t), and its adjoint; see scan.h. The numbers
 * ISOMETRY_... are defined in constants.py, and the build passes them to the compiler. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE__
#include <immintrin.h>
#endif

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* Gradients that decay over a thousand time steps become subnormal numbers, and arithmetic
 * with subnormal numbers is very slow on many processors. So inside a scan on x86,
 * subnormal numbers are replaced with zero: 0x8040 sets the bits FTZ (flush to zero)
 * and DAZ (denormals are zero) of the register MXCSR. */
static unsigned flush_subnormals(void)
{
#ifdef __SSE__
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    return before;
#else
    return 0;
#endif
}

static void restore_subnormals(unsigned before)
{
#ifdef __SSE__
    _mm_setcsr(before);
#else
    (void)before;
#endif
}

/* 1/2!, 1/3!, ...: the coefficients of (exp(r) - 1 - r) / r^2 in powers of r. Of these
 * terms, float uses the first 6 and double all 12. For |r| <= log(2) / 2, the omitted
 * terms are below the rounding error of r. */
static const double series[] = {1. / 2,        1. / 6,         1. / 24,       1. / 120,
                                1. / 720,      1. / 5040,      1. / 40320,    1. / 362880,
                                1. / 3628800,  1. / 39916800,  1. / 479001600,
                                1. / 6227020800};

#define REAL float
#define NAME(x) isometry_##x##_f32
#define SQRT sqrtf
#define FABS fabsf
#define COPYSIGN copysignf
#define EPSILON FLT_EPSILON
/* an integer type of the size of a REAL, the number of binary digits of a REAL, and the
 * bias of its exponent */
#define BITS uint32_t
#define DIGITS 24
#define BIAS 127
/* from this number on, tanh is rounded to 1 */
#define TANH_IS_ONE 10
/* how many terms of `series` are used */
#define TANH_TERMS 6
/* log(2) as a sum of two numbers; the product of the first with a small integer is exact */
#define LOG2_HIGH 0x1.62ep-1f
#define LOG2_LOW 0x1.0bfbe8p-15f
/* If the larger of |x| and |y| is between SQUARES_FROM and SQUARES_UP_TO, x^2 + y^2 is
 * finite. It is also so large that a square which is flushed to zero is below the
 * rounding error of the sum. Larger finite numbers times SHRINK are in this range, and
 * so are smaller normal numbers times ENLARGE. */
#define SQUARES_UP_TO 0x1p62f
#define SHRINK 0x1p-66f
#define SQUARES_FROM 0x1p-50f
#define ENLARGE 0x1p78f
#include "gemm.h"
#include "scan.h"
#undef REAL
#undef NAME
#undef SQRT
#undef FABS
#undef COPYSIGN
#undef EPSILON
#undef BITS
#undef DIGITS
#undef BIAS
#undef TANH_IS_ONE
#undef TANH_TERMS
#undef LOG2_HIGH
#undef LOG2_LOW
#undef SQUARES_UP_TO
#undef SHRINK
#undef SQUARES_FROM
#undef ENLARGE

#define REAL double
#define NAME(x) isometry_##x##_f64
#define SQRT sqrt
#define FABS fabs
#define COPYSIGN copysign
#define EPSILON DBL_EPSILON
#define BITS uint64_t
#define DIGITS 53
#define BIAS 1023
#define TANH_IS_ONE 20
#define TANH_TERMS 12
#define LOG2_HIGH 0x1.62e42fefa2p-1
#define LOG2_LOW 0x1.9ef35793c7673p-41
#define SQUARES_UP_TO 0x1p510
#define SHRINK 0x1p-516
#define SQUARES_FROM 0x1p-450
#define ENLARGE 0x1p580
#include "gemm.h"
#include "scan.h"
