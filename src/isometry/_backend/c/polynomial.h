/* A polynomial of one skew matrix, and its adjoint, for one type REAL; see matrices.c.
 * The kernels are `powers`, `evaluate` and `pull_back`. Each does as much as possible
 * in one call, because for a small matrix the calls from Python take most of the time.
 * The algorithm is the same as in operations.py; _backend/polynomial.py explains slots
 * and stages.
 *
 * A polynomial is a table of numbers and three integers: how many powers of A there
 * are, how many stages, and a mask of the stages that are squares. Stage s reads
 * k = powers + s slots and has 2 k + 1 numbers: the multiple of I in L, then k
 * coefficients of L and k of R. So stage s begins at the index
 *
 *     sum over j < s of (2 (powers + j) + 1)  =  s (2 powers + 1) + s (s - 1)
 *
 * of the table. After the last stage comes the final combination, which is added to the
 * last product: one coefficient for each slot, and at the end the multiple of I. */

static void NAME(square_of_one)(NAME(gemm_t) gemm, const REAL *A, REAL *C, long n)
{
    if (n >= ISOMETRY_HALVED_FROM)
        NAME(square)(gemm, A, C, 1, n);
    else
        NAME(gemm_square)(gemm, A, 0, A, 1, 0, C, n);
}

/* y = c_0 x_0 + ... + c_{k-1} x_{k-1}; if `overwrite` is 0, the sum is added to y. The
 * pragma promises GCC that y does not overlap the x_j, so that it vectorizes the loop. */
static inline __attribute__((always_inline)) void
NAME(sum_terms)(const long k, const REAL *const *x, const REAL *c, REAL *y, long size,
                int overwrite)
{
#pragma GCC ivdep
    for (long i = 0; i < size; i++) {
        REAL total = overwrite ? 0 : y[i];
        for (long j = 0; j < k; j++)
            total += c[j] * x[j][i];
        y[i] = total;
    }
}

/* Computes the same sum as `sum_terms`, for k up to ISOMETRY_MOST_SLOTS, but skips
 * terms whose factor is zero. Each call of `sum_terms` below is inlined and adds a
 * fixed number of terms, from one to four, so a compiler can unroll its inner loop. */
static void NAME(sum_nonzero_terms)(long k, const REAL *const *terms, const REAL *factors,
                                    REAL *y, long size, int overwrite)
{
    const REAL *x[ISOMETRY_MOST_SLOTS];
    REAL c[ISOMETRY_MOST_SLOTS];
    long count = 0, first = 0;
    for (long j = 0; j < k; j++)
        if (factors[j] != 0) {
            x[count] = terms[j];
            c[count++] = factors[j];
        }
    for (; count - first > 4; first += 4, overwrite = 0)
        NAME(sum_terms)(4, x + first, c + first, y, size, overwrite);
    switch (count - first) {
    case 0:
        if (overwrite)
            memset(y, 0, sizeof(REAL) * size);
        return;
    case 1:
        NAME(sum_terms)(1, x + first, c + first, y, size, overwrite);
        return;
    case 2:
        NAME(sum_terms)(2, x + first, c + first, y, size, overwrite);
        return;
    case 3:
        NAME(sum_terms)(3, x + first, c + first, y, size, overwrite);
        return;
    default:
        NAME(sum_terms)(4, x + first, c + first, y, size, overwrite);
    }
}

/* A linear combination of the slots and I: Y = a I + c_0 W_0 + c_1 W_1 + ..., where a is
 * the field `identity`. */
typedef struct {
    REAL *Y;
    const REAL *c;
    REAL identity;
} NAME(row_t);

