// A shuffle of the whole dataset, compressed shards, records held out, weights: all at
// once, however the run is stopped, whoever reads the data and whatever becomes of the
// data meanwhile. The same model, the same losses, for training and for validation.
import test, { after, before } from 'node:test';
import assert from 'node:assert/strict';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import zlib from 'node:zlib';
import { chessShards, chessSpec, merge, moment, randomSource, signal, tiny, tinySpec, jsonl, until, withServer } from '../harness.mjs';
import { seekable, zstd } from '../bad_lines.mjs';

// 800 records, a tenth held out, one shard twice an epoch: two epochs of about 29
// steps, two micro-batches a step.
const STEP = 2;
const all = chessShards({ records: 200 });
const [one, two, three, four] = Object.values(all);
const compressed = { 'shard-0000.jsonl.zst': seekable(one, 30_000), 'shard-0001.jsonl.zst': zstd(two), 'shard-0002.jsonl.gz': zlib.gzipSync(three), 'shard-0003.jsonl': four };
const spec = (patch = {}) => merge(chessSpec({
  data: { groups: [{ match: 'shard-0003*', weight: 2 }] },
  training: { epochs: 2, effective_batch: 32, shuffle: { mode: 'global', size: null }, validation: { fraction: 0.1, every: 10 } },
  limits: { lost: 1000, no_progress: 1000 },
  runtime: { checkpoint_every: STEP },
}), patch);
const restart = (steps) => ({ runtime: { checkpoint_every: STEP, restart: { every_micro_batches: steps * STEP } } });

const names = ['loss', 'loss/policy', 'loss/value', 'lr', 'grad_norm', 'validation/loss', 'validation/loss/policy', 'validation/loss/value'];
const result = async (s, id) => ({ ...(await s.result(id)), series: await s.series(id, names) });
const same = (got, want, how) => {
  assert.deepEqual(got.series, want.series, `${how}: figures by step`);
  assert.equal(got.model, want.model, `${how}: the model`);
};
const traced = (file) => fs.readFileSync(file, 'utf8').trimEnd().split('\n').map((l) => JSON.parse(l));

let straight, dir;
before(() => { dir = fs.mkdtempSync(path.join(os.tmpdir(), 'pawl-test-order-')); });
after(() => fs.rmSync(dir, { recursive: true, force: true }));

test('uninterrupted: each epoch uses each record as often as it should, in another order', async (t) => {
  await withServer({ workers: 0 }, async (s) => {
    await s.upload('chess', compressed);
    const job = await s.submit(spec());
    const trace = `${dir}/trace`;
    const w = await s.runWorker({ local: true, env: { PAWL_TRACE: trace } });
    assert.equal(w.code, 0, w.output);
    straight = await result(s, job.id);
    straight.trace = traced(trace);
    const [lease] = await s.leases(job.id);
    straight.seconds = (Date.parse(lease.ended_at) - Date.parse(lease.started_at)) / 1000;
    straight.steps = straight.job.progress.steps;
    const used = [0, 1].map((epoch) => straight.trace.filter((r) => r.epoch === epoch).flatMap((r) => r.records.map(String)));
    for (const u of used) {
      const times = new Map();
      for (const r of u) times.set(r, (times.get(r) ?? 0) + 1);
      for (const [r, n] of times) assert.equal(n, r.startsWith('shard-0003') ? 2 : 1, r);
      t.diagnostic(`${u.length} uses of ${times.size} records`);
      assert.ok(times.size > 800 * 0.84 && times.size < 800 * 0.96, `${800 - times.size} of 800 are held out`);
    }
    assert.deepEqual([...used[0]].sort(), [...used[1]].sort());
    assert.notDeepEqual(used[0], used[1]);
    assert.ok(straight.series.filter((l) => l.includes(',validation/loss,')).length >= straight.steps / 10 - 1);
    const loss = (await s.values(job.id, 'validation/loss')).map(Number);
    assert.ok(loss.at(-1) < loss[0], `it learned: ${loss}`);
  });
});

test('plain shards, and files in place, are the same records in the same order', async () => {
  const root = `${dir}/root`;
  fs.mkdirSync(root);
  for (const [name, bytes] of Object.entries(compressed)) fs.writeFileSync(`${root}/${name}`, bytes);
  await withServer({ args: ['--data-root', `here=${root}`] }, async (s) => {
    await s.upload('chess', all);
    const plain = await s.submit(spec());
    const here = await s.submit(spec({ data: { dataset: null, root: 'here' } }));
    same(await result(s, plain.id), straight, 'plain');
    same(await result(s, here.id), straight, 'in place');
  });
});

test('a yield every 9 steps, each with another worker: beside the data, or far from it with an empty cache', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.upload('chess', compressed);
    const job = await s.submit(spec(restart(9)));
    const trace = `${dir}/trace-yields`;
    for (let i = 0; (await s.job(job.id)).state !== 'completed'; i++) {
      assert.ok(i < 20);
      const w = await s.runWorker({ local: i % 2 === 0, env: { PAWL_TRACE: trace } });
      assert.equal(w.code, 0, w.output);
      fs.rmSync(s.cache, { recursive: true, force: true });
    }
    same(await result(s, job.id), straight, 'yields');
    assert.deepEqual(traced(trace), straight.trace, 'the same records in the same steps');
    const leases = await s.leases(job.id);
    assert.equal(leases.length, Math.ceil(straight.steps / 9));
    assert.equal((await s.job(job.id)).exact.tier, 'bit');
  });
});

