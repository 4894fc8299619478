/* bench_step: records/s of the trainer alone, batches made beforehand.
 *
 *     bench_step JOB.json SHARD.jsonl THREADS SECONDS
 *
 * Prints one JSON line. step.py runs it beside the same model in Python. */
#include "tests/unit/torch_batch.h"
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: %s JOB.json SHARD.jsonl THREADS SECONDS\n",
                argv[0]);
        return 2;
    }
    struct err err;
    struct spec spec;
    json_error_t e;
    AUTO_JSON json_t *job = json_load_file(argv[1], 0, &e);
    if (!job || spec_parse(job, &spec, &err) < 0) {
        fprintf(stderr, "%s: %s\n", argv[1], job ? err.text : e.text);
        return 1;
    }
    AUTO_JSON json_t *records = json_array();
    FILE *f = fopen(argv[2], "r");
    char *line = NULL;
    size_t cap = 0;
    while (f && getline(&line, &cap, f) > 0)
        json_array_append_new(records, json_loads(line, 0, NULL));
    free(line);
    if (f)
        fclose(f);

    const int micro = spec.runtime.micro_batch;
    const int effective = spec.training.effective_batch;
    const int per_step = (effective + micro - 1) / micro;
    int n = (int)json_array_size(records) / micro;
    if (n < per_step) {
        fprintf(stderr, "%s: too few records\n", argv[2]);
        return 1;
    }
    struct batch *batches = calloc((size_t)n, sizeof *batches);
    for (int i = 0; i < n; i++) {
        batches[i] = batch_of(&spec.record, records, i * micro, micro, 0, 0);
        for (int d = 0; d < spec.record.n_dims; d++)
            if (spec.runtime.padding.minimum[d] > batches[i].padded[d]) {
                /* As the feed pads: lay it out anew. */
                int most = 0;
                for (int k = 0; k < spec.record.n_dims; k++)
                    if (spec.runtime.padding.minimum[k] > most)
                        most = spec.runtime.padding.minimum[k];
                batch_release(&batches[i]);
                batches[i] =
                    batch_of(&spec.record, records, i * micro, micro, most, 0);
                break;
            }
    }

    struct trainer *t;
    if (trainer_new(&spec, test_device(), atoi(argv[3]), &t, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    int64_t step = 0, count;
    double start = 0, loss = 0, seconds = atof(argv[4]);
    const int64_t warm = 3;
    for (; step <= warm || now() - start < seconds; step++) {
        if (step == warm)
            start = now();
        struct losses sum = {0};
        double norm;
        for (int k = 0; k < per_step; k++) {
            struct batch b = batches[(step * per_step + k) % n];
            b.first = k * micro;
            if (trainer_micro(t, &b, step, per_step * micro, &sum, &err) < 0) {
                fprintf(stderr, "%s\n", err.text);
                return 1;
            }
        }
        if (trainer_step(t, 1e-3, &norm, &err) < 0) {
            fprintf(stderr, "%s\n", err.text);
            return 1;
        }
        loss = sum.total / (double)sum.records;
    }
    double wall = now() - start;
    int tensors = trainer_parameters(t, &count);
    printf("{\"records_per_s\": %.1f, \"steps\": %lld, \"parameters\": %lld, "
           "\"tensors\": %d, \"loss\": %.4f}\n",
           (double)((step - warm) * per_step * micro) / wall,
           (long long)(step - warm), (long long)count, tensors, loss);
    for (int i = 0; i < n; i++)
        batch_release(&batches[i]);
    free(batches);
    trainer_free(t);
    spec_release(&spec);
    return 0;
}
