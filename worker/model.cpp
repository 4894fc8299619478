#include "worker/model.h"
#include <ATen/ATen.h>
#include <cmath>
#include <cstring>
#include "schema/philox.h"
#include "worker/ops.h"

// ---------------------------------------------------------------- parameters

std::vector<Parameter> model_parameters(const struct spec *spec)
{
    const struct record_desc &record = spec->record;
    const int64_t D = spec->model.d_model, F = spec->model.ff;
    std::vector<Parameter> all;
    auto uniform = [&](std::string name, std::vector<int64_t> shape,
                       double deviation) {
        all.push_back(
            {std::move(name), std::move(shape), std::sqrt(3.0) * deviation, 0});
    };
    auto constant = [&](std::string name, int64_t n, float value) {
        all.push_back({std::move(name), {n}, 0, value});
    };
    auto weight = [&](std::string name, int64_t out, int64_t in) {
        uniform(std::move(name), {out, in}, 1 / std::sqrt((double)in));
    };
    // What a residual takes up grows with the depth unless it starts smaller.
    auto residual = [&](std::string name, int64_t out, int64_t in) {
        uniform(std::move(name), {out, in},
                1 / std::sqrt((double)in * 2 * spec->model.layers));
    };
    auto norm = [&](const std::string &name) {
        constant(name + ".weight", D, 1);
        constant(name + ".bias", D, 0);
    };
    const double embedding = 1 / std::sqrt((double)D);

    uniform("class", {D}, embedding);
    for (int i = 0; i < record.n_fields; i++) {
        const struct field &f = record.fields[i];
        if (f.kind == FIELD_TARGET)
            continue;
        const std::string at = std::string("embed.") + f.name;
        uniform(at + ".field", {D}, embedding);
        if (f.kind == FIELD_TOKENS)
            uniform(at + ".tokens", {f.vocab, D}, embedding);
        if (f.kind == FIELD_NUMBERS)
            uniform(at + ".numbers", {D, 1}, embedding);
        if (f.kind != FIELD_ROWS)
            uniform(at + ".positions",
                    {f.dim >= 0 ? spec->model.max_length : f.size, D},
                    embedding);
        for (int c = 0; c < f.n_columns; c++)
            if (f.columns[c].vocab > 0)
                uniform(at + ".columns." + std::to_string(c),
                        {f.columns[c].vocab, D}, embedding);
        if (f.kind == FIELD_ROWS && f.n_nums)
            uniform(at + ".numbers", {D, f.n_nums}, embedding);
    }
    for (int l = 0; l < spec->model.layers; l++) {
        const std::string at = "encoder." + std::to_string(l);
        norm(at + ".attention.norm");
        weight(at + ".attention.qkv.weight", 3 * D, D);
        constant(at + ".attention.q.bias", D, 0);
        residual(at + ".attention.out.weight", D, D);
        constant(at + ".attention.out.bias", D, 0);
        norm(at + ".ff.norm");
        weight(at + ".ff.in.weight", F, D);
        constant(at + ".ff.in.bias", F, 0);
        residual(at + ".ff.out.weight", D, F);
        constant(at + ".ff.out.bias", D, 0);
    }
    norm("encoder.norm");
    if (record.policy >= 0) {
        norm("policy.norm");
        weight("policy.q.weight", D, D);
        constant("policy.q.bias", D, 0);
        weight("policy.kv.weight", 2 * D, D);
        weight("policy.out.weight", D, D);
        constant("policy.out.bias", D, 0);
        norm("policy.score.norm");
        weight("policy.score.in.weight", D, D);
        constant("policy.score.in.bias", D, 0);
        weight("policy.score.out.weight", 1, D);
    }
    if (record.value >= 0) {
        weight("value.in.weight", D, D);
        constant("value.in.bias", D, 0);
        weight("value.out.weight", 1, D);
        constant("value.out.bias", 1, 0);
    }
    return all;
}

