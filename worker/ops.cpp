#include "worker/ops.h"
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include "worker/kernels.h"

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

namespace
{

// Functions take pointers as integers: the context keeps nothing else that is
// not a tensor.
template <class T> int64_t pack_pointer(const T *p)
{
    return (int64_t)(uintptr_t)p;
}
template <class T> const T *pointer(int64_t v)
{
    return (const T *)(uintptr_t)v;
}

struct Embed : Function<Embed> {
    static at::Tensor forward(AutogradContext *ctx, int64_t plan_,
                              at::TensorList tables)
    {
        const EmbedPlan *plan = pointer<EmbedPlan>(plan_);
        ctx->saved_data["plan"] = plan_;
        ctx->save_for_backward(tables.vec());
        at::Tensor out = at::zeros({plan->rows, plan->width});
        float *o = out.data_ptr<float>();
        const int w = plan->width;
        at::parallel_for(0, plan->rows, 64, [&](int64_t from, int64_t to) {
            for (const EmbedPlan::Term &t : plan->terms) {
                const float *table = tables[t.table].data_ptr<float>();
                size_t i =
                    std::lower_bound(t.rows.begin(), t.rows.end(), from) -
                    t.rows.begin();
                for (; i < t.rows.size() && t.rows[i] < to; i++) {
                    float *row = o + t.rows[i] * w;
                    if (!t.n_numbers) {
                        const float *x = table + (int64_t)t.index[i] * w;
                        for (int j = 0; j < w; j++)
                            row[j] += x[j];
                        continue;
                    }
                    const float *x = &t.numbers[i * t.n_numbers];
                    for (int j = 0; j < w; j++)
                        for (int c = 0; c < t.n_numbers; c++)
                            row[j] += table[j * t.n_numbers + c] * x[c];
                }
            }
        });
        return out;
    }

