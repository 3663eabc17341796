/* Whether memory still holds the bytes that it held: an exact comparison, in which NaN
 * equals itself and -0 differs from 0. */

#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#else
#define omp_get_thread_num() 0
#define omp_get_num_threads() 1
#endif

/* in bytes; below, threads take longer to wake than to compare */
#define LARGE 262144

struct span {
    const char *live;
    const char *copy;
    long size;
};

/* the size of the span after the last */
#define END -1

/* One slice of each span for each thread. */
static int slices_differ(const struct span *spans, long thread, long threads)
{
    int differ = 0;
    for (const struct span *s = spans; s->size != END && !differ; s++) {
        const long share = s->size / threads, from = share * thread;
        const long size = thread == threads - 1 ? s->size - from : share;
        /* nothing has no address, and memcmp must not be given null */
        differ = size && memcmp(s->live + from, s->copy + from, (size_t)size) != 0;
    }
    return differ;
}

int isometry_same_bytes(const struct span *spans)
{
    long total = 0;
    int differ = 0;
    for (const struct span *s = spans; s->size != END; s++)
        total += s->size;
    /* not an `if` clause: a region of one thread takes longer than a small weight */
    if (total < LARGE)
        return !slices_differ(spans, 0, 1);
#pragma omp parallel reduction(| : differ)
    differ |= slices_differ(spans, omp_get_thread_num(), omp_get_num_threads());
    return !differ;
}
