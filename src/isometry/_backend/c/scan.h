/* Kernels for one type REAL; see scan.c.
 *
 * States are rows of n numbers. Time step t has `sizes[t]` rows, which begin at row
 * `starts[t]`. Sequences are sorted by length, the longest first, so no time step has more
 * rows than the one before. Each thread computes all time steps of some of the sequences.
 * So the threads wait for each other only once, not at every time step. */

/* The recurrence h_t = sigma(W h_{t-1} + u_t), and the time steps of its sequences. Python
 * fills this struct; see `CRecurrence` in native.py. */
typedef struct {
    const REAL *W, *b;
    /* the states before the first time step, of sizes[0] sequences */
    const REAL *h0;
    /* for smooth modReLU, sqrt(|z|^2 + epsilon) for every complex argument z of sigma;
     * else NULL */
    REAL *moduli;
    const long *starts, *sizes;
    /* how many time steps there are, how many numbers a state has, the nonlinearity
     * (one of ISOMETRY_TANH and so on), and how many threads there are */
    long length, n, sigma, threads;
    /* the epsilon of smooth modReLU; other nonlinearities do not read it */
    double epsilon;
} NAME(recurrence_t);

/* Y = X M + beta Y, or X M^T + beta Y if `transpose` is 'T', for `rows` rows. */
static void NAME(times_matrix)(NAME(gemm_t) gemm, const REAL *X, const REAL *M,
                               char transpose, REAL beta, REAL *Y, long rows, long n)
{
    const REAL one = 1;
    gemm(transpose == 'T' ? "T" : "N", "N", &n, &rows, &n, &one, M, &n, X, &n, &beta, Y,
         &n);
}

/* tanh |x| = (1 - E) / (1 + E) with E = exp(y) and y = -2 |x|. Write y = k log(2) + r,
 * with k the integer closest to y / log(2). Then E = 2^k + 2^k p with p = exp(r) - 1.
 * No digits are lost in 1 - E = (1 - 2^k) - 2^k p: either 1 - 2^k is exact, or 2^k p is
 * negligible. Compilers vectorize this code, but only new C libraries have a vectorized
 * tanh. */
static inline REAL NAME(tanh)(REAL x)
{
    /* adding `rounder` rounds to an integer; 1.4426950408889634 is 1 / log(2) */
    const REAL rounder = (REAL)(3L << (DIGITS - 2));
    const REAL size = FABS(x);
    const REAL y = -2 * (size > TANH_IS_ONE ? TANH_IS_ONE : size);
    const REAL shifted = y * (REAL)1.4426950408889634 + rounder, k = shifted - rounder;
    const REAL r = y - k * LOG2_HIGH - k * LOG2_LOW;
    REAL q = (REAL)series[TANH_TERMS - 1], power;
    for (long j = TANH_TERMS - 2; j >= 0; j--)
        q = q * r + (REAL)series[j];
    const REAL p = r + r * r * q;
    /* the last bits of `shifted` hold k, which becomes the exponent of 2^k */
    BITS bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + BIAS) << (DIGITS - 1);
    memcpy(&power, &bits, sizeof bits);
    return COPYSIGN(((1 - power) - power * p) / ((1 + power) + power * p), x);
}

/* A power of two k, and 1 / k. Products with them are exact, unless they underflow. */
typedef struct {
    REAL k, inverse;
} NAME(scale_t);

/* A scale k for which (k x)^2 + (k y)^2 does not overflow. If both |x| and |y| are
 * below `enlarge_below`, k is larger than 1. If `enlarge_below` is SQUARES_FROM, which
 * scan.c explains, the sum loses no digits when subnormal numbers are replaced with
 * zero. Compilers vectorize this code, but not hypot. */
static inline NAME(scale_t) NAME(scale)(REAL x, REAL y, REAL enlarge_below)
{
    const REAL size = MAX(FABS(x), FABS(y));
    const NAME(scale_t) shrink = {SHRINK, 1 / SHRINK}, enlarge = {ENLARGE, 1 / ENLARGE};
    const NAME(scale_t) keep = {1, 1};
    return size > SQUARES_UP_TO ? shrink : size < enlarge_below ? enlarge : keep;
}

