/* The matrix product of a BLAS, for one type REAL. We pass integers as longs. A BLAS with
 * 32-bit integers reads only the lower half, which on a little-endian machine is the same
 * small number. A BLAS stores matrices by columns, so our rows look transposed to it. */

typedef void (*NAME(gemm_t))(const char *, const char *, const long *, const long *,
                             const long *, const REAL *, const REAL *, const long *,
                             const REAL *, const long *, const REAL *, REAL *,
                             const long *);
