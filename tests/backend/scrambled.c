/* A product of matrices that sums in an order of its own for each tile, so that nothing
 * can rely on the order of one BLAS. `--blas=scrambled` gives it to the kernels.
 *
 * C = alpha op(X) op(Y) + beta C, by columns, with the signature of a BLAS whose integers
 * are longs. A hash of m, n, k and the place of a tile decides where its sums begin, in
 * which direction they go, and in how many parts they are made. */

#include <stdlib.h>

#define TILE 16
#define MIN(a, b) ((a) < (b) ? (a) : (b))

static unsigned long mix(unsigned long h, unsigned long x)
{
    h = (h ^ x) * 0x9e3779b97f4a7c15ul;
    return h ^ h >> 29;
}

#define DEFINE(REAL, name)                                                               \
    /* op(X), of `rows` x `columns`, with its rows padded to whole tiles */              \
    static REAL *name##_packed(const REAL *X, long ld, char op, long rows, long columns, \
                               long padded)                                              \
    {                                                                                    \
        REAL *P = calloc(padded * columns + 1, sizeof *P);                               \
        for (long j = 0; j < columns; j++)                                               \
            for (long i = 0; i < rows; i++)                                              \
                P[j * padded + i] = op == 'N' ? X[j * ld + i] : X[i * ld + j];           \
        return P;                                                                        \
    }                                                                                    \
                                                                                         \
    static void name##_add(REAL *sum, const REAL *P, long padded, const REAL *y, long from, \
                           long to, int backwards)                                       \
    {                                                                                    \
        for (long t = from; t < to; t++) {                                               \
            const long p = backwards ? from + to - 1 - t : t;                            \
            for (long i = 0; i < TILE; i++)                                              \
                sum[i] += P[p * padded + i] * y[p];                                      \
        }                                                                                \
    }                                                                                    \
                                                                                         \
    void name(const char *opX, const char *opY, const long *M, const long *N,            \
              const long *K, const REAL *alpha, const REAL *X, const long *ldX,          \
              const REAL *Y, const long *ldY, const REAL *beta, REAL *C,                 \
              const long *ldC)                                                           \
    {                                                                                    \
        const long m = *M, n = *N, k = *K, padded = (m + TILE - 1) / TILE * TILE;        \
        REAL *P = name##_packed(X, *ldX, *opX, m, k, padded);                            \
        REAL *R = name##_packed(Y, *ldY, *opY, k, n, k);                                 \
        for (long j = 0; j < n; j++)                                                     \
            for (long i = 0; i < m; i += TILE) {                                         \
                const unsigned long h = mix(mix(mix(mix(mix(1, m), n), k), i), j);       \
                const long start = k ? (long)(h % k) : 0, parts = 1 + (h >> 32) % 4;     \
                REAL total[TILE] = {0};                                                  \
                for (long part = 0; part < parts; part++) {                              \
                    REAL sum[TILE] = {0};                                                \
                    const long from = k * part / parts, to = k * (part + 1) / parts;     \
                    const long split = start < from ? from : MIN(start, to);             \
                    name##_add(sum, P + i, padded, R + j * k, split, to, h >> 40 & 1);   \
                    name##_add(sum, P + i, padded, R + j * k, from, split, h >> 41 & 1); \
                    for (long q = 0; q < TILE; q++)                                      \
                        total[q] += sum[q];                                              \
                }                                                                        \
                for (long q = 0; q < MIN(TILE, m - i); q++) {                            \
                    REAL *c = C + j * *ldC + i + q;                                      \
                    *c = *alpha * total[q] + (*beta == 0 ? 0 : *beta * *c);              \
                }                                                                        \
            }                                                                            \
        free(P);                                                                         \
        free(R);                                                                         \
    }

DEFINE(float, sgemm_)
DEFINE(double, dgemm_)
