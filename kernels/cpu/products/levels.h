/* Compiles the functions of one file three times: for processors with AVX-512, for those with AVX2, and for any other.
 *
 * It is for functions that are written with vectors (vectors.h): in each version a vector is as long as a register of
 * the processor, in the last one 4 numbers, as with NEON. loops.h leaves the versions to the compiler, which is enough
 * for loops over single numbers. GCC 12 keeps vectors that are longer than a register in memory, and shuffles them
 * number by number, which took a third of the time of convolutions on AVX2.
 *
 * To use it, define TAGI_LOOPS as the name of the file with the functions, and include this file. Within the functions'
 * file, TAGI_TARGET stands before each function, TAGI_NAME(f) gives a function f the name of its version, and
 * TAGI_LANES is how many float32 a vector has. Afterwards, TAGI_CALL(f) is the version of f for the present processor.
 * On other machines than x86-64 only the last version exists. */
#ifndef TAGI_LANES_OF_REGISTERS
#define TAGI_LANES_OF_REGISTERS

#if defined(__x86_64__) && defined(__GNUC__)
#define TAGI_HAS(x) __builtin_cpu_supports(x)
static inline int tagi_has_avx512(void) {
    return TAGI_HAS("avx512f") && TAGI_HAS("avx512bw") && TAGI_HAS("avx512dq") && TAGI_HAS("avx512vl");
}
static inline int tagi_has_avx2(void) { return TAGI_HAS("avx2") && TAGI_HAS("fma"); }
#undef TAGI_HAS
#define TAGI_CALL(f) (tagi_has_avx512() ? f##_avx512 : tagi_has_avx2() ? f##_avx2 : f##_any)
#else
static inline int tagi_has_avx2(void) { return 0; }
#define TAGI_CALL(f) f##_any
#endif

#endif

#if defined(__x86_64__) && defined(__GNUC__)
#define TAGI_NAME(f) f##_avx512
#define TAGI_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define TAGI_LANES 16
#include TAGI_LOOPS
#undef TAGI_NAME
#undef TAGI_TARGET
#undef TAGI_LANES

#define TAGI_NAME(f) f##_avx2
#define TAGI_TARGET __attribute__((target("avx2,fma")))
#define TAGI_LANES 8
#include TAGI_LOOPS
#undef TAGI_NAME
#undef TAGI_TARGET
#undef TAGI_LANES
#endif

#define TAGI_NAME(f) f##_any
#define TAGI_TARGET
#define TAGI_LANES 4
#include TAGI_LOOPS
#undef TAGI_NAME
#undef TAGI_TARGET
#undef TAGI_LANES
#undef TAGI_LOOPS
