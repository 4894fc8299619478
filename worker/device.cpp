#include "worker/device.h"
#include <ATen/Context.h>
#include <torch/version.h>
#include <cstring>

// A CPU-only libtorch comes without CUDA's headers.
#if __has_include(<c10/cuda/CUDACachingAllocator.h>) &&                        \
    __has_include(<cuda_runtime_api.h>)
#define WITH_CUDA 1
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#else
#define WITH_CUDA 0
#endif

#if TORCH_VERSION_MAJOR >= 2
#define WITH_MPS 1
#include <ATen/detail/MPSHooksInterface.h>
#else
#define WITH_MPS 0 // 1.13's hooks know nothing of memory
#endif

void device_memory(const at::Device &device, int64_t *allocated,
                   int64_t *driver, int64_t *recommended)
{
#if WITH_CUDA
    if (device.is_cuda()) {
        // Index 0 of a statistic is the sum over all pools.
        auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(
            device.index() < 0 ? 0 : device.index());
        *allocated = stats.allocated_bytes[0].current;
        *driver = stats.reserved_bytes[0].current;
        size_t free_bytes = 0, total = 0;
        if (cudaMemGetInfo(&free_bytes, &total) == cudaSuccess)
            *recommended = (int64_t)total;
    }
#endif
#if WITH_MPS
    if (device.type() == at::kMPS) {
        const auto &hooks = at::detail::getMPSHooks();
        *allocated = (int64_t)hooks.getCurrentAllocatedMemory();
        *driver = (int64_t)hooks.getDriverAllocatedMemory();
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 5
        *recommended = (int64_t)hooks.getRecommendedMaxMemory();
#endif
    }
#endif
}

void device_empty_cache(const at::Device &device)
{
#if WITH_CUDA
    if (device.is_cuda())
        c10::cuda::CUDACachingAllocator::emptyCache();
#endif
#if WITH_MPS
    if (device.type() == at::kMPS)
        at::detail::getMPSHooks().emptyCache();
#endif
}

void device_facts(const char *kind, json_t *into)
{
#if WITH_CUDA
    cudaDeviceProp properties;
    if (!strcmp(kind, "cuda") &&
        cudaGetDeviceProperties(&properties, 0) == cudaSuccess) {
        json_object_set_new(into, "name", json_string(properties.name));
        json_object_set_new(
            into, "memory_bytes",
            json_integer((json_int_t)properties.totalGlobalMem));
    }
#endif
    (void)kind; // what MPS has is the host's
    (void)into;
}

void device_describe(json_t *into)
{
#if WITH_CUDA
    // Properties come from the driver without a context on the device.
    cudaDeviceProp properties;
    int version = 0;
    if (at::hasCUDA() &&
        cudaGetDeviceProperties(&properties, 0) == cudaSuccess) {
        json_object_set_new(into, "cuda_device", json_string(properties.name));
        json_object_set_new(
            into, "cuda_capability",
            json_sprintf("%d.%d", properties.major, properties.minor));
        if (cudaRuntimeGetVersion(&version) == cudaSuccess)
            json_object_set_new(into, "cuda_runtime", json_integer(version));
        if (cudaDriverGetVersion(&version) == cudaSuccess)
            json_object_set_new(into, "cuda_driver", json_integer(version));
    }
#endif
    (void)into;
}
