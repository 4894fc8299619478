// torch_shim.cpp - the C face of the trainer; nothing thrown gets past it.
#include "worker/torch_shim.h"
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/version.h>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include "schema/philox.h"
#include "worker/adamw.h"
#include "worker/device.h"
#include "worker/model.h"

struct trainer {
    const struct spec *spec;
    at::Device device{at::kCPU};
    bool packed = true;
    Model model;
    AdamW adamw;
    std::set<std::string> loaded;
};

static std::atomic<bool> use_padded{false};

void trainer_use_padded(bool on)
{
    use_padded = on;
}

// What a failed allocation says: the CPU's, CUDA's and MPS's allocators.
static bool says_no_memory(const char *text)
{
    return strstr(text, "out of memory") || strstr(text, "not enough memory") ||
           strstr(text, "can't allocate memory") ||
           strstr(text, "CUBLAS_STATUS_ALLOC_FAILED") ||
           strstr(text, "Invalid buffer size");
}

template <class F> static int guard(struct err *err, F body) noexcept
{
    try {
        return body();
    } catch (const std::bad_alloc &) {
        return err_set(err, ERR_OOM, "out of host memory");
    } catch (const c10::Error &e) {
        const char *text = e.what_without_backtrace();
        return err_set(err, says_no_memory(text) ? ERR_OOM : ERR_TORCH, "%s",
                       text);
    } catch (const std::exception &e) {
        return err_set(err, says_no_memory(e.what()) ? ERR_OOM : ERR_TORCH,
                       "%s", e.what());
    } catch (...) {
        return err_set(err, ERR_TORCH, "libtorch failed without saying why");
    }
}

// The same bits in every process: no algorithm that adds up in a random order,
// a fixed number of threads. cuBLAS reads its setting when it is first used.
static void be_deterministic(const at::Device &device, int threads)
{
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 1);
    at::set_num_threads(threads);
    static bool once = false;
    if (!once)
        at::set_num_interop_threads(1);
    once = true;
    // On MPS some operators have no deterministic kernel listed although they
    // are: a warning there, an error elsewhere.
    at::globalContext().setDeterministicAlgorithms(true,
                                                   device.type() == at::kMPS);
#if TORCH_VERSION_MAJOR > 2 ||                                                 \
    (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 2)
    at::globalContext().setDeterministicFillUninitializedMemory(false);
#endif
    at::globalContext().setBenchmarkCuDNN(false);
}

int trainer_new(const struct spec *spec, const char *device, int threads,
                struct trainer **ret, struct err *err)
{
    return guard(err, [&]() -> int {
        if (threads < 1)
            return err_set(err, ERR_INVALID, "threads is %d, not at least 1",
                           threads);
        if (strcmp(device, "cpu") && strcmp(device, "cuda") &&
            strcmp(device, "mps"))
            return err_set(err, ERR_INVALID, "there is no device '%s'", device);
        if (spec->model.heads < 1 || spec->model.d_model % spec->model.heads)
            return err_at(err, ERR_INVALID, "/model/heads",
                          "d_model %d is not a multiple of heads %d",
                          spec->model.d_model, spec->model.heads);
        std::unique_ptr<trainer> t(new trainer);
        t->spec = spec;
        t->device = at::Device(device);
        if (t->device.type() != at::kCPU)
            t->device.set_index(0);
        t->packed = t->device.is_cpu() && !use_padded;
        be_deterministic(t->device, threads);
        t->model.init(spec, t->device);
        t->adamw.init(t->model.parameters);
        *ret = t.release();
        return 0;
    });
}

void trainer_free(struct trainer *t)
{
    delete t;
}

// Is the batch what the model was built for? The feed made sure of it; an
// index beyond a table would read foreign memory.
static int check_batch(const struct trainer *t, const struct batch *b,
                       struct err *err)
{
    const struct record_desc &record = t->spec->record;
    if (b->records < 1)
        return err_set(err, ERR_INVALID, "a micro-batch without records");
    for (int i = 0; i < record.n_fields; i++) {
        const struct field &f = record.fields[i];
        if (f.kind != FIELD_TOKENS && f.kind != FIELD_NUMBERS)
            continue;
        for (int r = 0; f.dim >= 0 && r < b->records; r++)
            if (b->lengths[f.dim][r] > t->spec->model.max_length)
                return err_set(err, ERR_DATA,
                               "field '%s' of a record is %d long; max_length "
                               "of the model is %d",
                               f.name, b->lengths[f.dim][r],
                               t->spec->model.max_length);
    }
    return 0;
}