/* Overwrites the rows z of H, from row `first` on, with h = sigma(z). */
static void NAME(activate)(const NAME(recurrence_t) *r, REAL *H, long first, long rows)
{
    const long n = r->n, size = rows * n;
    const REAL *b = r->b;
    REAL *h = H + first * n;
    switch (r->sigma) {
    case ISOMETRY_TANH:
        for (long i = 0; i < size; i++)
            h[i] = NAME(tanh)(h[i]);
        break;
    case ISOMETRY_RELU:
        for (long i = 0; i < size; i++)
            /* NaN stays NaN */
            h[i] = h[i] < 0 ? 0 : h[i];
        break;
    case ISOMETRY_LEAKY_RELU:
        for (long i = 0; i < size; i++)
            h[i] = h[i] > 0 ? h[i] : (REAL)ISOMETRY_LEAKY_SLOPE * h[i];
        break;
    case ISOMETRY_MODRELU:
        for (long row = 0; row < rows; row++, h += n)
            for (long i = 0; i < n; i++) {
                const REAL m = FABS(h[i]) + b[i];
                /* sign(0) = 0: a zero stays zero if b is finite */
                h[i] = m <= 0 ? 0 : h[i] == 0 ? 0 * m : COPYSIGN(m, h[i]);
            }
        break;
    case ISOMETRY_COMPLEX_MODRELU:
        for (long row = 0; row < rows; row++, h += n)
            for (long i = 0; i < n / 2; i++) {
                const NAME(scale_t) scale =
                    NAME(scale)(h[2 * i], h[2 * i + 1], SQUARES_FROM);
                const REAL x = scale.k * h[2 * i], y = scale.k * h[2 * i + 1];
                /* k |z|, and |z| + b */
                const REAL kz = SQRT(x * x + y * y), shifted = kz * scale.inverse + b[i];
                /* zero stays zero if b is finite */
                const REAL gain = shifted <= 0 ? 0 : kz == 0 ? 0 * shifted : shifted / kz;
                h[2 * i] = gain * x;
                h[2 * i + 1] = gain * y;
            }
        break;
    case ISOMETRY_SMOOTH_MODRELU: {
        const REAL epsilon = (REAL)r->epsilon;
        REAL *moduli = r->moduli + first * (n / 2);
        for (long row = 0; row < rows; row++, h += n, moduli += n / 2)
            for (long i = 0; i < n / 2; i++) {
                /* z is not enlarged, so that k^2 epsilon is finite */
                const REAL x = h[2 * i], y = h[2 * i + 1];
                const NAME(scale_t) scale = NAME(scale)(x, y, 0);
                const REAL k = scale.k, kx = k * x, ky = k * y;
                const REAL km = SQRT(kx * kx + ky * ky + k * k * epsilon);
                const REAL m = km * scale.inverse, shifted = m + b[i];
                const REAL gain = shifted <= 0 ? 0 : shifted / (m + epsilon);
                h[2 * i] = gain * x;
                h[2 * i + 1] = gain * y;
                moduli[i] = m;
            }
        break;
    }
    }
}

/* On entry, the rows d of D, from row `first` on, are the gradient with respect to
 * h = sigma(z); on return, the gradient with respect to z. The gradient with respect to b
 * is added to db. The derivative of sigma is computed from h and, for smooth modReLU, from
 * the moduli, so z is not needed. */