static void draw(uint64_t seed, const Parameter &parameter, at::Tensor &to)
{
    float *x = to.data_ptr<float>();
    const int64_t n = to.numel();
    if (parameter.bound == 0) {
        std::fill(x, x + n, parameter.constant);
        return;
    }
    uint64_t hash = 14695981039346656037u; // FNV-1a
    for (unsigned char c : parameter.name)
        hash = (hash ^ c) * 1099511628211u;
    const uint32_t tag = 0x696e6974; // "init"
    const uint32_t name[4] = {tag, 0, (uint32_t)hash, (uint32_t)(hash >> 32)};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t own[4];
    philox4x32(name, key, own);
    const float bound = (float)parameter.bound;
    for (int64_t i = 0; i < n; i += 4) {
        const uint32_t ctr[4] = {(uint32_t)(i / 4), (uint32_t)((i / 4) >> 32),
                                 0, 0};
        uint32_t out[4];
        philox4x32(ctr, own, out);
        for (int64_t j = i; j < n && j < i + 4; j++)
            x[j] = (2 * philox_unit(out[j - i]) - 1) * bound;
    }
}

void Model::init(const struct spec *spec_, at::Device device_)
{
    spec = spec_;
    device = device_;
    for (const Parameter &parameter : model_parameters(spec)) {
        at::Tensor t = at::empty(parameter.shape);
        draw((uint64_t)spec->training.seed, parameter, t);
        t = t.to(device);
        t.set_requires_grad(true);
        parameters[parameter.name] = t;
    }
}

const at::Tensor &Model::p(const std::string &name) const
{
    return parameters.at(name);
}

at::Tensor Model::linear(const at::Tensor &x, const std::string &name) const
{
    return at::linear(x, p(name + ".weight"), p(name + ".bias"));
}

at::Tensor Model::norm(const at::Tensor &x, const std::string &name) const
{
    return at::layer_norm(x, {spec->model.d_model}, p(name + ".weight"),
                          p(name + ".bias"), 1e-5);
}

// ---------------------------------------------------------------- embeddings

std::vector<int> Model::input_fields(bool candidates) const
{
    const struct record_desc &record = spec->record;
    const int over =
        record.policy >= 0 ? record.fields[record.policy].over : -1;
    if (candidates)
        return {over};
    std::vector<int> fields;
    for (int i = 0; i < record.n_fields; i++)
        if (record.fields[i].kind != FIELD_TARGET && i != over)
            fields.push_back(i);
    return fields;
}

static int padded_length(const struct batch *b, const struct field &f)
{
    return f.dim >= 0 ? b->padded[f.dim] : f.size;
}

// The packed way: every row is a sum of rows of tables.
at::Tensor Model::embed(Pass &pass, bool candidates) const
{
    const struct batch *batch = pass.batch;
    const Rows &rows = candidates ? pass.candidates : pass.tokens;
    std::vector<at::Tensor> tables;
    EmbedPlan &plan = candidates ? *pass.embed_candidates : *pass.embed_tokens;
    plan.rows = rows.total;
    plan.width = spec->model.d_model;
    plan.terms.clear();
    auto term = [&](const std::string &name, int n_numbers) -> auto &
    {
        tables.push_back(p(name));
        plan.terms.push_back({(int)tables.size() - 1, n_numbers, {}, {}, {}});
        return plan.terms.back();
    };
    int s = 0;
    if (!candidates) {
        EmbedPlan::Term &t = term("class", 0);
        for (int b = 0; b < rows.records; b++)
            t.rows.push_back(rows.start[b]);
        t.index.assign(t.rows.size(), 0);
        s = 1;
    }
    for (int i : input_fields(candidates)) {
        const struct field &f = spec->record.fields[i];
        const std::string at = std::string("embed.") + f.name;
        const int padded = padded_length(batch, f);
        std::vector<int64_t> where;  // row
        std::vector<int64_t> source; // entry in the batch's array
        std::vector<int32_t> index;
        for (int b = 0; b < rows.records; b++) {
            const Rows::Segment &g = rows.segments[b * rows.n_segments + s];
            for (int r = 0; r < g.len; r++) {
                where.push_back(rows.start[b] + g.at + r);
                source.push_back((int64_t)b * padded + r);
                index.push_back(r);
            }
        }
        s++;
        {
            EmbedPlan::Term &t = term(at + ".field", 0);
            t.rows = where;
            t.index.assign(where.size(), 0);
        }
        if (f.kind != FIELD_ROWS) {
            EmbedPlan::Term &t = term(at + ".positions", 0);
            t.rows = where;
            t.index = index;
        }
        if (f.kind == FIELD_TOKENS) {
            EmbedPlan::Term &t = term(at + ".tokens", 0);
            t.rows = where;
            for (int64_t k : source)
                t.index.push_back(batch->ints[i][k]);
        }
        if (f.kind == FIELD_ROWS)
            for (int c = 0, k = 0; c < f.n_columns; c++) {
                if (f.columns[c].vocab <= 0)
                    continue;
                EmbedPlan::Term &t =
                    term(at + ".columns." + std::to_string(c), 0);
                t.rows = where;
                for (int64_t from : source)
                    t.index.push_back(batch->ints[i][from * f.n_ints + k]);
                k++;
            }
        const int n = f.kind == FIELD_NUMBERS ? 1 : f.n_nums;
        if (n && f.kind != FIELD_TOKENS) {
            EmbedPlan::Term &t = term(at + ".numbers", n);
            t.rows = where;
            for (int64_t from : source)
                for (int k = 0; k < n; k++)
                    t.numbers.push_back(batch->nums[i][from * n + k]);
        }
    }
    return op_embed(&plan, tables);
}

