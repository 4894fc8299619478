// kernels_base.cpp - kernels for any CPU, and the choice among all.
#define ISA base
#include "worker/kernels.inc"

#ifdef __x86_64__
extern "C" const struct kernel_set kernels_avx2, kernels_avx512;
#endif

// Best first.
static const struct kernel_set *const *choose()
{
    static const struct kernel_set *all[4];
    int n = 0;
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq"))
        all[n++] = &kernels_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        all[n++] = &kernels_avx2;
#endif
    all[n] = &kernels_base;
    return all;
}

const struct kernel_set *const *kernels_all(void)
{
    static const struct kernel_set *const *all = choose();
    return all;
}

const struct kernel_set *kernels(void)
{
    static const struct kernel_set *best = kernels_all()[0];
    return best;
}
