/* Square matrices, row by row, in batches. Everything is defined twice, for float and
 * for double, by including matrices.h and polynomial.h. */

#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#else
#define omp_get_max_threads() 1
#endif

/* Side of the blocks in which a matrix and its transpose are visited: the rows of both
 * blocks fit the first-level cache even when n is a power of two and they collide. */
#define BLOCK 16

/* A product is made of panels of rows: measured, a BLAS does thin ones faster than the
 * whole while the other factor stays in the second-level cache. */
#define SMALL 512
/* those of a square, which grow from panel to panel: about 32 rows each, or 96 */
#define PANELS(n) MAX(1, (n) / ((n) <= SMALL ? 32 : 96))

/* numbers of a matrix that are combined at a time: they stay in the first-level cache */
#define CHUNK 1024
/* terms of a linear combination: as many as a scheme has products */
#define MOST 4
/* of a sum over a matrix, each for one thread */
#define PARTS 16
/* terms of a sum in the precision of the matrix; such sums are added in double precision */
#define TERMS 128
/* below, threads take longer to wake than to work */
#define LARGE 65536
/* from here on a square is made of its lower half: measured in linalg/_square.py */
#define HALVED 96

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

#define REAL float
#define NAME(x) isometry_##x##_f32
#include "matrices.h"
#include "polynomial.h"
#undef REAL
#undef NAME

#define REAL double
#define NAME(x) isometry_##x##_f64
#include "matrices.h"
#include "polynomial.h"