// Nothing here draws from libtorch's generators (see dropout.h). Should an
// operator ever do, it draws from one seeded by what it is for, so there is
// nothing to save: old MPS generators could not be restored anyway.
static void reseed(const struct trainer *t, int64_t step, int first)
{
    const uint64_t seed = (uint64_t)t->spec->training.seed;
    const uint32_t ctr[4] = {0x7365656c, (uint32_t)first, (uint32_t)step,
                             (uint32_t)((uint64_t)step >> 32)};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t out[4];
    philox4x32(ctr, key, out);
    const uint64_t own = (uint64_t)out[0] << 32 | out[1];
    for (at::Device d : {at::Device(at::kCPU), t->device}) {
        at::Generator g = at::globalContext().defaultGenerator(d);
        std::lock_guard<std::mutex> lock(g.mutex());
        g.set_current_seed(own);
        if (t->device.is_cpu())
            break;
    }
}

// The losses of a forward pass: *parts and their weights, policy first. A part
// that is undefined weighs 0.
static void losses_of(struct trainer *t, Pass &pass, at::Tensor parts[2],
                      double weights[2])
{
    t->model.losses(pass, &parts[0], &parts[1]);
    const int fields[2] = {t->spec->record.policy, t->spec->record.value};
    for (int i = 0; i < 2; i++)
        weights[i] =
            parts[i].defined() ? t->spec->training.losses[fields[i]] : 0;
}

static void add_losses(const at::Tensor parts[2], const double weights[2],
                       int records, struct losses *sum)
{
    double sums[2] = {0, 0};
    for (int i = 0; i < 2; i++)
        if (parts[i].defined())
            sums[i] = parts[i].item<double>();
    sum->policy += sums[0];
    sum->value += sums[1];
    sum->total += weights[0] * sums[0] + weights[1] * sums[1];
    sum->records += records;
}

int trainer_micro(struct trainer *t, const struct batch *b, int64_t step,
                  int effective, struct losses *sum, struct err *err)
{
    int r = check_batch(t, b, err);
    if (r < 0)
        return r;
    return guard(err, [&]() -> int {
        const struct spec *spec = t->spec;
        reseed(t, step, b->first);
        Pass pass;
        pass.batch = b;
        pass.packed = t->packed;
        pass.dropout =
            Dropout(spec->model.dropout, (uint64_t)spec->training.seed, step);
        t->model.forward(pass);
        at::Tensor parts[2];
        double weights[2];
        losses_of(t, pass, parts, weights);

        std::vector<at::Tensor> roots, slopes;
        for (int i = 0; i < 2; i++) {
            if (weights[i] == 0)
                continue;
            roots.push_back(parts[i]);
            slopes.push_back(
                at::full({}, weights[i] / effective, parts[i].options()));
        }
        if (!roots.empty())
            torch::autograd::backward(roots, slopes);
        add_losses(parts, weights, b->records, sum);
        return 0;
    });
}

void trainer_discard(struct trainer *t)
{
    for (auto &it : t->model.parameters)
        it.second.mutable_grad().reset();
}

int trainer_step(struct trainer *t, double lr, double *ret_norm,
                 struct err *err)
{
    int r = guard(err, [&]() -> int {
        const struct training_spec &training = t->spec->training;
        const double norm = t->adamw.norm(t->model.parameters);
        *ret_norm = norm;
        if (!std::isfinite(norm))
            return err_set(err, ERR_NOT_FINITE,
                           "the gradient is not finite (norm %g)", norm);
        double scale = 1;
        if (training.clip_norm > 0 && norm > training.clip_norm)
            scale = training.clip_norm / norm;
        t->adamw.step(t->model.parameters, training, lr, scale);
        return 0;
    });
    trainer_discard(t);
    return r;
}

