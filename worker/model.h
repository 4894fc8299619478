// model.h - policy_value_transformer: its parameters and its forward pass.
//
// D = d_model, F = ff. Fields are those of the record, <f> a field's name.
//
//   class                                    D      the learned class token
//   embed.<f>.field                          D      every input field
//   embed.<f>.tokens              vocab × D         tokens
//   embed.<f>.positions          length × D         tokens, numbers: max_length,
//                                                   or the field's size
//   embed.<f>.columns.<c>         vocab × D         rows, column c an index
//   embed.<f>.numbers                 D × n         rows: the n columns that are
//                                                   numbers; numbers: n = 1
//   encoder.<l>.attention.norm.{weight,bias}   D
//   encoder.<l>.attention.qkv.weight      3D × D
//   encoder.<l>.attention.q.bias               D
//   encoder.<l>.attention.out.{weight,bias}    D × D, D
//   encoder.<l>.ff.norm.{weight,bias}          D
//   encoder.<l>.ff.in.{weight,bias}        F × D, F
//   encoder.<l>.ff.out.{weight,bias}       D × F, D
//   encoder.norm.{weight,bias}                 D
//   policy.norm.{weight,bias}                  D      with a policy
//   policy.q.{weight,bias}                 D × D, D
//   policy.kv.weight                      2D × D
//   policy.out.{weight,bias}               D × D, D
//   policy.score.norm.{weight,bias}            D
//   policy.score.in.{weight,bias}          D × D, D
//   policy.score.out.weight                1 × D
//   value.in.{weight,bias}                 D × D, D   with a value
//   value.out.{weight,bias}                1 × D, 1
//
// x is the class token and the rows of all input fields but the one that the
// policy is over (those rows are the candidates, embedded alike). Each layer:
//
//   x += drop(out(drop(softmax(q·k / √(D/heads)))·v)),  q k v from norm(x)
//   x += drop(out(drop(gelu(in(norm(x))))))             gelu: the exact one
//
// then norm. A candidate c: c += drop(out(attention from norm(c) to x)), its
// score out(gelu(in(norm(c)))), the policy a softmax over the record's scores.
// The value is tanh(out(gelu(in(x of the class token)))). Norms have eps 1e-5.
//
// What is not there has no true gradient: a key's bias adds the same to all
// products of a query, a last bias the same to all scores. Under Adam such a
// parameter drifts by rounding alone. A value's bias would repeat the one of
// the projection behind it, as the weights of a query sum to 1.
//
// Each weight is drawn uniformly from a Philox counter keyed by the seed and
// the tensor's name: independent of libtorch, machine and order.
#pragma once
#include <ATen/core/Tensor.h>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>
#include "schema/spec.h"
#include "worker/dropout.h"
#include "worker/ops.h"
#include "worker/torch_shim.h"

typedef std::map<std::string, at::Tensor> Tensors;

struct Parameter {
    std::string name;
    std::vector<int64_t> shape;
    double bound; // drawn from (-bound, bound); 0: constant
    float constant;
};
std::vector<Parameter> model_parameters(const struct spec *spec);

// One micro-batch on its way through the model. Lives until its backward is
// done: operators point into it.
struct Pass {
    const struct batch *batch = nullptr;
    bool packed = true; // real rows only, own kernels: the CPU's way
    Dropout dropout;
    Rows tokens, candidates;
    // What operators point into.
    std::vector<at::Tensor> kept; // masks
    std::unique_ptr<EmbedPlan> embed_tokens, embed_candidates;
    std::deque<AttentionPlan> attention;
    at::Tensor padding; // padded: true where a token is padding
    // Results. Scores: one per candidate row (packed), or B × A.
    at::Tensor scores, value;
};

struct Model {
    const struct spec *spec;
    at::Device device{at::kCPU};
    Tensors parameters;

    // Made on the host, then moved.
    void init(const struct spec *spec, at::Device device);
    void forward(Pass &pass);
    // Sums over the records; either is undefined where the record has none.
    void losses(Pass &pass, at::Tensor *ret_policy, at::Tensor *ret_value);

  private:
    const at::Tensor &p(const std::string &name) const;
    at::Tensor linear(const at::Tensor &x, const std::string &name) const;
    at::Tensor norm(const at::Tensor &x, const std::string &name) const;
    at::Tensor embed(Pass &pass, bool candidates) const;
    at::Tensor embed_padded(Pass &pass, bool candidates) const;
    at::Tensor drop_add(Pass &pass, const at::Tensor &base, const at::Tensor &x,
                        const Rows &rows, int layer, drop_site site) const;
    at::Tensor self_attention(Pass &pass, const at::Tensor &x, int layer) const;
    at::Tensor cross_attention(Pass &pass, const at::Tensor &c,
                               const at::Tensor &x) const;
    std::vector<int> input_fields(bool candidates) const;
};