static void NAME(activate_adjoint)(const NAME(recurrence_t) *r, REAL *D, const REAL *H,
                                   REAL *db, long first, long rows)
{
    const long n = r->n, size = rows * n;
    const REAL *b = r->b, *h = H + first * n;
    REAL *d = D + first * n;
    switch (r->sigma) {
    case ISOMETRY_TANH:
        for (long i = 0; i < size; i++)
            d[i] *= 1 - h[i] * h[i];
        break;
    case ISOMETRY_RELU:
        for (long i = 0; i < size; i++)
            d[i] = h[i] == 0 ? 0 : d[i];
        break;
    case ISOMETRY_LEAKY_RELU:
        for (long i = 0; i < size; i++)
            d[i] = h[i] > 0 ? d[i] : (REAL)ISOMETRY_LEAKY_SLOPE * d[i];
        break;
    case ISOMETRY_MODRELU:
        for (long row = 0; row < rows; row++, h += n, d += n)
            for (long i = 0; i < n; i++) {
                d[i] = h[i] == 0 ? 0 : d[i];
                db[i] += h[i] < 0 ? -d[i] : d[i];
            }
        break;
    case ISOMETRY_COMPLEX_MODRELU:
        for (long row = 0; row < rows; row++, h += n, d += n)
            for (long i = 0; i < n / 2; i++) {
                const REAL k = NAME(scale)(h[2 * i], h[2 * i + 1], SQUARES_FROM).k;
                const REAL x = k * h[2 * i], y = k * h[2 * i + 1];
                /* k |h| */
                const REAL kh = SQRT(x * x + y * y), inverse = kh == 0 ? 0 : 1 / kh;
                const REAL cosine = x * inverse, sine = y * inverse;
                /* k |z|, computed as k (|h| - b). If |z| is tiny compared with b, its
                 * digits were lost when b was added, and the difference may be zero. So
                 * let kz be at least EPSILON k |h|. */
                const REAL kz = MAX(kh - k * b[i], EPSILON * kh);
                /* the derivative is 1 along h, and |h| / |z| orthogonally to h */
                const REAL along = cosine * d[2 * i] + sine * d[2 * i + 1];
                const REAL turn = cosine * d[2 * i + 1] - sine * d[2 * i];
                const REAL across = kh == 0 ? 0 : turn * (kh / kz);
                d[2 * i] = cosine * along - sine * across;
                d[2 * i + 1] = sine * along + cosine * across;
                db[i] += along;
            }
        break;
    case ISOMETRY_SMOOTH_MODRELU: {
        const REAL epsilon = (REAL)r->epsilon, *moduli = r->moduli + first * (n / 2);
        for (long row = 0; row < rows; row++, h += n, d += n, moduli += n / 2)
            for (long i = 0; i < n / 2; i++) {
                /* h = gain z with gain = (m + b) / (m + epsilon) */
                const REAL m = moduli[i], shifted = m + b[i];
                const REAL gain = shifted <= 0 ? 0 : shifted / (m + epsilon);
                /* x and y are the real and the imaginary part of z / (m + epsilon),
                 * computed as h / (m + b) */
                const REAL inverse = gain == 0 ? 0 : 1 / shifted;
                const REAL x = h[2 * i] * inverse, y = h[2 * i + 1] * inverse;
                const REAL dot = x * d[2 * i] + y * d[2 * i + 1];
                /* The gradient with respect to z is gain d + z (z . d) gain' / m, where gain'
                 * is the derivative with respect to m. The second term comes from the
                 * change of `gain` with m, since dm/dz = z / m. Here gain' is
                 * (epsilon - b) / (m + epsilon)^2, and of the two factors
                 * 1 / (m + epsilon), one is already in x and y, the other in `dot`. */
                const REAL slope = (epsilon - b[i]) / m;
                d[2 * i] = gain == 0 ? 0 : gain * d[2 * i] + slope * dot * x;
                d[2 * i + 1] = gain == 0 ? 0 : gain * d[2 * i + 1] + slope * dot * y;
                db[i] += gain == 0 ? 0 : dot;
            }
        break;
    }
    }
}

