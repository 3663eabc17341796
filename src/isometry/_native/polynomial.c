/* The polynomial of one skew matrix, and its adjoint, each in one call: for small
 * matrices most of the time would go into calling. The steps and their names are those
 * of linalg/_polynomial.py. */

#include <string.h>

#define MIN(a, b) ((a) < (b) ? (a) : (b))

/* numbers of a matrix that are combined at a time: they stay in the first-level cache */
#define CHUNK 1024
/* below, threads take longer to wake than to work */
#define LARGE 65536
/* as in matrices.c */
#define BLOCK 16
/* from here on a square is made of its lower blocks: measured in linalg/_square.py */
#define HALVED 96

#define REAL float
#define NAME(x) x##_f32
#include "polynomial.h"
#undef REAL
#undef NAME

#define REAL double
#define NAME(x) x##_f64
#include "polynomial.h"
