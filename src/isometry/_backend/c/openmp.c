/* The functions that GCC calls for `#pragma omp parallel`. They call torch's OpenMP
 * runtime, and this library is not linked to a runtime of its own. If it were, a
 * process could have two runtimes with different file names, each with its own threads,
 * and `torch.set_num_threads` would change only one of them. The loops in these sources
 * use static schedules, which GCC compiles inline, or an atomic counter. So four
 * functions are enough.
 *
 * Clang calls other functions, and links its own runtime. */

typedef void (*body_t)(void *);

static void parallel_alone(body_t body, void *data, unsigned threads, unsigned flags)
{
    (void)threads, (void)flags;
    body(data);
}

static int one(void) { return 1; }
static int zero(void) { return 0; }

/* The functions are in the order of _OPENMP in library.py. Until library.py passes a
 * runtime, one thread does everything. */
static struct {
    void (*parallel)(body_t, void *, unsigned, unsigned);
    int (*max_threads)(void), (*num_threads)(void), (*thread_num)(void);
} runtime = {parallel_alone, one, one, zero};

void isometry_use_openmp(const void *const *functions)
{
    __builtin_memcpy(&runtime, functions, sizeof runtime);
}

#ifndef __clang__
#pragma GCC visibility push(hidden)
void GOMP_parallel(body_t body, void *data, unsigned threads, unsigned flags)
{
    runtime.parallel(body, data, threads, flags);
}

int omp_get_max_threads(void) { return runtime.max_threads(); }
int omp_get_num_threads(void) { return runtime.num_threads(); }
int omp_get_thread_num(void) { return runtime.thread_num(); }
#pragma GCC visibility pop
#endif
