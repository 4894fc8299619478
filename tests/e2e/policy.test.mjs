// What may change in mid-run and what may not.
import test from 'node:test';
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { chessSpec, withServer } from '../harness.mjs';

// 7 steps an epoch (400 records), two epochs.
const spec = (runtime = {}, more = {}) => chessSpec({ training: { epochs: 2 }, runtime: { checkpoint_every: 0, ...runtime }, ...more });
const every = (steps) => ({ restart: { every_micro_batches: steps * 4 } });

async function ran(s) {
  const w = await s.runWorker();
  assert.equal(w.code, 0, w.output);
}

test('threshold and checkpoint interval change in mid-run: the state is kept, the result the same', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.uploadChess({ shards: 1 });
    const whole = await s.submit(spec());
    await ran(s);
    const want = await s.result(whole.id);

    const job = await s.submit(spec(every(3)));
    await ran(s); // 0-3
    (await s.patch(`/v1/jobs/${job.id}`, { runtime: { checkpoint_every: 4, keep: 5 } })).expect(200);
    await ran(s); // 3-6
    assert.ok((await s.checkpoints(job.id)).length >= 3, 'the new interval holds');
    (await s.patch(`/v1/jobs/${job.id}`, { runtime: { restart: { every_micro_batches: 0 } } })).expect(200);
    await ran(s); // to the end
    const got = await s.result(job.id);
    assert.deepEqual(got.series, want.series);
    assert.equal(got.model, want.model);
    assert.deepEqual((await s.leases(job.id)).map((l) => [l.from_step, l.to_step]), [[0, 3], [3, 6], [6, 14]]);
    assert.equal(got.job.exact.tier, 'bit');
  });
});

test('other padding: same records, same rates, order-exact from that step on, and the job says so', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.uploadChess({ shards: 1 });
    const whole = await s.submit(spec());
    await ran(s);
    const want = await s.result(whole.id);

    const job = await s.submit(spec(every(4)));
    await ran(s); // 0-4
    (await s.patch(`/v1/jobs/${job.id}`, { runtime: { padding: { mode: 'stable', minimum: { S: 80, O: 40, H: 24, A: 64 } }, restart: { every_micro_batches: 0 } } })).expect(200);
    await ran(s);
    const got = await s.result(job.id);
    assert.deepEqual([got.job.exact.tier, got.job.exact.since_step], ['order', 4]);
    assert.match(got.job.exact.reason, /padding/);
    assert.deepEqual((await s.leases(job.id)).map((l) => [l.from_step, l.to_step]), [[0, 4], [4, 14]]);
    assert.deepEqual(await s.values(job.id, 'lr'), await s.values(whole.id, 'lr'));
    const a = (await s.values(job.id, 'loss')).map(Number), b = (await s.values(whole.id, 'loss')).map(Number);
    assert.deepEqual(a.slice(0, 4), b.slice(0, 4));
    a.forEach((x, i) => assert.ok(Math.abs(x - b[i]) < 1e-3 * Math.abs(b[i]), `step ${i + 1}: ${x}, ${b[i]}`));
    // The first step after the change starts from the same weights: only rounding differs.
    assert.ok(Math.abs(a[4] - b[4]) < 1e-5 * Math.abs(b[4]), `${a[4]}, ${b[4]}`);
  });
});

test('micro-batch 16 or 8: the same mathematics', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.uploadChess({ shards: 1 });
    const a = await s.submit(spec());
    await ran(s);
    const b = await s.submit(spec({ micro_batch: 8 }));
    await ran(s);
    const x = (await s.values(a.id, 'loss')).map(Number), y = (await s.values(b.id, 'loss')).map(Number);
    assert.equal(x.length, 14);
    x.forEach((v, i) => assert.ok(Math.abs(v - y[i]) < 1e-3 * Math.abs(v), `step ${i + 1}: ${v}, ${y[i]}`));
    assert.ok(Math.abs(x[0] - y[0]) < 1e-5 * Math.abs(x[0]), 'dropout does not depend on the split');
  });
});

test('learning rate, seed and data are refused with the field\'s name, and the run goes on as it was', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.uploadChess({ shards: 1 });
    await s.uploadChess({ dataset: 'other', shards: 1 });
    const whole = await s.submit(spec());
    await ran(s);
    const want = await s.result(whole.id);
    const job = await s.submit(spec(every(4)));
    await ran(s);
    const before = (await s.job(job.id)).signature;
    for (const [patch, pointer] of [
      [{ training: { optimizer: { lr: 0.002 } } }, '/training/optimizer/lr'],
      [{ training: { seed: 8 } }, '/training/seed'],
      [{ data: { dataset: 'other' } }, '/data/dataset'],
    ]) {
      const p = (await s.patch(`/v1/jobs/${job.id}`, patch)).problem(409);
      assert.equal(p.pointer, pointer);
      assert.ok(p.detail.includes(pointer.split('/').pop()), p.detail);
    }
    assert.equal((await s.job(job.id)).signature, before);
    (await s.patch(`/v1/jobs/${job.id}`, { runtime: { restart: { every_micro_batches: 0 } } })).expect(200);
    await ran(s);
    assert.equal((await s.result(job.id)).model, want.model);
  });
});

test('a threshold below what a fresh process needs fails the job, naming both numbers', async () => {
  const env = { PAWL_MEMORY_PROBE: 'fake:start_mb=900,per_shape_mb=64,per_step_mb=0,recommended_mb=25559' };
  await withServer({ env }, async (s) => {
    await s.uploadChess({ shards: 1 });
    for (const [restart, threshold] of [[{ device_memory_mb: 800 }, /\b800\b/], [{ rss_mb: 20 }, /\b20\b/]]) {
      const job = await s.submit(spec({ restart }));
      const end = await s.failed(job.id);
      assert.match(end.reason, threshold);
      assert.match(end.reason, /(\d+).*?(\d+)/);
      assert.ok((await s.leases(job.id)).length <= 2, 'not an endless loop');
    }
  });
});

test('the same job twice at once: two workers, one result', async () => {
  await withServer({ workers: 2 }, async (s) => {
    await s.uploadChess({ shards: 1 });
    const jobs = [await s.submit(spec()), await s.submit(spec(every(5)))];
    const [a, b] = await Promise.all(jobs.map((j) => s.result(j.id)));
    assert.equal(a.model, b.model);
    assert.deepEqual(a.series, b.series);
    assert.ok(fs.existsSync(`${s.dir}/checkpoints.db`));
  });
});

test('follow=1 tells the story in plain lines: steps, loss, yields and resumes, and the end', async () => {
  await withServer({}, async (s) => {
    await s.uploadChess({ shards: 1 });
    const job = await s.submit(spec(every(4)));
    const lines = [];
    for await (const l of s.lines(`/v1/jobs/${job.id}?follow=1`)) lines.push(l);
    const text = lines.join('\n');
    assert.match(text, /step +\d+/i);
    assert.match(text, /loss/);
    assert.equal(lines.filter((l) => /yield/i.test(l)).length, 3, text);
    assert.ok(lines.filter((l) => /resum/i.test(l)).length >= 3, text);
    assert.match(lines.filter(Boolean).at(-1), /completed/);
  });
});
