/* Tells whether tensors have changed: their address, shape, strides, dtype or bytes.
 *
 * This check runs at each read of a remembered weight. So it is a Python builtin in C,
 * which gets the facts about a tensor from torch's stable C interface. Collecting the
 * facts in Python and passing them to C by ctypes took longer than comparing a small
 * weight.
 *
 * Bytes are compared by a digest, which needs half the memory traffic of a comparison
 * with a copy. LANES lanes share the work, and each lane has a state. The state of lane
 * j absorbs the blocks j, j + LANES, and so on. At the end, one more state absorbs the
 * states of all lanes, and is the digest. Each step is injective in the block and in
 * the state, so a change of one block always changes the digest. The probability that
 * any other change leaves the digest unchanged is about 2^-128, or 2^-64 on a processor
 * without AES. One round of AES is weak, so an attacker could construct a change that
 * goes unnoticed, but there is no attacker here.
 *
 * ISOMETRY_MOST_AXES, the largest number of axes of a tensor that is watched, is defined
 * in constants.py, and the build passes it to the compiler. */

#include <stdint.h>
#include <string.h>

#if defined(__VAES__) && defined(__AVX512F__)
#include <immintrin.h>
typedef __m512i block;
#define STEP(state, x) _mm512_aesenc_epi128(state, x)
#elif defined(__AES__)
#include <immintrin.h>
typedef __m128i block;
#define STEP(state, x) _mm_aesenc_si128(state, x)
#else
typedef uint64_t block __attribute__((vector_size(16)));
/* multiplication by an odd number is injective modulo 2^64; this number is 2^64 divided
 * by the golden ratio */
#define STEP(state, x) scramble((state ^ x) * 0x9e3779b97f4a7c15u)
static block scramble(block h) { return h ^ (h >> 32); }
#endif

/* a block in the memory of a tensor, at any address */
typedef block unaligned_block __attribute__((aligned(1), may_alias));

/* enough lanes to hide the latency of a step */
#define LANES 8

/* A tensor is split into pieces of PIECE bytes. Each piece has its own digest, in
 * DIGEST bytes of memory: enough for a block of any of the types above. */
#define PIECE 65536
#define DIGEST 64

/* reading fewer bytes than this takes less time than waking the threads */
#define PARALLEL_FROM_BYTES 524288

/* what torch tells us about a tensor */
struct facts {
    const void *data;
    int64_t dtype, dim;
    int64_t sizes[ISOMETRY_MOST_AXES], strides[ISOMETRY_MOST_AXES];
};

/* The record of a tensor at the time when `watch` was called, with the digests of its
 * pieces. The record of the next tensor follows in memory. */
struct watched {
    /* the at::Tensor inside a Python tensor, and how many bytes its entries fill */
    void *tensor;
    int64_t bytes;
    struct facts then;
    char digests[];
};

/* functions of torch/csrc/inductor/aoti_torch/c/shim.h, in the order of watch.py */
static struct {
    int32_t (*data_ptr)(void *, void **);
    int32_t (*dtype)(void *, int32_t *);
    int32_t (*dim)(void *, int64_t *);
    int32_t (*sizes)(void *, int64_t **);
    int32_t (*strides)(void *, int64_t **);
} torch_api;

/* the offset in bytes of the at::Tensor in a Python tensor */
static intptr_t offset;

/* functions of Python's stable ABI, with void * for PyObject * */
void *PyTuple_GetItem(void *tuple, intptr_t index);
void *PyTuple_Pack(intptr_t size, ...);
intptr_t PyTuple_Size(void *tuple);
char *PyByteArray_AsString(void *array);
void *PyByteArray_FromStringAndSize(const char *from, intptr_t size);
int PyByteArray_Resize(void *array, intptr_t size);
intptr_t PyByteArray_Size(void *array);
void *PyBool_FromLong(long value);
long PyLong_AsLong(void *number);
void *PyCFunction_NewEx(const void *method, void *self, void *module);
void Py_DecRef(void *object);

