/* The product of a BLAS, for one type REAL. It is given longs, of which a BLAS with 32-bit
 * integers reads the lower half: both kinds see the same small numbers on a little-endian
 * machine. To a BLAS, which goes by columns, a row-major matrix is its transpose. */

typedef void (*NAME(gemm_t))(const char *, const char *, const long *, const long *,
                             const long *, const REAL *, const REAL *, const long *,
                             const REAL *, const long *, const REAL *, REAL *,
                             const long *);
