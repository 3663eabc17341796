/* Square matrices, row by row, in batches. Everything is defined twice, for float and
 * for double, by including matrices.h and polynomial.h. */

#include <string.h>

/* Side of the blocks in which a matrix and its transpose are visited: the rows of both
 * blocks fit the first-level cache even when n is a power of two and they collide. */
#define BLOCK 16

/* Panels of rows, of which a thread makes one at a time: about 32 rows each, or 96.
 * Measured: a BLAS does thin panels faster than the whole while the other factor stays in
 * the second-level cache. */
#define PANELS(n) MAX(1, (n) / ((n) <= SMALL ? 32 : 96))
#define SMALL 512

/* numbers of a matrix that are combined at a time: they stay in the first-level cache */
#define CHUNK 1024
/* terms of a linear combination */
#define MOST 4
/* below, threads take longer to wake than to work */
#define LARGE 65536
/* from here on a square is made of its lower blocks: measured in linalg/_square.py */
#define HALVED 96

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

#define REAL float
#define NAME(x) x##_f32
#include "matrices.h"
#include "polynomial.h"
#undef REAL
#undef NAME

#define REAL double
#define NAME(x) x##_f64
#include "matrices.h"
#include "polynomial.h"