test('kill -9 of workers and of pawld, again and again', async (t) => {
  const random = randomSource(t);
  await withServer({}, async (s) => {
    await s.upload('chess', compressed);
    const job = await s.submit(spec());
    const ended = async () => (await s.job(job.id)).state === 'completed';
    let workers = 0, servers = 0;
    for (let round = 0; round < 7 && !await ended(); round++) {
      await until('a worker to train', async () => await ended() || (await s.leases(job.id)).some((l) => !l.outcome));
      await moment(random() * straight.seconds * 1000 / 5);
      if (round % 3 === 2) {
        servers++;
        await s.kill9();
        await s.launch();
      } else {
        const open = (await s.leases(job.id)).find((l) => !l.outcome);
        const worker = open && (await s.workers()).find((w) => w.lease === open.id);
        if (worker && signal(worker.pid, 'SIGKILL')) {
          workers++;
          await until('the lease to end', async () => (await s.leases(job.id)).find((l) => l.id === open.id).outcome);
        }
      }
    }
    const got = await result(s, job.id);
    t.diagnostic(`killed: ${workers} workers, ${servers} times pawld; ${(await s.leases(job.id)).map((l) => `${l.outcome} ${l.from_step}-${l.to_step}`).join(', ')}`);
    assert.ok(workers >= 3 && servers >= 1, `${workers} workers, ${servers} servers`);
    same(got, straight, 'kill -9');
    assert.equal(got.job.exact.tier, 'bit');
  });
});

for (const mode of ['buffer', 'global']) {
  test(`data that grows while it is trained on is the next cycle's: ${mode}`, async () => {
    const root = `${dir}/grows-${mode}`;
    fs.mkdirSync(root);
    const records = (from, to) => jsonl(Array.from({ length: to - from }, (_, i) => tiny(from + i)));
    const job = (data, patch = {}) => tinySpec(merge({ data: { dataset: null, ...data }, cycles: 2, training: { shuffle: { mode, size: mode === 'buffer' ? 16 : null } }, runtime: { restart: { every_micro_batches: 5 } } }, patch));
    await withServer({ workers: 0, args: ['--data-root', `here=${root}`] }, async (s) => {
      const run = async () => {
        const w = await s.runWorker({ local: true });
        assert.equal(w.code, 0, w.output);
      };
      const toTheEnd = async (id) => {
        (await s.patch(`/v1/jobs/${id}`, { runtime: { restart: { every_micro_batches: 0 } } })).expect(200);
        for (let i = 0; i < 5 && (await s.job(id)).state !== 'completed'; i++) await run();
        const cycles = (await s.get(`/v1/jobs/${id}/cycles`)).expect(200).json.items.sort((a, b) => a.number - b.number);
        return { ...(await s.result(id)), cycles: cycles.map((c) => [c.records, c.steps, c.model_sha256]) };
      };
      const files = { 'a.jsonl': records(0, 20), 'b.jsonl': `${records(20, 33)}{"x":[1],` };
      const write = (name, what) => {
        fs.mkdirSync(`${root}/${name}`, { recursive: true });
        for (const [f, text] of Object.entries(what)) fs.writeFileSync(`${root}/${name}/${f}`, text);
      };
      for (const set of ['still', 'grows']) {
        write(set, files);
        await s.upload(set, { 'a.jsonl': records(0, 20), 'b.jsonl.zst': zstd(records(20, 33)) });
      }
      const more = { '0.jsonl': records(36, 40), 'z.jsonl.gz': zlib.gzipSync(records(40, 45)) };
      const cases = { // one of them for each order
        buffer: [{ root: 'here', match: 'still/*' }, { root: 'here', match: 'grows/*' }, 45, async () => {
          // the line under way ends, more follow, there is a new file, and one before all others
          fs.writeFileSync(`${root}/grows/b.jsonl`, `${records(20, 36)}{`);
          write('grows', more);
        }],
        global: [{ dataset: 'still' }, { dataset: 'grows' }, 45, async () => {
          await s.upload('grows', more);
          (await s.post('/v1/datasets/grows/records', records(33, 36), { 'Content-Type': 'application/x-ndjson' })).expect(201);
        }],
      };
      const [still, grows, whole, grow] = cases[mode];
      // what the first cycle comes to when nobody touches its data
      const [want] = (await toTheEnd((await s.submit(job(still, { cycles: 1 }))).id)).cycles;
      assert.deepEqual(want.slice(0, 2), [33, 9]);
      const { id } = await s.submit(job(grows));
      await until('its first lease', async () => { await run(); return (await s.leases(id)).length === 1; });
      assert.deepEqual((await s.leases(id)).map((l) => [l.outcome, l.to_step]), [['yielded', 5]]);
      await grow();
      const got = await toTheEnd(id);
      assert.deepEqual(got.cycles[0], want, 'the first cycle is as if nothing had come');
      assert.equal(got.cycles[1][0], whole, 'the second has all');
      assert.equal(got.job.exact.tier, 'bit');
    });
  });
}