/* H holds u_t on entry and h_t on return, for all time steps t. */
void NAME(scan)(NAME(gemm_t) gemm, const NAME(recurrence_t) *r, REAL *H)
{
    const long n = r->n, batch = r->length ? r->sizes[0] : 0;
#pragma omp parallel for schedule(static, 1) num_threads(r->threads)
    for (long thread = 0; thread < r->threads; thread++) {
        const unsigned mode = flush_subnormals();
        const long first = batch * thread / r->threads;
        const long end = batch * (thread + 1) / r->threads;
        const REAL *previous = r->h0 + first * n;
        for (long t = 0; t < r->length; t++) {
            const long rows = MIN(end, r->sizes[t]) - first, begin = r->starts[t] + first;
            if (rows <= 0)
                break;
            NAME(times_matrix)(gemm, previous, r->W, 'T', 1, H + begin * n, rows, n);
            NAME(activate)(r, H, begin, rows);
            previous = H + begin * n;
        }
        restore_subnormals(mode);
    }
}

/* Writes the gradient d_t with respect to u_t into D, for all time steps t, and the
 * gradient with respect to h0 into dh0. H holds the states. dH is the gradient with
 * respect to every h_t, and dh_last the gradient with respect to the last state of each
 * sequence; either may be NULL. dW and db hold one matrix and one vector for each
 * thread, zero on entry; the caller adds them up. In `scratch`, each thread has room
 * to gather up to `capacity` rows d_t, and as many rows h_{t-1}. */
void NAME(scan_adjoint)(NAME(gemm_t) gemm, const NAME(recurrence_t) *r, REAL *D,
                        const REAL *H, const REAL *dH, const REAL *dh_last, REAL *dW,
                        REAL *db, REAL *dh0, REAL *scratch, long capacity)
{
    const long *starts = r->starts, *sizes = r->sizes;
    const long n = r->n, batch = r->length ? sizes[0] : 0;
#pragma omp parallel for schedule(static, 1) num_threads(r->threads)
    for (long thread = 0; thread < r->threads; thread++) {
        const unsigned mode = flush_subnormals();
        const long first = batch * thread / r->threads;
        const long end = batch * (thread + 1) / r->threads;
        REAL *gathered_d = scratch + 2 * thread * capacity * n;
        REAL *gathered_h = gathered_d + capacity * n;
        long gathered = 0, rows_after = 0;
        const REAL one = 1;
        for (long t = r->length - 1; t >= -1; t--) {
            const long rows = t < 0 ? end - first : MIN(end, sizes[t]) - first;
            if (rows <= 0)
                continue;
            const long begin = starts[MAX(t, 0)] + first;
            REAL *d = t < 0 ? dh0 + first * n : D + begin * n;
            /* d begins as the rows of dH, or as zeros if t is -1 or dH is NULL. For
             * t = -1, d is the gradient with respect to h0. */
            if (t >= 0 && dH)
                memcpy(d, dH + begin * n, sizeof(REAL) * rows * n);
            else
                memset(d, 0, sizeof(REAL) * rows * n);
            /* sequences without a time step t + 1 end at time step t */
            if (t >= 0 && dh_last)
                for (long i = rows_after * n; i < rows * n; i++)
                    d[i] += dh_last[first * n + i];
            if (rows_after > 0)
                NAME(times_matrix)(gemm, D + (starts[t + 1] + first) * n, r->W, 'N', 1, d,
                                   rows_after, n);
            rows_after = rows;
            if (t < 0)
                break;
            NAME(activate_adjoint)(r, D, H, db + thread * n, begin, rows);
            /* Gather rows d_t and h_{t-1} for dW += d_t^T h_{t-1}. If there is no room,
             * first multiply all rows gathered so far, in one product. */
            const REAL *previous = t ? H + starts[t - 1] * n : r->h0;
            if (gathered + rows > capacity) {
                gemm("N", "T", &n, &n, &gathered, &one, gathered_h, &n, gathered_d, &n,
                     &one, dW + thread * n * n, &n);
                gathered = 0;
            }
            memcpy(gathered_d + gathered * n, d, sizeof(REAL) * rows * n);
            memcpy(gathered_h + gathered * n, previous + first * n,
                   sizeof(REAL) * rows * n);
            gathered += rows;
        }
        if (gathered)
            gemm("N", "T", &n, &n, &gathered, &one, gathered_h, &n, gathered_d, &n, &one,
                 dW + thread * n * n, &n);
        restore_subnormals(mode);
    }
}