// The padded way, out of ATen's operators: [records × span, D].
at::Tensor Model::embed_padded(Pass &pass, bool candidates) const
{
    const struct batch *batch = pass.batch;
    const int64_t B = batch->records, D = spec->model.d_model;
    std::vector<at::Tensor> parts;
    if (!candidates)
        parts.push_back(p("class").reshape({1, 1, D}).expand({B, 1, D}));
    for (int i : input_fields(candidates)) {
        const struct field &f = spec->record.fields[i];
        const std::string at = std::string("embed.") + f.name;
        const int64_t N = padded_length(batch, f);
        if (!N)
            continue;
        at::Tensor x = p(at + ".field").reshape({1, 1, D}).expand({B, N, D});
        auto ints = [&](int64_t n) {
            return at::from_blob(batch->ints[i], {B, N, n}, at::kInt)
                .to(device, at::kLong);
        };
        if (f.kind != FIELD_ROWS) {
            at::Tensor table = p(at + ".positions");
            // Padding may reach further than any record does.
            if (N > table.size(0))
                table =
                    at::constant_pad_nd(table, {0, 0, 0, N - table.size(0)});
            x = x + table.narrow(0, 0, N);
        }
        if (f.kind == FIELD_TOKENS)
            x = x + at::embedding(p(at + ".tokens"), ints(1).squeeze(2));
        if (f.kind == FIELD_ROWS && f.n_ints) {
            at::Tensor values = ints(f.n_ints);
            for (int c = 0, k = 0; c < f.n_columns; c++)
                if (f.columns[c].vocab > 0)
                    x = x +
                        at::embedding(p(at + ".columns." + std::to_string(c)),
                                      values.select(2, k++).contiguous());
        }
        const int64_t n = f.kind == FIELD_NUMBERS ? 1 : f.n_nums;
        if (n && f.kind != FIELD_TOKENS)
            x = x +
                at::linear(at::from_blob(batch->nums[i], {B, N, n}, at::kFloat)
                               .to(device),
                           p(at + ".numbers"));
        parts.push_back(x);
    }
    return at::cat(parts, 1).reshape({-1, D});
}

// -------------------------------------------------------------------- blocks

at::Tensor Model::drop_add(Pass &pass, const at::Tensor &base,
                           const at::Tensor &x, const Rows &rows, int layer,
                           drop_site site) const
{
    const uint8_t *keep = nullptr;
    if (pass.dropout.threshold) {
        at::Tensor mask =
            pass.dropout.features(rows, (int)x.size(1), layer, site);
        if (!pass.packed)
            return base +
                   x * mask.to(device).to(at::kFloat).mul_(pass.dropout.scale);
        pass.kept.push_back(mask);
        keep = mask.data_ptr<uint8_t>();
    }
    return pass.packed ? op_drop_add(base, x, keep, pass.dropout.scale)
                       : base + x;
}

// softmax(q·k/√w) v over padded rows; q: B × H × nq × w, mask: B × 1 × 1 × nk.
static at::Tensor attend_padded(const at::Tensor &q, const at::Tensor &k,
                                const at::Tensor &v, const at::Tensor &padding,
                                const at::Tensor &keep, float scale)
{
    at::Tensor s =
        at::matmul(q * (1 / std::sqrt((double)q.size(3))), k.transpose(2, 3));
    s = at::softmax(s.masked_fill(padding, -INFINITY), 3);
    if (keep.defined())
        s = s * keep.to(at::kFloat).mul_(scale);
    return at::matmul(s, v);
}

