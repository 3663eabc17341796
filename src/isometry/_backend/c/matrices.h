/* Kernels for one type REAL; see matrices.c. */

/* C = X Y^T for n x 3 matrices, by one call of a BLAS. Python checks the result before it
 * uses this BLAS. */
void NAME(probe)(NAME(gemm_t) gemm, const REAL *X, const REAL *Y, REAL *C, long n)
{
    const long inner = 3;
    const REAL one = 1, zero = 0;
    gemm("T", "N", &n, &n, &inner, &one, Y, &inner, X, &inner, &zero, C, &n);
}

/* One block of a matrix, BLOCK x BLOCK; a smaller block is padded with zeros. */
typedef struct {
    REAL x[BLOCK][BLOCK] __attribute__((aligned(64)));
} NAME(block_t);

static inline void NAME(load)(const REAL *X, long n, long height, long width,
                              NAME(block_t) *b)
{
    /* the compiler vectorizes loops whose lengths it knows */
    if (height == BLOCK && width == BLOCK) {
        for (long i = 0; i < BLOCK; i++)
            for (long j = 0; j < BLOCK; j++)
                b->x[i][j] = X[i * n + j];
        return;
    }
    memset(b, 0, sizeof *b);
    for (long i = 0; i < height; i++)
        for (long j = 0; j < width; j++)
            b->x[i][j] = X[i * n + j];
}

static inline void NAME(store)(const NAME(block_t) *b, REAL *X, long n, long height,
                               long width)
{
    if (height == BLOCK && width == BLOCK) {
        for (long i = 0; i < BLOCK; i++)
            for (long j = 0; j < BLOCK; j++)
                X[i * n + j] = b->x[i][j];
        return;
    }
    for (long i = 0; i < height; i++)
        for (long j = 0; j < width; j++)
            X[i * n + j] = b->x[i][j];
}

/* b = scale a^T */
static inline void NAME(transpose)(const NAME(block_t) *a, REAL scale, NAME(block_t) *b)
{
    for (long i = 0; i < BLOCK; i++)
        for (long j = 0; j < BLOCK; j++)
            b->x[j][i] = scale * a->x[i][j];
}

/* Copies the entries of C below the diagonal in rows i0 to i1 - 1 to their mirror
 * images above the diagonal. */
static void NAME(mirror)(REAL *C, long n, long i0, long i1)
{
    NAME(block_t) b, transposed;
    for (long i = i0; i < i1; i += BLOCK) {
        const long height = MIN(BLOCK, i1 - i);
        for (long j = 0; j < i; j += BLOCK) {
            const long width = MIN(BLOCK, i - j);
            NAME(load)(C + i * n + j, n, height, width, &b);
            NAME(transpose)(&b, 1, &transposed);
            NAME(store)(&transposed, C + j * n + i, n, width, height);
        }
        for (long p = i; p < i + height; p++)
            for (long q = i; q < p; q++)
                C[q * n + p] = C[p * n + q];
    }
}

/* C = A A for symmetric or skew A: the lower part is computed, then mirrored. The BLAS
 * also computes some entries above the diagonal, in each panel of rows. The mirror
 * images replace these entries, too, so that C is exactly symmetric: a BLAS may compute
 * the entries (i, j) and (j, i) by sums in different orders. */
void NAME(square)(NAME(gemm_t) gemm, const REAL *A, REAL *C, long batch, long n)
{
    const long panels = PANELS(n);
    long left = batch * panels, index;
    /* TAKE counts down, so the widest panels of each matrix are computed first */
#pragma omp parallel private(index)
    while ((index = TAKE(left)) >= 0) {
        const long start = index / panels * n * n, panel = index % panels;
        const long i = panel * n / panels, width = (panel + 1) * n / panels;
        const long height = width - i;
        const REAL one = 1, zero = 0, *X = A + start;
        REAL *Y = C + start;
        gemm("N", "N", &width, &height, &n, &one, X, &n, X + i * n, &n, &zero, Y + i * n,
             &n);
        NAME(mirror)(Y, n, i, width);
    }
}

/* C = alpha X Y + beta C for n x n matrices, or with X^T in place of X. */
static void NAME(gemm_square)(NAME(gemm_t) gemm, const REAL *X, int is_transposed,
                              const REAL *Y, REAL alpha, REAL beta, REAL *C, long n)
{
    const char *x = is_transposed ? "T" : "N";
    /* a BLAS reads matrices by columns, so for it this is C^T = Y^T X^T */
    if (n < ISOMETRY_HALVED_FROM || n > SPLIT_UP_TO) {
        gemm("N", x, &n, &n, &n, &alpha, Y, &n, X, &n, &beta, C, &n);
        return;
    }
    /* each thread gets the same number of panels, each of at most 128 rows */
    const long threads = omp_get_max_threads(), step = is_transposed ? 1 : n;
    const long panels = (n + 128 * threads - 1) / (128 * threads) * threads;
#pragma omp parallel for schedule(static)
    for (long panel = 0; panel < panels; panel++) {
        const long i = panel * n / panels, height = (panel + 1) * n / panels - i;
        gemm("N", x, &n, &height, &n, &alpha, Y, &n, X + i * step, &n, &beta, C + i * n,
             &n);
    }
}

