/* Kernels for one type REAL; see matrices.c. */

/* The product of a BLAS. It is given longs, of which one with 32-bit integers reads the
 * lower half: both kinds see the same small numbers on a little-endian machine. */
typedef void (*NAME(gemm_t))(const char *, const char *, const long *, const long *,
                             const long *, const REAL *, const REAL *, const long *,
                             const REAL *, const long *, const REAL *, REAL *,
                             const long *);

/* C = X Y^T for n x 3 matrices; only to try the product out. */
void NAME(gemm)(void *product, const REAL *X, const REAL *Y, REAL *C, long n)
{
    const long inner = 3;
    const REAL one = 1, zero = 0;
    /* to a BLAS, which goes by columns, a row-major matrix is its transpose */
    ((NAME(gemm_t))product)("T", "N", &n, &n, &inner, &one, Y, &inner, X, &inner, &zero,
                            C, &n);
}

static void NAME(mirror)(REAL *C, long n, long i0, long i1, long j0, long j1)
{
    for (long i = i0; i < i1; i += BLOCK)
        for (long j = j0; j < j1; j += BLOCK)
            for (long q = j; q < MIN(j + BLOCK, j1); q++)
                for (long p = i; p < MIN(i + BLOCK, i1); p++)
                    C[q * n + p] = C[p * n + q];
}

/* C = A A for matrices that are symmetric or skew: the lower blocks, then mirrored. */
void NAME(square)(void *product, const REAL *A, REAL *C, long batch, long n)
{
    const long side = (n + TILE - 1) / TILE, blocks = side * (side + 1) / 2;
#pragma omp parallel for schedule(dynamic, 1)
    for (long index = 0; index < batch * blocks; index++) {
        const REAL *X = A + index / blocks * n * n;
        REAL *Y = C + index / blocks * n * n;
        long row = 0, column = index % blocks;
        while (column > row)
            column -= ++row;
        const long i = row * TILE, j = column * TILE;
        const long height = MIN(TILE, n - i), width = MIN(TILE, n - j);
        const REAL one = 1, zero = 0;
        ((NAME(gemm_t))product)("N", "N", &width, &height, &n, &one, X + j, &n, X + i * n,
                                &n, &zero, Y + i * n + j, &n);
        if (row != column)
            NAME(mirror)(Y, n, i, i + height, j, j + width);
    }
}

/* A = L - L^T, with L the strictly lower triangle of X. Rows are written from left to
 * right: above the diagonal by blocks of X that are read first and turned. */
void NAME(skew)(const REAL *X, REAL *A, long batch, long n)
{
    const long side = (n + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(dynamic, 4)
    for (long index = 0; index < batch * side; index++) {
        const REAL *x = X + index / side * n * n;
        REAL *a = A + index / side * n * n;
        const long i0 = index % side * BLOCK, i1 = MIN(i0 + BLOCK, n);
        for (long i = i0; i < i1; i++)
            memcpy(a + i * n, x + i * n, sizeof(REAL) * i0);
        for (long j0 = i0; j0 < n; j0 += BLOCK) {
            const long j1 = MIN(j0 + BLOCK, n);
            REAL turned[BLOCK][BLOCK];
            for (long j = j0; j < j1; j++)
                for (long i = i0; i < i1; i++)
                    turned[i - i0][j - j0] = -x[j * n + i];
            for (long i = i0; i < i1; i++)
                for (long j = j0; j < j1; j++)
                    a[i * n + j] = turned[i - i0][j - j0];
        }
        for (long i = i0; i < i1; i++) {
            memcpy(a + i * n + i0, x + i * n + i0, sizeof(REAL) * (i - i0));
            a[i * n + i] = 0;
        }
    }
}

/* The adjoint of that: the strictly lower triangle of G - G^T, and zero above. */
void NAME(skew_adjoint)(const REAL *G, REAL *X, long batch, long n)
{
    const long side = (n + BLOCK - 1) / BLOCK;
#pragma omp parallel for schedule(dynamic, 4)
    for (long index = 0; index < batch * side; index++) {
        const REAL *g = G + index / side * n * n;
        REAL *x = X + index / side * n * n;
        const long i0 = index % side * BLOCK, i1 = MIN(i0 + BLOCK, n);
        for (long j0 = 0; j0 < i1; j0 += BLOCK) {
            const long j1 = MIN(j0 + BLOCK, n);
            REAL turned[BLOCK][BLOCK];
            for (long j = j0; j < j1; j++)
                for (long i = i0; i < i1; i++)
                    turned[i - i0][j - j0] = g[j * n + i];
            for (long i = i0; i < i1; i++)
                for (long j = j0; j < j1; j++)
                    x[i * n + j] = j < i ? g[i * n + j] - turned[i - i0][j - j0] : 0;
        }
        for (long i = i0; i < i1; i++)
            memset(x + i * n + i1, 0, sizeof(REAL) * (n - i1));
    }
}
