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

/* Every thread takes one slice of each span. */
int isometry_same_bytes(const struct span *spans, long count)
{
    long total = 0;
    int differ = 0;
    for (long s = 0; s < count; s++)
        total += spans[s].size;
#pragma omp parallel reduction(| : differ) if (total >= LARGE)
    {
        const long thread = omp_get_thread_num(), threads = omp_get_num_threads();
        for (long s = 0; s < count && !differ; s++) {
            const long from = spans[s].size / threads * thread;
            const long to = thread == threads - 1 ? spans[s].size
                                                  : from + spans[s].size / threads;
            differ |= memcmp(spans[s].live + from, spans[s].copy + from,
                             (size_t)(to - from)) != 0;
        }
    }
    return !differ;
}