/* Computes several linear combinations of the first k slots, in one pass through W. */
static void NAME(combine)(const REAL *W, long k, const NAME(row_t) *rows, long count,
                          long n)
{
    const long m = n * n;
#pragma omp parallel for if (m >= PARALLEL_FROM)
    for (long i = 0; i < m; i += CHUNK) {
        const REAL *x[ISOMETRY_MOST_SLOTS];
        for (long j = 0; j < k; j++)
            x[j] = W + j * m + i;
        for (long row = 0; row < count; row++)
            NAME(sum_nonzero_terms)(k, x, rows[row].c, rows[row].Y + i, MIN(CHUNK, m - i),
                                    1);
    }
    for (long row = 0; row < count; row++)
        for (long i = 0; rows[row].identity != 0 && i < n; i++)
            rows[row].Y[i * n + i] += rows[row].identity;
}

/* The gradient G with respect to a linear combination of the slots with coefficients c.
 * It contributes c_j G to the gradient with respect to slot j. */
typedef struct {
    const REAL *c, *G;
} NAME(combined_t);

/* Adds the contributions of up to three linear combinations to the gradients g of the
 * slots `first` to k - 1. With `overwrite`, g contains no gradients yet and is
 * overwritten. */
static void NAME(distribute)(const NAME(combined_t) *combined, long count, REAL *g,
                             long first, long k, long m, long overwrite)
{
#pragma omp parallel for if (m >= PARALLEL_FROM)
    for (long i = 0; i < m; i += CHUNK)
        for (long j = first; j < k; j++) {
            const REAL *x[3];
            REAL c[3];
            for (long t = 0; t < count; t++) {
                x[t] = combined[t].G + i;
                c[t] = combined[t].c[j];
            }
            NAME(sum_nonzero_terms)(count, x, c, g + j * m + i, MIN(CHUNK, m - i),
                                    overwrite);
        }
}

/* The inner product <X, Y>. The order of the sum does not depend on the number of
 * threads. */
