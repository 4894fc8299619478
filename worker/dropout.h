// dropout.h - which values are dropped, from a counter.
//
// A draw is named by what it is for: job seed, optimizer step, layer and site
// make a key, and record (within the effective batch), field, index within the
// field and column - for attention head, query and key - make the counter.
// Neither padding nor the split into micro-batches is in there, so neither
// changes what is dropped; and nothing has to be saved.
//
// Each Philox call gives 8 draws of 16 bits, for 8 columns in a row or 8 keys
// of one field. p is therefore a multiple of 1/65536; what is kept is scaled by
// exactly 1/(1 - p) of that p.
//
// Masks are made on the host, also for other devices, and copied there: one
// definition for all of them, and a byte per value is little next to the
// arithmetic it accompanies.
#pragma once
#include <ATen/core/Tensor.h>
#include <cstdint>
#include <vector>
#include "worker/kernels.h"

// Rows of one kind (the encoder's tokens, or the candidates) of a micro-batch,
// lying record by record. Packed: only real rows; padded: the same number of
// rows for each record.
struct Rows {
    struct Segment {
        uint32_t field; // 0: the class token; else index of the field + 1
        int at, len; // rows at…at+len-1 of the record are its index 0…len-1
    };
    int records = 0, first = 0; // first: as in struct batch
    int n_segments = 0;         // of each record
    int64_t total = 0;
    std::vector<Segment> segments; // records × n_segments
    std::vector<int64_t> start;    // records + 1: first row of each
    // Per row; rows that are padding are not written.
    std::vector<uint32_t> field, index;
    // Per record, what attention_one wants to know of keys.
    std::vector<uint32_t> blocks;
    std::vector<int> block_start; // records + 1
    std::vector<int> pairs;       // records × n_segments × 2

    // lengths[s][b] real rows in segment s of record b; padded[s] > 0 lays
    // the segment out that long, padded NULL packs.
    void build(int n_records, int first_record,
               const std::vector<uint32_t> &fields,
               const std::vector<const int32_t *> &lengths,
               const std::vector<int> *padded);
    int span(int b) const
    {
        return (int)(start[b + 1] - start[b]);
    }
};

enum drop_site {
    SITE_ATTENTION, // weights
    SITE_PROJECTED, // after the attention's projection
    SITE_HIDDEN,    // in the feed-forward block
    SITE_OUT,       // after it
};

struct Dropout {
    uint32_t threshold = 0; // 0: off
    float scale = 1;        // of what is kept
    uint64_t seed = 0;
    int64_t step = 0;

    Dropout() = default;
    Dropout(double p, uint64_t seed, int64_t step);
    void key(int layer, drop_site site, uint32_t ret[2]) const;
    // rows.total × width bytes, 1: kept; 0 in rows that are padding.
    at::Tensor features(const Rows &rows, int width, int layer,
                        drop_site site) const;
    // records × heads × span(q) × span(k) bytes, for padded rows.
    at::Tensor attention(const Rows &q, const Rows &k, int heads, int layer,
                         drop_site site) const;
};