// True where a key is padding.
static at::Tensor padding_of(const Rows &rows, at::Device device)
{
    const int64_t B = rows.records, N = rows.span(0);
    at::Tensor mask = at::ones({B, 1, 1, N}, at::kBool);
    bool *m = mask.data_ptr<bool>();
    for (int64_t b = 0; b < B; b++)
        for (int s = 0; s < rows.n_segments; s++) {
            const Rows::Segment &g = rows.segments[b * rows.n_segments + s];
            memset(m + b * N + g.at, 0, (size_t)g.len);
        }
    return mask.to(device);
}

at::Tensor Model::self_attention(Pass &pass, const at::Tensor &x,
                                 int layer) const
{
    const std::string at = "encoder." + std::to_string(layer) + ".attention";
    const int64_t D = spec->model.d_model, H = spec->model.heads;
    at::Tensor bias = at::constant_pad_nd(p(at + ".q.bias"), {0, 2 * D});
    at::Tensor qkv =
        at::linear(norm(x, at + ".norm"), p(at + ".qkv.weight"), bias);
    at::Tensor y;
    if (pass.packed) {
        pass.attention.push_back({&pass.tokens,
                                  &pass.tokens,
                                  (int)H,
                                  (int)D,
                                  pass.dropout.threshold,
                                  pass.dropout.scale,
                                  {}});
        AttentionPlan &plan = pass.attention.back();
        pass.dropout.key(layer, SITE_ATTENTION, plan.key);
        y = op_self_attention(&plan, qkv);
    } else {
        const int64_t B = pass.batch->records, N = pass.tokens.span(0);
        at::Tensor keep;
        if (pass.dropout.threshold)
            keep = pass.dropout
                       .attention(pass.tokens, pass.tokens, (int)H, layer,
                                  SITE_ATTENTION)
                       .to(device);
        at::Tensor heads =
            qkv.reshape({B, N, 3, H, D / H}).permute({2, 0, 3, 1, 4});
        y = attend_padded(heads[0], heads[1], heads[2], pass.padding, keep,
                          pass.dropout.scale)
                .transpose(1, 2)
                .reshape({B * N, D});
    }
    return drop_add(pass, x, linear(y, at + ".out"), pass.tokens, layer,
                    SITE_PROJECTED);
}

at::Tensor Model::cross_attention(Pass &pass, const at::Tensor &c,
                                  const at::Tensor &x) const
{
    const int layer = spec->model.layers; // for the dropout's key
    const int64_t D = spec->model.d_model, H = spec->model.heads;
    at::Tensor q = linear(norm(c, "policy.norm"), "policy.q");
    at::Tensor kv = at::linear(x, p("policy.kv.weight"));
    at::Tensor y;
    if (pass.packed) {
        pass.attention.push_back({&pass.candidates,
                                  &pass.tokens,
                                  (int)H,
                                  (int)D,
                                  pass.dropout.threshold,
                                  pass.dropout.scale,
                                  {}});
        AttentionPlan &plan = pass.attention.back();
        pass.dropout.key(layer, SITE_ATTENTION, plan.key);
        y = op_cross_attention(&plan, q, kv);
    } else {
        const int64_t B = pass.batch->records, N = pass.tokens.span(0);
        const int64_t A = pass.candidates.span(0);
        at::Tensor keep;
        if (pass.dropout.threshold)
            keep = pass.dropout
                       .attention(pass.candidates, pass.tokens, (int)H, layer,
                                  SITE_ATTENTION)
                       .to(device);
        at::Tensor heads =
            kv.reshape({B, N, 2, H, D / H}).permute({2, 0, 3, 1, 4});
        y = attend_padded(q.reshape({B, A, H, D / H}).transpose(1, 2), heads[0],
                          heads[1], pass.padding, keep, pass.dropout.scale)
                .transpose(1, 2)
                .reshape({B * A, D});
    }
    return drop_add(pass, c, linear(y, "policy.out"), pass.candidates, layer,
                    SITE_PROJECTED);
}

// ------------------------------------------------------------------- forward

