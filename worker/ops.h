// ops.h - operators of the packed way through the model, with their gradients.
//
// Each does in one pass over float32 host memory what would take several ATen
// operators and, for records of different lengths, padding. Pointers given to
// them must stay valid until the backward pass is done.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <vector>
#include "worker/dropout.h"

// Rows as sums of table rows (embeddings) and of linear maps of numbers.
struct EmbedPlan {
    struct Term {
        int table;                  // index into the tables
        int n_numbers;              // 0: an index per row; else numbers per row
        std::vector<int64_t> rows;  // ascending; written rows
        std::vector<int32_t> index; // per row: row of the table
        std::vector<float> numbers; // per row: n_numbers; table is width × n
    };
    int64_t rows = 0;
    int width = 0;
    std::vector<Term> terms;
};
at::Tensor op_embed(const EmbedPlan *plan,
                    const std::vector<at::Tensor> &tables);

// base + x · keep · scale. keep: host bytes like x, or NULL for all kept.
at::Tensor op_drop_add(const at::Tensor &base, const at::Tensor &x,
                       const uint8_t *keep, float scale);
// gelu(x) · keep · scale
at::Tensor op_gelu_drop(const at::Tensor &x, const uint8_t *keep, float scale);

struct AttentionPlan {
    const Rows *queries, *keys;
    int heads, width; // of all heads together
    uint32_t threshold;
    float keep_scale;
    uint32_t key[2];
};
// qkv: rows × 3·width
at::Tensor op_self_attention(const AttentionPlan *plan, const at::Tensor &qkv);
// q: query rows × width, kv: key rows × 2·width
at::Tensor op_cross_attention(const AttentionPlan *plan, const at::Tensor &q,
                              const at::Tensor &kv);

// Cross-entropy of each record's scores against its targets, summed. scores:
// one per row; targets: records × stride.
at::Tensor op_policy_loss(const Rows *rows, const at::Tensor &scores,
                          const float *targets, int stride);