int trainer_evaluate(struct trainer *t, const struct batch *b,
                     struct losses *sum, struct err *err)
{
    int r = check_batch(t, b, err);
    if (r < 0)
        return r;
    return guard(err, [&]() -> int {
        c10::NoGradGuard no_grad;
        Pass pass;
        pass.batch = b;
        pass.packed = t->packed;
        t->model.forward(pass);
        at::Tensor parts[2];
        double weights[2];
        losses_of(t, pass, parts, weights);
        add_losses(parts, weights, b->records, sum);
        return 0;
    });
}

int trainer_predict(struct trainer *t, const struct batch *b, float *policy,
                    float *value, struct err *err)
{
    int r = check_batch(t, b, err);
    if (r < 0)
        return r;
    return guard(err, [&]() -> int {
        const struct record_desc &record = t->spec->record;
        c10::NoGradGuard no_grad;
        Pass pass;
        pass.batch = b;
        pass.packed = t->packed;
        t->model.forward(pass);
        if (value && pass.value.defined()) {
            at::Tensor v = pass.value.to(at::kCPU).contiguous();
            memcpy(value, v.data_ptr<float>(), (size_t)b->records * 4);
        }
        if (!policy || record.policy < 0)
            return 0;
        const int over = record.fields[record.policy].over;
        const size_t A = (size_t)b->padded[record.fields[over].dim];
        memset(policy, 0, A * b->records * 4);
        if (!pass.scores.defined())
            return 0;
        at::Tensor s = pass.scores.to(at::kCPU).contiguous();
        for (int i = 0; i < b->records; i++) {
            const int n = b->lengths[record.fields[over].dim][i];
            const float *x =
                s.data_ptr<float>() +
                (t->packed ? pass.candidates.start[i] : (int64_t)(i * A));
            float *p = policy + i * A;
            double sum = 0, top = -INFINITY;
            for (int j = 0; j < n; j++)
                top = std::fmax(top, x[j]);
            for (int j = 0; j < n; j++)
                sum += std::exp(x[j] - top);
            for (int j = 0; j < n; j++)
                p[j] = (float)(std::exp(x[j] - top) / sum);
        }
        return 0;
    });
}

// -------------------------------------------------------------------- state

static const char AVG[] = "optimizer.exp_avg.";
static const char AVG_SQ[] = "optimizer.exp_avg_sq.";
static const char STEP[] = "optimizer.step";

static int put_all(const Tensors &tensors, const std::string &prefix,
                   trainer_put_fn *put, void *ctx, struct err *err)
{
    for (const auto &it : tensors) {
        at::Tensor x = it.second.detach().to(at::kCPU).contiguous();
        int r = put(ctx, (prefix + it.first).c_str(), "F32", x.sizes().data(),
                    (int)x.dim(), x.data_ptr<float>(),
                    (size_t)x.numel() * sizeof(float), err);
        if (r < 0)
            return r;
    }
    return 0;
}

int trainer_save(struct trainer *t, trainer_put_fn *put, void *ctx,
                 struct err *err)
{
    return guard(err, [&]() -> int {
        int r = put_all(t->model.parameters, "model.", put, ctx, err);
        if (r >= 0)
            r = put_all(t->adamw.exp_avg, AVG, put, ctx, err);
        if (r >= 0)
            r = put_all(t->adamw.exp_avg_sq, AVG_SQ, put, ctx, err);
        if (r < 0)
            return r;
        const int64_t shape[1] = {1}, steps = t->adamw.steps;
        r = put(ctx, STEP, "I64", shape, 1, &steps, sizeof steps, err);
        return r < 0 ? r : 0;
    });
}

int64_t trainer_state_bytes(const struct trainer *t)
{
    int64_t bytes = sizeof t->adamw.steps;
    for (const Tensors *part :
         {&t->model.parameters, &t->adamw.exp_avg, &t->adamw.exp_avg_sq})
        for (const auto &it : *part)
            bytes += it.second.numel() * (int64_t)sizeof(float);
    return bytes;
}

static bool has_prefix(const char *s, const char *prefix, const char **ret)
{
    size_t n = strlen(prefix);
    if (strncmp(s, prefix, n))
        return false;
    *ret = s + n;
    return true;
}

