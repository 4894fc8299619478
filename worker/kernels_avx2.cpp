// kernels_avx2.cpp - CMakeLists.txt compiles this file with avx2 switched on.
#ifdef __x86_64__
#define ISA avx2
#include "worker/kernels.inc"
#endif
