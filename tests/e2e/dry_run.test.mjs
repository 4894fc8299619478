// What a dry run says a job will take, beside what a real worker then takes.
import test from 'node:test';
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { chessSpec, until, withServer } from '../harness.mjs';

// The most that the process ever held, which between two optimizer steps is
// more than at them.
function mostHeld(pid) {
  try {
    return 1024 * Number(/VmHWM:\s+(\d+)/.exec(fs.readFileSync(`/proc/${pid}/status`, 'utf8'))[1]);
  } catch {
    return 0;
  }
}

const sizes = [
  { model: { d_model: 32, layers: 2, ff: 64, heads: 4 }, micro_batch: 16 },
  { model: { d_model: 64, layers: 2, ff: 256, heads: 4 }, micro_batch: 64 },
  { model: { d_model: 128, layers: 4, ff: 512, heads: 4 }, micro_batch: 16 },
  { model: { d_model: 384, layers: 6, ff: 1536, heads: 8 }, micro_batch: 8 },
];

test('the memory that a dry run foretells is what a worker takes, within a fifth', { timeout: 600_000 }, async (t) => {
  await withServer({ workers: 1 }, async (s) => {
    await s.uploadChess({ shards: 4 });
    for (const { model, micro_batch } of sizes) {
      const spec = chessSpec({ model, training: { epochs: 20, effective_batch: 2 * micro_batch }, runtime: { micro_batch, checkpoint_every: 4, restart: null } });
      const { memory } = (await s.post('/v1/jobs?dry_run=1', spec)).expect(200).json;
      const job = await s.submit(spec);
      let held = 0;
      // a save with its copy, and some steps of different records
      await until(`step 6 of job ${job.id}`, async () => {
        const worker = (await s.workers()).find((w) => w.job === job.id);
        if (worker) held = Math.max(held, mostHeld(worker.pid));
        return (await s.job(job.id)).progress.step >= 6;
      }, { patience_ms: 240_000 });
      const worker = (await s.workers()).find((w) => w.job === job.id);
      held = Math.max(held, mostHeld(worker.pid));
      for (let i = 0; i < 2; i++) (await s.post(`/v1/jobs/${job.id}/cancel`)).expect(200);
      await until(`job ${job.id} is canceled`, async () => (await s.job(job.id)).state === 'canceled');
      const off = memory.total_bytes / held - 1;
      t.diagnostic(`d_model ${model.d_model}, ${model.layers} layers, micro-batch ${micro_batch}: foretold ${memory.total_bytes >> 20} MB, held ${held >> 20} MB, ${(100 * off).toFixed(1)} %`);
      assert.ok(Math.abs(off) < 0.2, `foretold ${memory.total_bytes}, held ${held}: ${JSON.stringify(memory)}`);
    }
  });
});
