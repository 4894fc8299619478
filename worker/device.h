// device.h - what differs between CUDA, MPS and the CPU besides arithmetic.
#pragma once
#include <ATen/core/Tensor.h>
#include <jansson.h>
#include <cstdint>

// Bytes; what is not known stays as it was.
void device_memory(const at::Device &device, int64_t *allocated,
                   int64_t *driver, int64_t *recommended);
void device_empty_cache(const at::Device &device);
// Adds what a kind of device says of itself: name, runtime.
void device_describe(json_t *into);
// The first device of a kind, into a claim's entry: name, memory of its own.
void device_facts(const char *kind, json_t *into);
