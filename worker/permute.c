#include "worker/permute.h"
#include <assert.h>
#include "schema/philox.h"

#define ROUNDS 8

void permute_init(struct permutation *p, int64_t n, int64_t seed, int64_t cycle,
                  int64_t epoch, int purpose)
{
    int bits = 0;
    while (((uint64_t)1 << bits) < (uint64_t)n)
        bits++;
    *p = (struct permutation){
        .n = (uint64_t)n,
        .left = bits / 2,
        .right = bits - bits / 2,
        .key = {(uint32_t)seed,
                (uint32_t)(seed >> 32) ^ 0x506D0000u /* "Pm" */},
        .epoch = (uint32_t)epoch,
        .cycle = (uint32_t)cycle,
        .purpose = (uint32_t)purpose,
    };
}

static uint32_t mix(const struct permutation *p, int round, uint32_t half)
{
    uint32_t ctr[4] = {half, (uint32_t)round | p->purpose << 8, p->epoch,
                       p->cycle};
    uint32_t out[4];
    philox4x32(ctr, p->key, out);
    return out[0];
}

static uint64_t through(const struct permutation *p, uint64_t x)
{
    uint32_t l = (uint32_t)(x >> p->right);
    uint32_t r = (uint32_t)(x & (((uint64_t)1 << p->right) - 1));
    uint32_t l_mask = (uint32_t)(((uint64_t)1 << p->left) - 1);
    uint32_t r_mask = (uint32_t)(((uint64_t)1 << p->right) - 1);
    for (int i = 0; i < ROUNDS; i += 2) {
        l ^= mix(p, i, r) & l_mask;
        r ^= mix(p, i + 1, l) & r_mask;
    }
    return (uint64_t)l << p->right | r;
}

int64_t permute_at(const struct permutation *p, int64_t i)
{
    assert(i >= 0 && (uint64_t)i < p->n);
    uint64_t x = (uint64_t)i;
    do
        x = through(p, x);
    while (x >= p->n);
    return (int64_t)x;
}
