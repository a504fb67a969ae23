/* Compiles the functions of one file three times: for processors with AVX-512, for those with AVX2, and for any other.
 *
 * It is for functions that are written with vectors (vectors.h): in each version a vector is as long as a register of
 * the processor. loops.h leaves the versions to the compiler, which is enough for loops over single numbers. Of vectors
 * that are longer than a register, GCC 12 keeps the parts in memory and shuffles them number by number, which took a
 * third of the time of convolutions on AVX2.
 *
 * To use it, define LOOPS as the name of the file with the functions, and include this file. Within the functions'
 * file, TARGET stands before each function, NAME(f) gives a function f the name of its version, and LANES is how many
 * float32 a vector has. Afterwards, CALL(f) is the version of f for the present processor. On other machines than
 * x86-64 only the last version exists. */
#ifndef LANES_OF_REGISTERS
#define LANES_OF_REGISTERS

#if defined(__x86_64__) && defined(__GNUC__)
#define HAS(x) __builtin_cpu_supports(x)
static inline int has_avx512(void) { return HAS("avx512f") && HAS("avx512bw") && HAS("avx512dq") && HAS("avx512vl"); }
static inline int has_avx2(void) { return HAS("avx2") && HAS("fma"); }
#undef HAS
#define CALL(f) (has_avx512() ? f##_avx512 : has_avx2() ? f##_avx2 : f##_any)
#else
static inline int has_avx2(void) { return 0; }
#define CALL(f) f##_any
#endif

#endif

#if defined(__x86_64__) && defined(__GNUC__)
#define NAME(f) f##_avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define LANES 16
#include LOOPS
#undef NAME
#undef TARGET
#undef LANES

#define NAME(f) f##_avx2
#define TARGET __attribute__((target("avx2,fma")))
#define LANES 8
#include LOOPS
#undef NAME
#undef TARGET
#undef LANES
#endif

#define NAME(f) f##_any
#define TARGET
#define LANES 8
#include LOOPS
#undef NAME
#undef TARGET
#undef LANES
#undef LOOPS
