// adamw.h - AdamW with decoupled weight decay (Loshchilov & Hutter, "Decoupled
// weight decay regularization", ICLR 2019), on all parameters alike.
//
// A parameter without a gradient is stepped with a gradient of zero: whether a
// field happened to be empty in every record of a micro-batch must not depend
// on how the batch was padded or split.
#pragma once
#include <cstdint>
#include "worker/model.h"

struct AdamW {
    Tensors exp_avg, exp_avg_sq; // by parameter name, contiguous
    int64_t steps = 0;

    void init(const Tensors &parameters);
    // The global norm of the gradients; the same bits for any thread count.
    double norm(const Tensors &parameters) const;
    // grad_scale multiplies every gradient first (clipping).
    void step(Tensors &parameters, const struct training_spec &training,
              double lr, double grad_scale);
};
