// kernels_avx512.cpp - CMakeLists.txt compiles this file with avx512 switched on.
#ifdef __x86_64__
#define ISA avx512
#include "worker/kernels.inc"
#endif