static double NAME(dot)(const REAL *X, const REAL *Y, long m)
{
    double totals[PARTS] = {0}, total = 0;
#pragma omp parallel for if (m >= PARALLEL_FROM)
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

/* The first slot of W holds A. Writes A^2 into the next slot, and <A^2, A^2> / 2 into
 * `sums`. Unless this number is at most `skip_up_to`, also writes A^4 into W, and
 * <A^2, A^4> / 2 and <A^4, A^4> / 2 into `sums`. */
void NAME(powers)(NAME(gemm_t) gemm, REAL *W, double *sums, double skip_up_to, long n)
{
    const long m = n * n;
    REAL *A2 = W + m, *A4 = W + 2 * m;
    NAME(square_of_one)(gemm, W, A2, n);
    sums[0] = NAME(dot)(A2, A2, m) / 2;
    sums[1] = sums[2] = 0;
    if (sums[0] <= skip_up_to)
        return;
    NAME(square_of_one)(gemm, A2, A4, n);
    sums[1] = NAME(dot)(A2, A4, m) / 2;
    sums[2] = NAME(dot)(A4, A4, m) / 2;
}

/* The numbers of stage s in the table; if s is the number of stages, the numbers of the
 * final combination. */
static const REAL *NAME(numbers)(const REAL *table, long powers, long s)
{
    return table + s * (2 * powers + 1) + s * (s - 1);
}

/* Writes the polynomial p(A) into Q, given the powers of A in the first slots of W. The
 * products of all stages but the last are written into the slots that follow. The
 * multiple of I in p, which is the last number of the table, is added at the end: small
 * terms would lose digits if they were added to a number near 1. */
void NAME(evaluate)(NAME(gemm_t) gemm, REAL *W, REAL *Q, REAL *scratch, const REAL *table,
                    long powers, long stages, long squares, long n)
{
    const long m = n * n;
    const REAL *final = NAME(numbers)(table, powers, stages);
    REAL *L = scratch, *R = scratch + m;
    for (long s = 0; s < stages; s++) {
        const long k = powers + s, is_last = s == stages - 1;
        const long is_square = (squares >> s) & 1;
        const REAL *l = NAME(numbers)(table, powers, s), *r = l + k + 1;
        const NAME(row_t) rows[] = {{L, l + 1, l[0]}, {R, r, 0}, {Q, final, 0}};
        NAME(combine)(W, k, rows, is_square ? 1 : 2 + is_last, n);
        if (is_square)
            NAME(square_of_one)(gemm, L, W + k * m, n);
        else
            NAME(gemm_square)(gemm, L, 0, R, 1, is_last, is_last ? Q : W + k * m, n);
    }
    for (long i = 0; i < n; i++)
        Q[i * n + i] += final[powers + stages - 1];
}

/* Writes the skew gradient X with respect to A, given the transpose Gt of the gradient
 * with respect to p(A).
 *
 * All gradients are stored transposed. If G is the transposed gradient with respect to
 * a product L R, then the transposed gradients are R G with respect to L, and G L with
 * respect to R. So no product has a transposed factor, which would be slower in a BLAS.
 *
 * `scratch` holds n x n matrices in this order: L; R, later replaced with the gradient
 * with respect to R; the gradient with respect to L; and g, the gradients with respect
 * to all slots. The first slots are A, A^2 and, if there are three powers, A^4; then
 * comes the product of each stage but the last. */
void NAME(pull_back)(NAME(gemm_t) gemm, const REAL *W, const REAL *Gt, REAL *X,
                     REAL *scratch, const REAL *table, long powers, long stages,
                     long squares, long n)
{
    const long m = n * n;
    const REAL *final = NAME(numbers)(table, powers, stages);
    REAL *L = scratch, *R = L + m, *gL = R + m, *g = gL + m, *gR = R;
    for (long s = stages - 1; s >= 0; s--) {
        const long k = powers + s, is_last = s == stages - 1;
        const long is_square = (squares >> s) & 1;
        const REAL *l = NAME(numbers)(table, powers, s), *r = l + k + 1;
        /* G is the transposed gradient with respect to the product of stage s. The last
         * product is a term of p(A), so its G is Gt. Any other product is in slot k, so
         * its G is matrix k of g. */
        const REAL *G = is_last ? Gt : g + k * m;
        const NAME(row_t) rows[] = {{L, l + 1, l[0]}, {R, r, 0}};
        const NAME(combined_t) combined[] = {{l + 1, gL}, {r, gR}, {final, Gt}};
        NAME(combine)(W, k, rows, is_square ? 1 : 2, n);
        if (is_square) {
            /* L has no term in A, and all its other terms are symmetric, so L is
             * symmetric. The gradient with respect to L is L G + G L, and only its
             * symmetric part matters. (G + G^T) L has the same symmetric part, and
             * takes one product instead of two. */
            NAME(add_transpose)(G, 1, R, n);
            NAME(gemm_square)(gemm, R, 0, L, 1, 0, gL, n);
            /* slot 0 holds A, which L does not contain */
            NAME(distribute)(combined, 1, g, 1, k, m, 0);
            continue;
        }
        NAME(gemm_square)(gemm, R, 0, G, 1, 0, gL, n);
        NAME(gemm_square)(gemm, G, 0, L, 1, 0, gR, n);
        /* The final combination is pulled back together with the last stage. The last
         * stage is pulled back first, so it overwrites g. */
        NAME(distribute)(combined, 2 + is_last, g, 0, k, m, is_last);
    }
    REAL *gA = g, *gA2 = g + m;
    if (powers == 3) {
        NAME(add_transpose)(g + 2 * m, 1, L, n);
        NAME(gemm_square)(gemm, L, 0, W + m, 1, 1, gA2, n);
    }
    NAME(add_transpose)(gA2, 1, L, n);
    /* L now holds gA2 + gA2^T. Pulling gA2 back through the square of A contributes the
     * skew part of -L A, as `_through_powers` in operations.py explains. gA contributes
     * its own skew part, also with a minus sign: it is stored transposed, and transposing
     * a skew matrix changes its sign. So X is the skew part of -(gA + L A). The factor of
     * one half is here because the last line takes twice the skew part. */
    NAME(gemm_square)(gemm, L, 0, W, -0.5, -0.5, gA, n);
    NAME(add_transpose)(gA, -1, X, n);
}
