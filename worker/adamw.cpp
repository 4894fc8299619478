#include "worker/adamw.h"
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <torch/version.h>
#include <algorithm>
#include <cmath>
#include <vector>
#include "worker/kernels.h"

static constexpr int64_t CHUNK = 16384; // floats; what one thread does at once

void AdamW::init(const Tensors &parameters)
{
    for (const auto &it : parameters) {
        exp_avg[it.first] = at::zeros_like(it.second);
        exp_avg_sq[it.first] = at::zeros_like(it.second);
    }
    steps = 0;
}

double AdamW::norm(const Tensors &parameters) const
{
    struct Piece {
        const float *x;
        int64_t n;
    };
    std::vector<Piece> pieces;
    std::vector<at::Tensor> held, squares;
    for (const auto &it : parameters) {
        at::Tensor g = it.second.grad();
        if (!g.defined())
            continue;
        if (!g.device().is_cpu()) {
            squares.push_back(g.square().sum());
            continue;
        }
        g = g.contiguous();
        held.push_back(g);
        const float *x = g.data_ptr<float>();
        for (int64_t i = 0; i < g.numel(); i += CHUNK)
            pieces.push_back({x + i, std::min(CHUNK, g.numel() - i)});
    }
    if (!squares.empty())
        return std::sqrt(at::stack(squares).sum().item<double>());
    // Pieces do not depend on the threads, and are added up in order.
    std::vector<double> sums(pieces.size());
    at::parallel_for(0, (int64_t)pieces.size(), 1, [&](int64_t a, int64_t b) {
        for (int64_t i = a; i < b; i++)
            sums[i] = kernels()->sum_squares(pieces[i].x, pieces[i].n);
    });
    double sum = 0;
    for (double s : sums)
        sum += s;
    return std::sqrt(sum);
}

void AdamW::step(Tensors &parameters, const struct training_spec &training,
                 double lr, double grad_scale)
{
    const auto &o = training.optimizer;
    steps++;
    const double correction1 = 1 - std::pow(o.beta1, (double)steps);
    const double correction2 = 1 - std::pow(o.beta2, (double)steps);
    c10::NoGradGuard no_grad;

    if (parameters.begin()->second.device().is_cpu()) {
        const struct adamw_rates rates = {
            (float)grad_scale,
            (float)(1 - lr * o.weight_decay),
            (float)o.beta1,
            (float)o.beta2,
            (float)(lr / correction1),
            (float)(1 / std::sqrt(correction2)),
            (float)o.eps,
        };
        std::vector<struct adamw_chunk> chunks;
        std::vector<at::Tensor> held;
        for (auto &it : parameters) {
            const at::Tensor &p = it.second;
            const float *g = nullptr;
            if (p.grad().defined()) {
                held.push_back(p.grad().contiguous());
                g = held.back().data_ptr<float>();
            }
            float *x = p.data_ptr<float>();
            float *m = exp_avg.at(it.first).data_ptr<float>();
            float *v = exp_avg_sq.at(it.first).data_ptr<float>();
            for (int64_t i = 0; i < p.numel(); i += CHUNK)
                chunks.push_back({x + i, m + i, v + i, g ? g + i : nullptr,
                                  std::min(CHUNK, p.numel() - i)});
        }
        at::parallel_for(0, (int64_t)chunks.size(), 1,
                         [&](int64_t a, int64_t b) {
                             for (int64_t i = a; i < b; i++)
                                 kernels()->adamw(&chunks[i], &rates);
                         });
        return;
    }

    std::vector<at::Tensor> ps, gs, ms, vs;
    for (auto &it : parameters) {
        const at::Tensor &p = it.second;
        at::Tensor g =
            p.grad().defined() ? p.grad().contiguous() : at::zeros_like(p);
        ps.push_back(p);
        gs.push_back(grad_scale == 1 ? g : g.mul(grad_scale));
        ms.push_back(exp_avg.at(it.first));
        vs.push_back(exp_avg_sq.at(it.first));
    }
#if TORCH_VERSION_MAJOR >= 2
    if (ps[0].is_cuda()) { // one kernel for all of them
        std::vector<at::Tensor> counts;
        at::Tensor count = at::full({}, (double)steps, ps[0].options());
        for (size_t i = 0; i < ps.size(); i++)
            counts.push_back(count);
        at::_fused_adamw_(ps, gs, ms, vs, {}, counts, lr, o.beta1, o.beta2,
                          o.weight_decay, o.eps, false, false);
        return;
    }
#endif
    for (size_t i = 0; i < ps.size(); i++) {
        ps[i].mul_(1 - lr * o.weight_decay);
        ms[i].lerp_(gs[i], 1 - o.beta1);
        vs[i].mul_(o.beta2).addcmul_(gs[i], gs[i], 1 - o.beta2);
        ps[i].addcdiv_(
            ms[i], vs[i].sqrt().mul_(1 / std::sqrt(correction2)).add_(o.eps),
            -lr / correction1);
    }
}
