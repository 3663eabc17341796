/* The polynomial of one skew matrix, and its adjoint, each in one call: for small
 * matrices most of the time would go into calling. The steps and their names are those
 * of linalg/_polynomial.py. Kernels for one type REAL; see matrices.c.
 *
 * A scheme is its numbers, stage after stage, and three counts: how many powers of A
 * there are, how many stages, and a mask of those that are squares. A stage that knows k
 * matrices has 1 + k numbers for L, the first for the identity, and k for R; after the
 * last stage come k for the final combination. */

static void NAME(squared)(void *product, const REAL *A, REAL *C, long n)
{
    if (n >= HALVED)
        NAME(square)(product, A, C, 1, n);
    else
        NAME(times)(product, A, 0, A, 1, 0, C, n);
}

/* y = c_0 x_0 + ... + c_{k-1} x_{k-1}, or y += that. */
static inline __attribute__((always_inline)) void
NAME(sum_of)(const long k, const REAL *const *x, const REAL *c, REAL *y, long size,
             int anew)
{
#pragma GCC ivdep
    for (long i = 0; i < size; i++) {
        REAL total = anew ? 0 : y[i];
        for (long j = 0; j < k; j++)
            total += c[j] * x[j][i];
        y[i] = total;
    }
}

/* The same for k up to MOST, each compiled by itself, without terms that are zero. */
static void NAME(sum)(long k, const REAL *const *terms, const REAL *factors, REAL *y,
                      long size, int anew)
{
    const REAL *x[MOST];
    REAL c[MOST];
    long count = 0;
    for (long j = 0; j < k; j++)
        if (factors[j] != 0) {
            x[count] = terms[j];
            c[count++] = factors[j];
        }
    switch (count) {
    case 0:
        if (anew)
            memset(y, 0, sizeof(REAL) * size);
        return;
    case 1:
        NAME(sum_of)(1, x, c, y, size, anew);
        return;
    case 2:
        NAME(sum_of)(2, x, c, y, size, anew);
        return;
    case 3:
        NAME(sum_of)(3, x, c, y, size, anew);
        return;
    default:
        NAME(sum_of)(4, x, c, y, size, anew);
    }
}

/* A row of coefficients over the slots of W, and a multiple of I; what they make. */
typedef struct {
    REAL *Y;
    const REAL *c;
    REAL identity;
} NAME(row_t);

/* Y = identity I + c_0 W_0 + ... + c_{k-1} W_{k-1} for each of the rows: W is read
 * once. */
static void NAME(combine)(const REAL *W, long k, const NAME(row_t) *rows, long count,
                          long n)
{
    const long m = n * n;
#pragma omp parallel for if (m >= LARGE)
    for (long i = 0; i < m; i += CHUNK) {
        const REAL *x[MOST];
        for (long j = 0; j < k; j++)
            x[j] = W + j * m + i;
        for (long row = 0; row < count; row++)
            NAME(sum)(k, x, rows[row].c, rows[row].Y + i, MIN(CHUNK, m - i), 1);
    }
    for (long row = 0; row < count; row++)
        for (long i = 0; rows[row].identity != 0 && i < n; i++)
            rows[row].Y[i * n + i] += rows[row].identity;
}

/* For all j from `first` on, g_j += l_j X + r_j Y, or g_j = f_j G + l_j X + r_j Y. */
static void NAME(spread)(const REAL *f, const REAL *G, const REAL *l, const REAL *X,
                         const REAL *r, const REAL *Y, REAL *g, long first, long k,
                         long m)
{
#pragma omp parallel for if (m >= LARGE)
    for (long i = 0; i < m; i += CHUNK)
        for (long j = first; j < k; j++) {
            const REAL *x[] = {X + i, Y + i, G + i};
            const REAL c[] = {l[j], r[j], f ? f[j] : 0};
            NAME(sum)(3, x, c, g + j * m + i, MIN(CHUNK, m - i), f != 0);
        }
}

/* <X, Y>, by parts that are the same for any number of threads. */
static double NAME(dot)(const REAL *X, const REAL *Y, long m)
{
    double totals[PARTS] = {0}, total = 0;
#pragma omp parallel for if (m >= LARGE)
    for (long part = 0; part < PARTS; part++)
        for (long i0 = part * CHUNK; i0 < m; i0 += PARTS * CHUNK) {
            const long i1 = MIN(i0 + CHUNK, m);
            for (long j0 = i0; j0 < i1; j0 += TERMS) {
                const long j1 = MIN(j0 + TERMS, i1);
                REAL sum = 0;
#pragma omp simd reduction(+ : sum)
                for (long i = j0; i < j1; i++)
                    sum += X[i] * Y[i];
                totals[part] += sum;
            }
        }
    for (long part = 0; part < PARTS; part++)
        total += totals[part];
    return total;
}

