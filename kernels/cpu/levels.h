/* Compiles the loops of a file once for each kind of x86-64, with vectors as long as its registers.
 *
 * loops.h leaves that to the compiler, which is enough for loops over numbers. Loops over vectors need it here: GCC 12
 * takes a vector that is longer than a register apart, keeps the parts in memory, and shuffles them number by number,
 * which took convolutions on AVX2 a third of their time.
 *
 * To be included with LOOPS, the name of the file. The file puts TARGET before its functions and NAME(f) around the
 * names of what it defines; a vector has LANES numbers. CALL(f) is the one for this processor. Other processors than
 * x86-64 get the last one. */
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
