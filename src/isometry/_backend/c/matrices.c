/* Kernels for batches of square matrices, stored by rows. Everything is defined twice, for
 * float and for double, by including matrices.h and polynomial.h. The numbers ISOMETRY_...
 * are defined in constants.py, and the build passes them to the compiler. */

#include <string.h>

/* With GCC, this function is defined in openmp.c, which asks torch's OpenMP runtime. */
int omp_get_max_threads(void);

/* Size of the blocks in which a matrix and its transpose are read and written. The rows
 * of a block are contiguous in memory, its columns are not. So blocks are read and
 * written by rows, and transposed in a small copy. */
#define BLOCK 16

/* From ISOMETRY_HALVED_FROM up to this n, the left factor of a product is split into
 * panels of rows. We measured that a BLAS is faster with such panels, presumably
 * because the right factor, which all panels share, stays in the second-level cache. */
#define SPLIT_UP_TO 512
/* The number of panels in which A A is computed. A panel has about 32 rows, or 96 if n is
 * above SPLIT_UP_TO. Its rows end near the diagonal, because only the lower half of A A
 * is computed. So the panels at the bottom are the widest. */
#define PANELS(n) MAX(1, (n) / ((n) <= SPLIT_UP_TO ? 32 : 96))

/* How many entries of each matrix are combined at a time. If there are several linear
 * combinations, the later ones find these entries in the cache. */
#define CHUNK 1024
/* A sum over a matrix has this many parts for any number of threads, so the result does
 * not depend on how many threads share the parts. */
#define PARTS 16
/* Within a part, up to this many terms are added in the precision of the matrix. These
 * short sums are then added in double precision. */
#define TERMS 128
/* work on fewer numbers than this takes less time than waking the threads */
#define PARALLEL_FROM 65536

/* The next index for the calling thread; negative if none is left. `left` counts how many
 * indices are left, and all threads share it. Indices are taken in descending order. */
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
