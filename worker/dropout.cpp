#include "worker/dropout.h"
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <cmath>
#include <cstring>
#include "schema/philox.h"

void Rows::build(int n_records, int first_record,
                 const std::vector<uint32_t> &fields,
                 const std::vector<const int32_t *> &lengths,
                 const std::vector<int> *padded)
{
    records = n_records;
    first = first_record;
    n_segments = (int)fields.size();
    segments.clear();
    start.assign(1, 0);
    blocks.clear();
    block_start.assign(1, 0);
    pairs.clear();
    for (int b = 0; b < records; b++) {
        int at = 0, block = 0;
        for (int s = 0; s < n_segments; s++) {
            int len = lengths[s] ? lengths[s][b] : 1;
            segments.push_back({fields[s], at, len});
            at += padded ? (*padded)[s] : len;
            pairs.push_back(block);
            pairs.push_back(len);
            for (int i = 0; i < len; i += 8, block++)
                blocks.push_back(fields[s] << 20 | (uint32_t)(i / 8));
        }
        start.push_back(start.back() + at);
        block_start.push_back((int)blocks.size());
    }
    total = start.back();
    field.resize(total);
    index.resize(total);
    for (int b = 0; b < records; b++)
        for (int s = 0; s < n_segments; s++) {
            const Segment &g = segments[b * n_segments + s];
            for (int i = 0; i < g.len; i++) {
                field[start[b] + g.at + i] = g.field;
                index[start[b] + g.at + i] = (uint32_t)i;
            }
        }
}

Dropout::Dropout(double p, uint64_t seed_, int64_t step_)
    : seed(seed_), step(step_)
{
    threshold = (uint32_t)std::lround(p * 65536.0);
    if (threshold > 65535)
        threshold = 65535;
    scale = (float)(65536.0 / (65536.0 - threshold));
}

void Dropout::key(int layer, drop_site site, uint32_t ret[2]) const
{
    const uint32_t tag = 0x64726f70; // "drop"
    const uint32_t ctr[4] = {tag, (uint32_t)layer << 8 | site, (uint32_t)step,
                             (uint32_t)((uint64_t)step >> 32)};
    const uint32_t k[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t out[4];
    philox4x32(ctr, k, out);
    ret[0] = out[0];
    ret[1] = out[1];
}

at::Tensor Dropout::features(const Rows &rows, int width, int layer,
                             drop_site site) const
{
    at::Tensor mask = at::zeros({rows.total, width}, at::kByte);
    uint8_t *keep = mask.data_ptr<uint8_t>();
    uint32_t k[2];
    key(layer, site, k);
    const struct kernel_set *kern = kernels();
    const int nb = (width + 7) / 8;
    const int tile = nb > 256 ? 1 : 256 / nb;
    at::parallel_for(0, rows.records, 1, [&](int64_t from, int64_t to) {
        std::vector<uint32_t> c((size_t)tile * nb * 3);
        std::vector<uint16_t> draws((size_t)tile * nb * 8);
        uint32_t *c0 = c.data(), *c1 = c0 + tile * nb, *c2 = c1 + tile * nb;
        for (int64_t b = from; b < to; b++)
            for (int s = 0; s < rows.n_segments; s++) {
                const Rows::Segment &g = rows.segments[b * rows.n_segments + s];
                for (int i = 0; i < g.len; i += tile) {
                    int n = g.len - i < tile ? g.len - i : tile;
                    for (int r = 0; r < n; r++)
                        for (int j = 0; j < nb; j++) {
                            c0[r * nb + j] = (uint32_t)j;
                            c1[r * nb + j] = (uint32_t)(i + r);
                            c2[r * nb + j] = g.field;
                        }
                    kern->philox(c0, c1, c2, (uint32_t)(rows.first + b), k,
                                 n * nb, draws.data());
                    uint8_t *row = keep + (rows.start[b] + g.at + i) * width;
                    if (width % 8 == 0) {
                        kern->keep(draws.data(), threshold, (int64_t)n * width,
                                   row);
                        continue;
                    }
                    for (int r = 0; r < n; r++)
                        kern->keep(draws.data() + (ptrdiff_t)r * nb * 8,
                                   threshold, width, row + r * width);
                }
            }
    });
    return mask;
}

at::Tensor Dropout::attention(const Rows &q, const Rows &k, int heads,
                              int layer, drop_site site) const
{
    const int nq = q.span(0), nk = k.span(0);
    at::Tensor mask = at::zeros({q.records, heads, nq, nk}, at::kByte);
    uint8_t *keep = mask.data_ptr<uint8_t>();
    uint32_t ks[2];
    key(layer, site, ks);
    const struct kernel_set *kern = kernels();
    at::parallel_for(
        0, (int64_t)q.records * heads, 1, [&](int64_t from, int64_t to) {
            std::vector<uint32_t> c;
            std::vector<uint16_t> draws;
            for (int64_t bh = from; bh < to; bh++) {
                int b = (int)(bh / heads), h = (int)(bh % heads);
                int nb = k.block_start[b + 1] - k.block_start[b];
                const uint32_t *c0 = k.blocks.data() + k.block_start[b];
                c.resize((size_t)nb * 2);
                draws.resize((size_t)nb * 8);
                for (int s = 0; s < q.n_segments; s++) {
                    const Rows::Segment &g = q.segments[b * q.n_segments + s];
                    for (int i = 0; i < g.len; i++) {
                        for (int j = 0; j < nb; j++) {
                            c[j] = (uint32_t)i;
                            c[nb + j] = g.field | (uint32_t)h << 16;
                        }
                        kern->philox(c0, c.data(), c.data() + nb,
                                     (uint32_t)(q.first + b), ks, nb,
                                     draws.data());
                        uint8_t *row = keep + (bh * nq + g.at + i) * nk;
                        for (int t = 0; t < k.n_segments; t++) {
                            const int *pair =
                                &k.pairs[(size_t)(b * k.n_segments + t) * 2];
                            kern->keep(
                                draws.data() + pair[0] * 8, threshold, pair[1],
                                row + k.segments[b * k.n_segments + t].at);
                        }
                    }
                }
            }
        });
    return mask;
}