/* A, A^2 and, unless |A^2|_F^2 / 2 is at most `tiny`, A^4 into the slots of W; halves of
 * the inner products <A^2, A^2>, <A^2, A^4> and <A^4, A^4> into `sums`. A may be given by
 * its lower triangle. */
void NAME(powers)(void *product, const REAL *A, REAL *W, double *sums, const double *tiny,
                  long triangle, long n)
{
    const long m = n * n;
    REAL *A2 = W + m, *A4 = W + 2 * m;
    if (triangle)
        NAME(skew)(A, W, 1, n);
    else
        memcpy(W, A, sizeof(REAL) * m);
    NAME(squared)(product, W, A2, n);
    sums[0] = NAME(dot)(A2, A2, m) / 2;
    sums[1] = sums[2] = 0;
    if (sums[0] <= *tiny)
        return;
    NAME(squared)(product, A2, A4, n);
    sums[1] = NAME(dot)(A2, A4, m) / 2;
    sums[2] = NAME(dot)(A4, A4, m) / 2;
}

/* Q = p(A), with the products P_3, ... written into W. The multiple of I in p is the last
 * number of the table, and is added at the end: the terms of the last product are small
 * beside it, and each would be rounded as a number near 1. */
void NAME(evaluate)(void *product, REAL *W, REAL *Q, REAL *room, const REAL *table,
                    long powers, long stages, long squares, long n)
{
    const long m = n * n;
    REAL *L = room, *R = room + m;
    for (long s = 0; s < stages; s++) {
        const long k = powers + s, last = s == stages - 1, square = squares >> s & 1;
        const REAL *l = table, *r = table + k + 1, *f = r + k;
        const NAME(row_t) rows[] = {{L, l + 1, l[0]}, {R, r, 0}, {Q, f, 0}};
        NAME(combine)(W, k, rows, square ? 1 : 2 + last, n);
        table = f;
        if (square)
            NAME(squared)(product, L, W + k * m, n);
        else
            NAME(times)(product, L, 0, R, 1, last, last ? Q : W + k * m, n);
    }
    for (long i = 0; i < n; i++)
        Q[i * n + i] += table[powers + stages - 1];
}

/* The skew gradient X at A, or that at the lower triangle which A was given by, from the
 * transpose H of the gradient at p(A). Transposes of all gradients are kept: so no product
 * has a transposed factor, which a BLAS is slower to read. */
void NAME(pull_back)(void *product, const REAL *W, const REAL *H, REAL *X, REAL *room,
                     const REAL *table, long powers, long stages, long squares,
                     long triangle, long n)
{
    const long m = n * n;
    const REAL zeros[MOST] = {0};
    REAL *L = room, *R = L + m, *gL = R + m, *g = gL + m;
    for (long s = stages - 1; s >= 0; s--) {
        const long k = powers + s, last = s == stages - 1;
        const REAL *l = table + s * (2 * powers + 1) + s * (s - 1), *r = l + k + 1;
        const REAL *at = last ? H : g + k * m;
        const long square = squares >> s & 1;
        const NAME(row_t) rows[] = {{L, l + 1, l[0]}, {R, r, 0}};
        NAME(combine)(W, k, rows, square ? 1 : 2, n);
        if (square) {
            /* of a Hermitian matrix without A: twice the Hermitian part of S L */
            NAME(add_transpose)(at, 1, R, n);
            NAME(times)(product, R, 0, L, 1, 0, gL, n);
            NAME(spread)(0, gL, l + 1, gL, zeros, gL, g, 1, k, m);
            continue;
        }
        NAME(times)(product, R, 0, at, 1, 0, gL, n);
        NAME(times)(product, at, 0, L, 1, 0, R, n);
        NAME(spread)(last ? r + k : 0, H, l + 1, gL, r, R, g, 0, k, m);
    }
    if (powers == 3) {
        NAME(add_transpose)(g + 2 * m, 1, L, n);
        NAME(times)(product, L, 0, W + m, 1, 1, g + m, n);
    }
    NAME(add_transpose)(g + m, 1, L, n);
    const REAL half = triangle ? -1 : -0.5;
    NAME(times)(product, L, 0, W, half, half, g, n);
    if (triangle)
        NAME(skew_adjoint)(g, X, 1, n);
    else
        NAME(add_transpose)(g, -1, X, n);
}