int trainer_load(struct trainer *t, const char *name, const char *dtype,
                 const int64_t *shape, int dims, const void *data, size_t bytes,
                 struct err *err)
{
    return guard(err, [&]() -> int {
        if (!strcmp(name, STEP)) {
            int64_t steps;
            if (strcmp(dtype, "I64") || bytes != sizeof steps)
                return err_set(err, ERR_CORRUPT,
                               "tensor '%s' is not one 64-bit integer", name);
            memcpy(&steps, data, sizeof steps);
            if (steps < 0)
                return err_set(err, ERR_CORRUPT, "tensor '%s' is negative",
                               name);
            t->adamw.steps = steps;
            t->loaded.insert(name);
            return 0;
        }
        const char *rest = nullptr;
        Tensors *into = nullptr;
        if (has_prefix(name, "model.", &rest))
            into = &t->model.parameters;
        else if (has_prefix(name, AVG, &rest))
            into = &t->adamw.exp_avg;
        else if (has_prefix(name, AVG_SQ, &rest))
            into = &t->adamw.exp_avg_sq;
        auto it = into ? into->find(rest) : Tensors::iterator();
        if (!into || it == into->end())
            return err_set(err, ERR_CORRUPT,
                           "the state holds a tensor '%s' that this model does "
                           "not have",
                           name);
        at::Tensor &to = it->second;
        if (strcmp(dtype, "F32") || (int64_t)bytes != to.numel() * 4 ||
            to.sizes() != at::IntArrayRef(shape, (size_t)dims)) {
            std::string want, got;
            for (int64_t n : to.sizes())
                want += (want.empty() ? "" : ", ") + std::to_string(n);
            for (int i = 0; i < dims; i++)
                got += (i ? ", " : "") + std::to_string(shape[i]);
            return err_set(err, ERR_CORRUPT,
                           "tensor '%s' is %s [%s] in the state, but F32 [%s] "
                           "in the model",
                           name, dtype, got.c_str(), want.c_str());
        }
        c10::NoGradGuard no_grad;
        if (to.device().is_cpu()) {
            memcpy(to.data_ptr<float>(), data, bytes);
        } else {
            at::Tensor host = at::empty(to.sizes());
            memcpy(host.data_ptr<float>(), data, bytes);
            to.copy_(host);
        }
        t->loaded.insert(name);
        return 0;
    });
}

static int load_end(struct trainer *t, bool model_only, struct err *err)
{
    return guard(err, [&]() -> int {
        std::set<std::string> want;
        for (const auto &it : t->model.parameters) {
            want.insert("model." + it.first);
            if (!model_only) {
                want.insert(AVG + it.first);
                want.insert(AVG_SQ + it.first);
            }
        }
        if (!model_only)
            want.insert(STEP);
        for (const std::string &name : want)
            if (!t->loaded.count(name)) {
                t->loaded.clear();
                return err_set(err, ERR_CORRUPT,
                               "the state lacks the tensor '%s'", name.c_str());
            }
        t->loaded.clear();
        return 0;
    });
}

int trainer_load_end(struct trainer *t, struct err *err)
{
    return load_end(t, false, err);
}

int trainer_load_model_end(struct trainer *t, struct err *err)
{
    return load_end(t, true, err);
}

int trainer_restart_optimizer(struct trainer *t, struct err *err)
{
    return guard(err, [&]() -> int {
        c10::NoGradGuard no_grad;
        for (Tensors *part : {&t->adamw.exp_avg, &t->adamw.exp_avg_sq})
            for (auto &it : *part)
                it.second.zero_();
        t->adamw.steps = 0;
        return 0;
    });
}

int trainer_parameters(const struct trainer *t, int64_t *ret_count)
{
    *ret_count = 0;
    for (const auto &it : t->model.parameters)
        *ret_count += it.second.numel();
    return (int)t->model.parameters.size();
}

// ------------------------------------------------------------------- memory

void trainer_memory(struct trainer *t, int64_t *ret_allocated,
                    int64_t *ret_driver, int64_t *ret_recommended)
{
    *ret_allocated = *ret_driver = *ret_recommended = -1;
    try {
        device_memory(t->device, ret_allocated, ret_driver, ret_recommended);
    } catch (...) { // figures only: not known
    }
}

void trainer_empty_cache(struct trainer *t)
{
    try {
        device_empty_cache(t->device);
    } catch (...) { // a cache that stays full is no error
    }
}