/* Python's PyMethodDef */
struct method {
    const char *name;
    void *(*function)(void *self, void *arguments);
    int flags;
    const char *doc;
};

/* METH_VARARGS and METH_NOARGS in Python's methodobject.h */
#define VARIABLE_ARGUMENTS 1
#define NO_ARGUMENTS 4

/* Fills `now`; false if a function of torch fails or the tensor has too many axes. */
static int read_facts(void *tensor, struct facts *now)
{
    void *data;
    int32_t dtype;
    int64_t *sizes, *strides;
    memset(now, 0, sizeof *now);
    if (torch_api.data_ptr(tensor, &data) || torch_api.dtype(tensor, &dtype) ||
        torch_api.dim(tensor, &now->dim) || torch_api.sizes(tensor, &sizes) ||
        torch_api.strides(tensor, &strides) || now->dim > ISOMETRY_MOST_AXES)
        return 0;
    now->data = data;
    now->dtype = dtype;
    for (int64_t i = 0; i < now->dim; i++) {
        now->sizes[i] = sizes[i];
        now->strides[i] = strides[i];
    }
    return 1;
}

/* Runs `count` rounds; in each round, every lane absorbs one block. */
static void absorb(block *states, const char *from, int64_t count)
{
    /* variables instead of an array, so that the states stay in registers */
    block s0 = states[0], s1 = states[1], s2 = states[2], s3 = states[3];
    block s4 = states[4], s5 = states[5], s6 = states[6], s7 = states[7];
    const unaligned_block *x = (const unaligned_block *)from;
    for (int64_t i = 0; i < count; i++, x += LANES) {
        s0 = STEP(s0, x[0]), s1 = STEP(s1, x[1]), s2 = STEP(s2, x[2]);
        s3 = STEP(s3, x[3]), s4 = STEP(s4, x[4]), s5 = STEP(s5, x[5]);
        s6 = STEP(s6, x[6]), s7 = STEP(s7, x[7]);
    }
    const block end[LANES] = {s0, s1, s2, s3, s4, s5, s6, s7};
    memcpy(states, end, sizeof end);
}

static void digest(const char *from, int64_t bytes, char *out)
{
    block states[LANES] = {0};
    const int64_t round = sizeof states, rest = bytes % round;
    absorb(states, from, bytes / round);
    if (rest) {
        char last[sizeof states] = {0};
        memcpy(last, from + bytes - rest, (size_t)rest);
        absorb(states, last, 1);
    }
    /* The states of the lanes are absorbed one by one. If pairs of states were combined
     * first, a swap of the data of two paired lanes would go unnoticed on a processor
     * without AES, where STEP(x, y) is equal to STEP(y, x). */
    block all = {0};
    for (int j = 0; j < LANES; j++)
        all = STEP(all, states[j]);
    memcpy(out, &all, sizeof all);
}

static int64_t pieces(const struct watched *w)
{
    return (w->bytes + PIECE - 1) / PIECE;
}

static void digest_piece(const struct watched *w, int64_t i, char *out)
{
    const int64_t from = i * PIECE, rest = w->bytes - from;
    digest((const char *)w->then.data + from, rest < PIECE ? rest : PIECE, out);
}

static int piece_differs(const struct watched *w, int64_t i)
{
    char now[DIGEST];
    digest_piece(w, i, now);
    return memcmp(now, w->digests + i * DIGEST, sizeof(block)) != 0;
}

static int bytes_differ(const struct watched *w)
{
    int differ = 0;
    const int64_t n = pieces(w);
    /* A small weight is compared without a parallel region. An `if` clause of the
     * pragma would leave a region of one thread, and entering it takes longer than
     * comparing a small weight. */
    if (w->bytes < PARALLEL_FROM_BYTES) {
        for (int64_t i = 0; i < n && !differ; i++)
            differ = piece_differs(w, i);
        return differ;
    }
#pragma omp parallel for reduction(| : differ)
    for (int64_t i = 0; i < n; i++)
        differ |= piece_differs(w, i);
    return differ;
}