void Model::forward(Pass &pass)
{
    const struct batch *batch = pass.batch;
    const struct record_desc &record = spec->record;
    pass.embed_tokens.reset(new EmbedPlan);
    pass.embed_candidates.reset(new EmbedPlan);

    for (int k = 0; k < 2; k++) {
        std::vector<uint32_t> fields;
        std::vector<const int32_t *> lengths;
        std::vector<std::vector<int32_t>> fixed;
        std::vector<int> padded;
        if (k == 1 && record.policy < 0)
            break;
        const std::vector<int> inputs = input_fields(k == 1);
        fixed.reserve(inputs.size());
        if (k == 0) {
            fields.push_back(0);
            lengths.push_back(nullptr);
            padded.push_back(1);
        }
        for (int i : inputs) {
            const struct field &f = record.fields[i];
            fields.push_back((uint32_t)i + 1);
            padded.push_back(padded_length(batch, f));
            if (f.dim < 0)
                fixed.emplace_back(batch->records, f.size);
            lengths.push_back(f.dim >= 0 ? batch->lengths[f.dim]
                                         : fixed.back().data());
        }
        (k ? pass.candidates : pass.tokens)
            .build(batch->records, batch->first, fields, lengths,
                   pass.packed ? nullptr : &padded);
    }

    at::Tensor x = pass.packed ? embed(pass, false) : embed_padded(pass, false);
    if (!pass.packed)
        pass.padding = padding_of(pass.tokens, device);
    for (int l = 0; l < spec->model.layers; l++) {
        const std::string at = "encoder." + std::to_string(l) + ".ff";
        x = self_attention(pass, x, l);
        at::Tensor h = linear(norm(x, at + ".norm"), at + ".in");
        at::Tensor mask;
        if (pass.dropout.threshold)
            mask = pass.dropout.features(pass.tokens, (int)h.size(1), l,
                                         SITE_HIDDEN);
        if (pass.packed) {
            pass.kept.push_back(mask);
            h = op_gelu_drop(
                h, mask.defined() ? mask.data_ptr<uint8_t>() : nullptr,
                pass.dropout.scale);
        } else {
            h = at::gelu(h);
            if (mask.defined())
                h = h * mask.to(device).to(at::kFloat).mul_(pass.dropout.scale);
        }
        x = drop_add(pass, x, linear(h, at + ".out"), pass.tokens, l, SITE_OUT);
    }
    x = norm(x, "encoder.norm");

    if (record.value >= 0) {
        at::Tensor first =
            at::from_blob(pass.tokens.start.data(), {batch->records}, at::kLong)
                .to(device);
        at::Tensor h = at::gelu(linear(x.index_select(0, first), "value.in"));
        pass.value = at::tanh(linear(h, "value.out")).reshape({-1});
    }
    if (record.policy >= 0 && pass.candidates.total) {
        at::Tensor c =
            pass.packed ? embed(pass, true) : embed_padded(pass, true);
        c = cross_attention(pass, c, x);
        at::Tensor h =
            at::gelu(linear(norm(c, "policy.score.norm"), "policy.score.in"));
        pass.scores = at::linear(h, p("policy.score.out.weight")).reshape({-1});
        if (!pass.packed) {
            const int64_t B = batch->records, A = pass.candidates.span(0);
            pass.scores = pass.scores.reshape({B, A}).masked_fill(
                padding_of(pass.candidates, device).reshape({B, A}), -INFINITY);
        }
    }
}

void Model::losses(Pass &pass, at::Tensor *ret_policy, at::Tensor *ret_value)
{
    const struct batch *batch = pass.batch;
    const struct record_desc &record = spec->record;
    const int64_t B = batch->records;
    if (pass.scores.defined()) {
        const float *targets = batch->nums[record.policy];
        const int A =
            batch->padded[record.fields[record.fields[record.policy].over].dim];
        if (pass.packed) {
            *ret_policy =
                op_policy_loss(&pass.candidates, pass.scores, targets, A);
        } else {
            at::Tensor t =
                at::from_blob((void *)targets, {B, A}, at::kFloat).to(device);
            // 0 · -inf where a candidate is padding.
            at::Tensor logs = at::log_softmax(pass.scores, 1);
            *ret_policy = -(t * logs.masked_fill(t == 0, 0)).sum();
        }
    }
    if (pass.value.defined()) {
        at::Tensor t = at::from_blob(batch->nums[record.value], {B}, at::kFloat)
                           .to(device);
        *ret_value = (pass.value - t).square().sum();
    }
}