/* C = X Y, or X^T Y. */
void NAME(multiply)(NAME(gemm_t) gemm, const REAL *X, long is_transposed, const REAL *Y,
                    REAL *C, long n)
{
    NAME(gemm_square)(gemm, X, is_transposed, Y, 1, 0, C, n);
}

/* A function that computes a part of Y from X. It is called for every block at row i
 * and column j <= i. It reads this block of X, and perhaps the block's mirror image
 * above the diagonal. All calls together write every entry of Y. */
typedef void (*NAME(pair_t))(const REAL *X, REAL *Y, long n, long i, long j, REAL sign);

static inline __attribute__((always_inline)) void
NAME(pairs)(NAME(pair_t) pair, const REAL *X, REAL *Y, long batch, long n, REAL sign)
{
    const long side = (n + BLOCK - 1) / BLOCK;
    long left = batch * side, index;
#pragma omp parallel private(index) if (batch * n * n >= PARALLEL_FROM)
    while ((index = TAKE(left)) >= 0) {
        const long start = index / side * n * n, i = index % side * BLOCK;
        for (long j = 0; j <= i; j += BLOCK)
            pair(X + start, Y + start, n, i, j, sign);
    }
}

static inline void NAME(skew_pair)(const REAL *X, REAL *A, long n, long i, long j,
                                   REAL sign)
{
    const long height = MIN(BLOCK, n - i), width = MIN(BLOCK, n - j);
    NAME(block_t) b, transposed;
    NAME(load)(X + i * n + j, n, height, width, &b);
    if (i == j)
        for (long p = 0; p < BLOCK; p++)
            for (long q = p; q < BLOCK; q++)
                b.x[p][q] = 0;
    NAME(transpose)(&b, sign, &transposed);
    if (i == j)
        for (long p = 0; p < BLOCK; p++)
            for (long q = 0; q < BLOCK; q++)
                transposed.x[p][q] += b.x[p][q];
    else
        NAME(store)(&b, A + i * n + j, n, height, width);
    NAME(store)(&transposed, A + j * n + i, n, width, height);
}

/* A = L - L^T, with L the strictly lower triangle of X. */
void NAME(skew)(const REAL *X, REAL *A, long batch, long n)
{
    NAME(pairs)(NAME(skew_pair), X, A, batch, n, -1);
}

/* b = the block at (i, j) of X + sign X^T */
static inline void NAME(load_sum)(const REAL *X, long n, long i, long j, REAL sign,
                                  NAME(block_t) *b)
{
    const long height = MIN(BLOCK, n - i), width = MIN(BLOCK, n - j);
    NAME(block_t) above, transposed;
    NAME(load)(X + i * n + j, n, height, width, b);
    NAME(load)(X + j * n + i, n, width, height, &above);
    NAME(transpose)(&above, sign, &transposed);
    for (long p = 0; p < BLOCK; p++)
        for (long q = 0; q < BLOCK; q++)
            b->x[p][q] += transposed.x[p][q];
}

static inline void NAME(sum_pair)(const REAL *X, REAL *Y, long n, long i, long j,
                                  REAL sign)
{
    const long height = MIN(BLOCK, n - i), width = MIN(BLOCK, n - j);
    NAME(block_t) b, transposed;
    NAME(load_sum)(X, n, i, j, sign, &b);
    NAME(store)(&b, Y + i * n + j, n, height, width);
    NAME(transpose)(&b, sign, &transposed);
    NAME(store)(&transposed, Y + j * n + i, n, width, height);
}

/* Y = X + sign X^T */
static void NAME(add_transpose)(const REAL *X, REAL sign, REAL *Y, long n)
{
    NAME(pairs)(NAME(sum_pair), X, Y, 1, n, sign);
}

static inline void NAME(lower_pair)(const REAL *G, REAL *X, long n, long i, long j,
                                    REAL sign)
{
    const long height = MIN(BLOCK, n - i), width = MIN(BLOCK, n - j);
    NAME(block_t) b;
    NAME(load_sum)(G, n, i, j, sign, &b);
    for (long p = 0; i == j && p < BLOCK; p++)
        for (long q = p; q < BLOCK; q++)
            b.x[p][q] = 0;
    NAME(store)(&b, X + i * n + j, n, height, width);
    /* zeros to the right of a diagonal block, by rows, which is faster than by blocks */
    for (long p = i; i == j && p < i + height; p++)
        memset(X + p * n + i + width, 0, sizeof(REAL) * (n - i - width));
}

/* The adjoint of `skew`: X is the strictly lower triangle of G - G^T, and zero
 * elsewhere. */
void NAME(skew_adjoint)(const REAL *G, REAL *X, long batch, long n)
{
    NAME(pairs)(NAME(lower_pair), G, X, batch, n, -1);
}
