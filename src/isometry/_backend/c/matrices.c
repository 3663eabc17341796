/* Batches of square matrices, stored by rows. Everything is defined twice, for float and
 * for double, by including matrices.h and polynomial.h. The names ISOMETRY_... are numbers
 * that Python knows too: constants.py has them, and the build passes them in. */

#include <string.h>

/* see openmp.c */
int omp_get_max_threads(void);

/* Side of the blocks in which a matrix and its transpose are visited. Each row of a block
 * is read or written once; the transpose is taken in a small copy of the block. */
#define BLOCK 16

/* Up to this n, a product is computed in thin panels of rows. We measured that a BLAS is
 * faster with such panels, presumably because the other factor, which all panels share,
 * stays in the second-level cache. */
#define SMALL 512
/* The number of panels of a square. A panel has about 32 rows, or 96 if n is above SMALL.
 * It ends at the diagonal, so each panel is wider than the one above it. */
#define PANELS(n) MAX(1, (n) / ((n) <= SMALL ? 32 : 96))

/* How many entries of each matrix are combined at a time. If there are several linear
 * combinations, the second one can read these entries from the cache. */
#define CHUNK 1024
/* A sum over a matrix has this many parts, whatever the number of threads. The threads
 * share the parts, so the result does not depend on how many threads there are. */
#define PARTS 16
/* Within a part, this many terms are added in the precision of the matrix. These short
 * sums are then added in double precision. */
#define TERMS 128
/* with fewer numbers than this, the work takes less time than waking the threads */
#define LARGE 65536

/* Gives this thread the last index that is left; negative if there is none. */
#define TAKE(left) __atomic_sub_fetch(&(left), 1, __ATOMIC_RELAXED)

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

#define REAL float
#define NAME(x) isometry_##x##_f32
#include "gemm.h"
#include "matrices.h"
#include "polynomial.h"
#undef REAL
#undef NAME

#define REAL double
#define NAME(x) isometry_##x##_f64
#include "gemm.h"
#include "matrices.h"
#include "polynomial.h"
