/* The matrix product of a BLAS, for one type REAL. We pass pointers to longs. A BLAS with
 * 32-bit integers reads only the lower half of a long, which on a little-endian machine is
 * the same number. A BLAS stores matrices by columns, so our matrices, which are stored by
 * rows, look transposed to it. */

typedef void (*NAME(gemm_t))(const char *, const char *, const long *, const long *,
                             const long *, const REAL *, const REAL *, const long *,
                             const REAL *, const long *, const REAL *, REAL *,
                             const long *);
