/* h_t = sigma(W h_{t-1} + u_t) over time, and its adjoint; see scan.h. The names
 * ISOMETRY_... are numbers that Python knows too: constants.py has them, and the build
 * passes them in. */

#include <float.h>
#include <math.h>
#include <string.h>
#ifdef __SSE__
#include <immintrin.h>
#endif

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

/* Gradients that fade over a thousand steps pass through subnormal numbers, on which
 * processors are a hundred times slower: inside a scan they are zero. */
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

/* the vector versions of glibc, for the loops below: with an older one, a library that
 * asks for them does not load */
#ifdef __GLIBC_PREREQ
#if (defined(__x86_64__) && __GLIBC_PREREQ(2, 35)) || \
    (defined(__aarch64__) && __GLIBC_PREREQ(2, 40))
__attribute__((simd("notinbranch"))) float tanhf(float);
__attribute__((simd("notinbranch"))) double tanh(double);
#endif
#endif

#define REAL float
#define NAME(x) isometry_##x##_f32
#define SQRT sqrtf
#define FABS fabsf
#define TANH_OF tanhf
#define COPYSIGN copysignf
#define EPSILON FLT_EPSILON
#include "gemm.h"
#include "scan.h"
#undef REAL
#undef NAME
#undef SQRT
#undef FABS
#undef TANH_OF
#undef COPYSIGN
#undef EPSILON

#define REAL double
#define NAME(x) isometry_##x##_f64
#define SQRT sqrt
#define FABS fabs
#define TANH_OF tanh
#define COPYSIGN copysign
#define EPSILON DBL_EPSILON
#include "gemm.h"
#include "scan.h"
