// kernels_base.cpp - kernels for any CPU, and the choice among all.
#define ISA base
#include "worker/kernels.inc"

#ifdef __x86_64__
extern const struct kernel_set kernels_avx2, kernels_avx512;
#endif

const struct kernel_set *kernels(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq"))
        return &kernels_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return &kernels_avx2;
#endif
    return &kernels_base;
}
