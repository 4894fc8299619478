/* torch_shim.h - the trainer: libtorch behind verbs of training.
 *
 * No torch type and no exception leaves this header's implementation. All
 * state that may change the result is inside and goes out through
 * trainer_save; what is not saved (gradients, caches) is rebuilt or undefined
 * after every step. Not thread-safe: one thread owns a trainer. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "schema/err.h"
#include "schema/record_desc.h"
#include "schema/spec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One padded micro-batch; the feed owns the memory. B = records. For a field
 * along dimension d, N = padded[d] (N = size for fixed numbers, 1 for scalars):
 *   tokens   ints[f]  B × N            0 where padded
 *   rows     ints[f]  B × N × n_ints,  nums[f] B × N × n_nums
 *   numbers  nums[f]  B × N
 *   target   nums[f]  B × N            a policy is 0 where padded
 * lengths[d][b] says how many entries of record b are real. */
struct batch {
    const struct record_desc *desc;
    int records;
    int first;   /* index of its first record within the effective batch */
    int *padded; /* per dimension */
    int32_t **lengths; /* per dimension, B each */
    int32_t **ints;    /* per field, NULL where a field has none */
    float **nums;
};

struct trainer;

/* What the library is: goes into the fingerprint and the claim. Keys:
 * libtorch, blas (folder and file name), blas_config, blas_core (null where the
 * library does not say), cpu_capability (ATen's), kernels (our own loops'
 * instruction set), and with CUDA cuda_device, cuda_capability, cuda_runtime,
 * cuda_driver. Opens no device. Caller owns the result. */
json_t *torch_describe(void);
/* The devices this build and machine offer, best first, "cpu" last, as a claim
 * has them: [{"kind", "name"?, "memory_bytes"?}]. Opens none. Caller owns. */
json_t *torch_devices(void);
/* What `auto` means here: "cuda", "mps" or "cpu". Opens no device. */
const char *torch_best_device(void);

/* Build the model with weights drawn from the spec's seed. `device` is cpu,
 * cuda or mps. The spec must outlive the trainer. ERR_TORCH, ERR_OOM,
 * ERR_INVALID. */
int trainer_new(const struct spec *spec, const char *device, int threads,
                struct trainer **ret, struct err *err);
void trainer_free(struct trainer *t);

/* Sums over the records of the micro-batches since the last step, not means.
 * The total is weighted by the spec's losses, its parts are not. */
struct losses {
    double total, policy, value;
    int64_t records;
};

/* Forward and backward of one micro-batch of optimizer step `step` (0-based,
 * counted over the whole job, so dropout never repeats). Its loss is the sum
 * over its records divided by `effective` (the records of this step's whole
 * batch). Adds to *sum. ERR_OOM (err->text is the library's), ERR_TORCH. */
int trainer_micro(struct trainer *t, const struct batch *b, int64_t step,
                  int effective, struct losses *sum, struct err *err);
/* Clip by global norm, AdamW with rate lr, gradients undefined again.
 * *ret_norm: the norm before clipping. ERR_NOT_FINITE leaves the parameters as
 * they were when the norm is not finite. */
int trainer_step(struct trainer *t, double lr, double *ret_norm,
                 struct err *err);
/* Drop the gradients gathered since the last step. */
void trainer_discard(struct trainer *t);

/* Forward only, no dropout, nothing drawn from any generator: adds the losses of
 * the records to *sum and leaves the trainer as it is. ERR_OOM, ERR_TORCH. */
int trainer_evaluate(struct trainer *t, const struct batch *b,
                     struct losses *sum, struct err *err);

/* Forward only, no dropout: *policy gets B × padded[policy dim] probabilities
 * (0 where padded), *value B values; either may be NULL. */
int trainer_predict(struct trainer *t, const struct batch *b, float *policy,
                    float *value, struct err *err);

/* Hand out every tensor of the state, contiguous host memory, in the order of
 * schema/state.h: model.* sorted, optimizer.* sorted, rng.*. One tensor at a
 * time is copied from the device. `put` returns 0 or an ERR_ that ends it. */
typedef int trainer_put_fn(void *ctx, const char *name, const char *dtype,
                           const int64_t *shape, int dims, const void *data,
                           size_t bytes, struct err *err);
int trainer_save(struct trainer *t, trainer_put_fn *put, void *ctx,
                 struct err *err);
/* How many bytes that is. */
int64_t trainer_state_bytes(const struct trainer *t);
/* Take tensors back, in any order. load_end refuses (ERR_CORRUPT, naming it) a
 * state in which any expected tensor was missing. Copies in place. */
int trainer_load(struct trainer *t, const char *name, const char *dtype,
                 const int64_t *shape, int dims, const void *data, size_t bytes,
                 struct err *err);
int trainer_load_end(struct trainer *t, struct err *err);
/* The optimizer begins anew: moments are 0, no step is counted. */
int trainer_restart_optimizer(struct trainer *t, struct err *err);
/* The same where only model.* is wanted: a model file, to predict with. */
int trainer_load_model_end(struct trainer *t, struct err *err);

/* Number of parameter tensors; *ret_count: of their values. */
int trainer_parameters(const struct trainer *t, int64_t *ret_count);

/* Device memory in bytes as the framework and the driver see it; -1: not
 * known. On the CPU both are -1. */
void trainer_memory(struct trainer *t, int64_t *ret_allocated,
                    int64_t *ret_driver, int64_t *ret_recommended);
void trainer_empty_cache(struct trainer *t);

/* For tests: trainers made from now on work on padded batches with the
 * library's operators, as they do on other devices than the CPU. */
void trainer_use_padded(bool on);

#ifdef __cplusplus
}
#endif