    // Adds to the tables' gradients where they are: a large vocabulary would
    // otherwise be filled with zeros and added up once per micro-batch.
    static variable_list backward(AutogradContext *ctx, variable_list grads)
    {
        const EmbedPlan *plan =
            pointer<EmbedPlan>(ctx->saved_data["plan"].toInt());
        variable_list tables = ctx->get_saved_variables();
        at::Tensor g = grads[0].contiguous();
        const float *gp = g.data_ptr<float>();
        const int w = plan->width;
        std::vector<float *> to(tables.size());
        for (size_t i = 0; i < tables.size(); i++) {
            at::Tensor &grad = tables[i].mutable_grad();
            if (!grad.defined())
                grad = at::zeros(tables[i].sizes());
            to[i] = grad.data_ptr<float>();
        }
        // One table belongs to one term, so terms may run side by side.
        at::parallel_for(
            0, (int64_t)plan->terms.size(), 1, [&](int64_t from, int64_t end) {
                for (int64_t k = from; k < end; k++) {
                    const EmbedPlan::Term &t = plan->terms[k];
                    for (size_t i = 0; i < t.rows.size(); i++) {
                        const float *row = gp + t.rows[i] * w;
                        if (!t.n_numbers) {
                            float *x = to[t.table] + (int64_t)t.index[i] * w;
                            for (int j = 0; j < w; j++)
                                x[j] += row[j];
                            continue;
                        }
                        const float *x = &t.numbers[i * t.n_numbers];
                        for (int j = 0; j < w; j++)
                            for (int c = 0; c < t.n_numbers; c++)
                                to[t.table][j * t.n_numbers + c] +=
                                    row[j] * x[c];
                    }
                }
            });
        return variable_list(1 + tables.size());
    }
};

constexpr int64_t GRAIN = 32768;

void drop_add(const float *base, const float *x, const uint8_t *keep,
              float scale, int64_t n, float *out)
{
    at::parallel_for(0, n, GRAIN, [&](int64_t from, int64_t to) {
        kernels()->drop_add(base ? base + from : nullptr, x + from,
                            keep ? keep + from : nullptr, scale, to - from,
                            out + from);
    });
}

struct DropAdd : Function<DropAdd> {
    static at::Tensor forward(AutogradContext *ctx, const at::Tensor &base,
                              const at::Tensor &x, int64_t keep, double scale)
    {
        ctx->saved_data["keep"] = keep;
        ctx->saved_data["scale"] = scale;
        at::Tensor out = at::empty_like(x);
        drop_add(base.data_ptr<float>(), x.data_ptr<float>(),
                 pointer<uint8_t>(keep), (float)scale, x.numel(),
                 out.data_ptr<float>());
        return out;
    }
    static variable_list backward(AutogradContext *ctx, variable_list grads)
    {
        const uint8_t *keep = pointer<uint8_t>(ctx->saved_data["keep"].toInt());
        at::Tensor g = grads[0].contiguous(), gx = g;
        if (keep) {
            gx = at::empty_like(g);
            drop_add(nullptr, g.data_ptr<float>(), keep,
                     (float)ctx->saved_data["scale"].toDouble(), g.numel(),
                     gx.data_ptr<float>());
        }
        return {g, gx, at::Tensor(), at::Tensor()};
    }
};

struct GeluDrop : Function<GeluDrop> {
    static at::Tensor forward(AutogradContext *ctx, const at::Tensor &x,
                              int64_t keep, double scale)
    {
        ctx->saved_data["keep"] = keep;
        ctx->saved_data["scale"] = scale;
        ctx->save_for_backward({x});
        at::Tensor out = at::gelu(x);
        float *o = out.data_ptr<float>();
        if (keep)
            drop_add(nullptr, o, pointer<uint8_t>(keep), (float)scale,
                     x.numel(), o);
        return out;
    }
    static variable_list backward(AutogradContext *ctx, variable_list grads)
    {
        const uint8_t *keep = pointer<uint8_t>(ctx->saved_data["keep"].toInt());
        at::Tensor g = grads[0].contiguous();
        if (keep) {
            at::Tensor d = at::empty_like(g);
            drop_add(nullptr, g.data_ptr<float>(), keep,
                     (float)ctx->saved_data["scale"].toDouble(), g.numel(),
                     d.data_ptr<float>());
            g = d;
        }
        return {at::gelu_backward(g, ctx->get_saved_variables()[0]),
                at::Tensor(), at::Tensor()};
    }
};

// Where the weights of each record begin; the last one is the total.
std::vector<int64_t> weight_starts(const AttentionPlan *plan)
{
    const int B = plan->queries->records;
    std::vector<int64_t> at(B + 1, 0);
    for (int b = 0; b < B; b++)
        at[b + 1] = at[b] + (int64_t)plan->heads * plan->queries->span(b) *
                                attention_stride(plan->keys->span(b));
    return at;
}

// Describe record b, head h; the caller fills in what differs by direction.
struct attention_one describe(const AttentionPlan *plan, int b, int h,
                              const std::vector<int64_t> &at, float *weights)
{
    const Rows &q = *plan->queries, &k = *plan->keys;
    struct attention_one a = {};
    a.nq = q.span(b);
    a.nk = k.span(b);
    a.width = plan->width / plan->heads;
    a.scale = 1.0f / std::sqrt((float)a.width);
    a.weights = weights + at[b] + (int64_t)h * a.nq * attention_stride(a.nk);
    a.threshold = plan->threshold;
    a.keep_scale = plan->keep_scale;
    memcpy(a.key, plan->key, sizeof a.key);
    a.record = (uint32_t)(q.first + b);
    a.head = (uint32_t)h;
    a.q_field = q.field.data() + q.start[b];
    a.q_index = q.index.data() + q.start[b];
    a.k_block = k.blocks.data() + k.block_start[b];
    a.n_blocks = k.block_start[b + 1] - k.block_start[b];
    a.k_seg = k.pairs.data() + (size_t)b * k.n_segments * 2;
    a.n_segs = k.n_segments;
    return a;
}

struct Strided {
    float *p;
    ptrdiff_t ld;
};

void attend(const AttentionPlan *plan, Strided q, Strided k, Strided v,
            float *out, float *weights)
{
    const std::vector<int64_t> at = weight_starts(plan);
    const int H = plan->heads, w = plan->width / H;
    at::parallel_for(
        0, (int64_t)plan->queries->records * H, 1,
        [&](int64_t from, int64_t to) {
            std::vector<float> scratch;
            for (int64_t i = from; i < to; i++) {
                int b = (int)(i / H), h = (int)(i % H);
                struct attention_one a = describe(plan, b, h, at, weights);
                if (!a.nq)
                    continue;
                int64_t rq = plan->queries->start[b], rk = plan->keys->start[b];
                a.q = q.p + rq * q.ld + h * w;
                a.k = k.p + rk * k.ld + h * w;
                a.v = v.p + rk * v.ld + h * w;
                a.out = out + rq * plan->width + h * w;
                a.ld_q = q.ld;
                a.ld_kv = k.ld;
                a.ld_out = plan->width;
                size_t need =
                    kernels()->attention_scratch(a.nq, a.nk, w, a.n_blocks);
                if (scratch.size() < need)
                    scratch.resize(need);
                kernels()->attention_forward(&a, scratch.data());
            }
        });
}

void attend_back(const AttentionPlan *plan, Strided q, Strided k, Strided v,
                 const float *d_out, float *weights, Strided dq, Strided dk,
                 Strided dv)
{
    const std::vector<int64_t> at = weight_starts(plan);
    const int H = plan->heads, w = plan->width / H;
    at::parallel_for(
        0, (int64_t)plan->queries->records * H, 1,
        [&](int64_t from, int64_t to) {
            std::vector<float> scratch;
            for (int64_t i = from; i < to; i++) {
                int b = (int)(i / H), h = (int)(i % H);
                struct attention_one a = describe(plan, b, h, at, weights);
                int64_t rq = plan->queries->start[b], rk = plan->keys->start[b];
                a.q = q.p + rq * q.ld + h * w;
                a.k = k.p + rk * k.ld + h * w;
                a.v = v.p + rk * v.ld + h * w;
                a.d_out = d_out + rq * plan->width + h * w;
                a.ld_q = q.ld;
                a.ld_kv = k.ld;
                a.ld_out = plan->width;
                a.dq = dq.p + rq * dq.ld + h * w;
                a.dk = dk.p + rk * dk.ld + h * w;
                a.dv = dv.p + rk * dv.ld + h * w;
                a.ld_dq = dq.ld;
                a.ld_dkv = dk.ld;
                size_t need =
                    kernels()->attention_scratch(a.nq, a.nk, w, a.n_blocks);
                if (scratch.size() < need)
                    scratch.resize(need);
                kernels()->attention_backward(&a, scratch.data());
            }
        });
}

struct SelfAttention : Function<SelfAttention> {
    static at::Tensor forward(AutogradContext *ctx, int64_t plan_,
                              const at::Tensor &qkv)
    {
        const AttentionPlan *plan = pointer<AttentionPlan>(plan_);
        const int D = plan->width;
        at::Tensor out = at::empty({qkv.size(0), D});
        at::Tensor weights = at::empty({weight_starts(plan).back()});
        float *p = qkv.data_ptr<float>();
        attend(plan, {p, 3 * D}, {p + D, 3 * D}, {p + 2 * D, 3 * D},
               out.data_ptr<float>(), weights.data_ptr<float>());
        ctx->saved_data["plan"] = plan_;
        ctx->save_for_backward({qkv, weights});
        return out;
    }
    static variable_list backward(AutogradContext *ctx, variable_list grads)
    {
        const AttentionPlan *plan =
            pointer<AttentionPlan>(ctx->saved_data["plan"].toInt());
        variable_list saved = ctx->get_saved_variables();
        const int D = plan->width;
        at::Tensor g = grads[0].contiguous(), d = at::empty_like(saved[0]);
        float *p = saved[0].data_ptr<float>(), *o = d.data_ptr<float>();
        attend_back(plan, {p, 3 * D}, {p + D, 3 * D}, {p + 2 * D, 3 * D},
                    g.data_ptr<float>(), saved[1].data_ptr<float>(), {o, 3 * D},
                    {o + D, 3 * D}, {o + 2 * D, 3 * D});
        return {at::Tensor(), d};
    }
};

struct CrossAttention : Function<CrossAttention> {
    static at::Tensor forward(AutogradContext *ctx, int64_t plan_,
                              const at::Tensor &q, const at::Tensor &kv)
    {
        const AttentionPlan *plan = pointer<AttentionPlan>(plan_);
        const int D = plan->width;
        at::Tensor out = at::empty({q.size(0), D});
        at::Tensor weights = at::empty({weight_starts(plan).back()});
        float *p = kv.data_ptr<float>();
        attend(plan, {q.data_ptr<float>(), D}, {p, 2 * D}, {p + D, 2 * D},
               out.data_ptr<float>(), weights.data_ptr<float>());
        ctx->saved_data["plan"] = plan_;
        ctx->save_for_backward({q, kv, weights});
        return out;
    }
    static variable_list backward(AutogradContext *ctx, variable_list grads)
    {
        const AttentionPlan *plan =
            pointer<AttentionPlan>(ctx->saved_data["plan"].toInt());
        variable_list saved = ctx->get_saved_variables();
        const int D = plan->width;
        at::Tensor g = grads[0].contiguous();
        at::Tensor dq = at::empty_like(saved[0]);
        at::Tensor dkv = at::empty_like(saved[1]);
        float *p = saved[1].data_ptr<float>(), *o = dkv.data_ptr<float>();
        attend_back(plan, {saved[0].data_ptr<float>(), D}, {p, 2 * D},
                    {p + D, 2 * D}, g.data_ptr<float>(),
                    saved[2].data_ptr<float>(), {dq.data_ptr<float>(), D},
                    {o, 2 * D}, {o + D, 2 * D});
        return {at::Tensor(), dq, dkv};
    }
};

struct PolicyLoss : Function<PolicyLoss> {
    static at::Tensor forward(AutogradContext *ctx, int64_t rows_,
                              const at::Tensor &scores, int64_t targets_,
                              int64_t stride)
    {
        const Rows *rows = pointer<Rows>(rows_);
        const float *targets = pointer<float>(targets_);
        at::Tensor slope = at::empty_like(scores);
        const float *s = scores.data_ptr<float>();
        float *d = slope.data_ptr<float>();
        double total = 0;
        for (int b = 0; b < rows->records; b++) {
            const int n = rows->span(b);
            const float *x = s + rows->start[b], *t = targets + b * stride;
            float *g = d + rows->start[b];
            float top = -INFINITY;
            for (int i = 0; i < n; i++)
                top = std::isnan(x[i]) || x[i] > top ? x[i] : top;
            double sum = 0, mass = 0, dot = 0;
            for (int i = 0; i < n; i++) {
                sum += std::exp((double)x[i] - top);
                mass += t[i];
                dot += (double)t[i] * ((double)x[i] - top);
            }
            if (n)
                total += mass * std::log(sum) - dot;
            for (int i = 0; i < n; i++)
                g[i] =
                    (float)(mass * std::exp((double)x[i] - top) / sum - t[i]);
        }
        ctx->save_for_backward({slope});
        return at::scalar_tensor(total, at::kDouble);
    }
    static variable_list backward(AutogradContext *ctx, variable_list grads)
    {
        at::Tensor slope = ctx->get_saved_variables()[0];
        return {at::Tensor(), slope.mul(grads[0].item<double>()), at::Tensor(),
                at::Tensor()};
    }
};

} // namespace

at::Tensor op_embed(const EmbedPlan *plan,
                    const std::vector<at::Tensor> &tables)
{
    return Embed::apply(pack_pointer(plan), at::TensorList(tables));
}

at::Tensor op_drop_add(const at::Tensor &base, const at::Tensor &x,
                       const uint8_t *keep, float scale)
{
    return DropAdd::apply(base, x, pack_pointer(keep), (double)scale);
}

at::Tensor op_gelu_drop(const at::Tensor &x, const uint8_t *keep, float scale)
{
    return GeluDrop::apply(x, pack_pointer(keep), (double)scale);
}

at::Tensor op_self_attention(const AttentionPlan *plan, const at::Tensor &qkv)
{
    return SelfAttention::apply(pack_pointer(plan), qkv);
}

at::Tensor op_cross_attention(const AttentionPlan *plan, const at::Tensor &q,
                              const at::Tensor &kv)
{
    return CrossAttention::apply(pack_pointer(plan), q, kv);
}

at::Tensor op_policy_loss(const Rows *rows, const at::Tensor &scores,
                          const float *targets, int stride)
{
    return PolicyLoss::apply(pack_pointer(rows), scores, pack_pointer(targets),
                             (int64_t)stride);
}