/* The builtin that `watch` returns. It has no arguments, and tells whether the tensors
 * recorded in `memory` are unchanged. It is bound to the pair (memory, arguments), where
 * `memory` is a bytearray with records of type `struct watched`. `arguments` is the
 * tuple of arguments of `watch`, which keeps the recorded tensors alive. */
static void *unchanged(void *self, void *nothing)
{
    (void)nothing;
    void *memory = PyTuple_GetItem(self, 0);
    const char *at = PyByteArray_AsString(memory), *end = at + PyByteArray_Size(memory);
    int same = 1;
    while (same && at < end) {
        const struct watched *w = (const void *)at;
        struct facts now;
        same = read_facts(w->tensor, &now) && !memcmp(&now, &w->then, sizeof now) &&
               !bytes_differ(w);
        at = w->digests + pieces(w) * DIGEST;
    }
    return PyBool_FromLong(same);
}

/* Appends the record of a tensor to the bytearray `memory`; false if out of memory. The
 * entries of the tensor fill `bytes` bytes without gaps. */
static int append(void *memory, void *tensor, int64_t bytes)
{
    struct watched now = {.tensor = (char *)tensor + offset};
    /* If `read_facts` fails here, it also fails in `unchanged`, which then reports a
     * change. */
    if (read_facts(now.tensor, &now.then))
        now.bytes = bytes;
    const intptr_t before = PyByteArray_Size(memory);
    const int64_t size = (int64_t)sizeof now + pieces(&now) * DIGEST;
    if (PyByteArray_Resize(memory, before + size))
        return 0;
    struct watched *w = (void *)(PyByteArray_AsString(memory) + before);
    memcpy(w, &now, sizeof now);
    for (int64_t i = 0; i < pieces(w); i++)
        digest_piece(w, i, w->digests + i * DIGEST);
    return 1;
}

/* The builtin `watch(after, memory, *tensors, *sizes)`, which returns a new builtin
 * `unchanged`. The sizes are the numbers of bytes of the tensors. If `after` is an earlier
 * builtin `unchanged`, then `memory` is the bytearray of `after`, and the new builtin
 * checks the tensors of `after` first. If `after` is None, `memory` is empty. */
static void *watch(void *self, void *arguments)
{
    static const struct method method = {"unchanged", unchanged, NO_ARGUMENTS, NULL};
    (void)self;
    void *earlier = PyTuple_GetItem(arguments, 1), *result = NULL;
    void *memory = PyByteArray_FromStringAndSize(PyByteArray_AsString(earlier),
                                                 PyByteArray_Size(earlier));
    if (!memory)
        return NULL;
    int good = 1;
    const intptr_t count = (PyTuple_Size(arguments) - 2) / 2;
    for (intptr_t i = 2; good && i < 2 + count; i++)
        good = append(memory, PyTuple_GetItem(arguments, i),
                      PyLong_AsLong(PyTuple_GetItem(arguments, i + count)));
    void *bound = good ? PyTuple_Pack(2, memory, arguments) : NULL;
    Py_DecRef(memory);
    if (bound) {
        result = PyCFunction_NewEx(&method, bound, NULL);
        Py_DecRef(bound);
    }
    return result;
}

/* Stores torch's functions in `torch_api`, and in `offset` the number `where`: the
 * offset in bytes of the at::Tensor in a Python tensor. Returns the builtin `watch`. */
void *isometry_connect(const void *functions, long where)
{
    static const struct method method = {"watch", watch, VARIABLE_ARGUMENTS, NULL};
    memcpy(&torch_api, functions, sizeof torch_api);
    offset = where;
    return PyCFunction_NewEx(&method, NULL, NULL);
}
