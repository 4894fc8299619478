// Batches padded up to a few sizes: which ones, what that wastes, and that a run is
// as exact as with any other padding.
import test from 'node:test';
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { chessShards, chessSpec, jsonl, signal, tiny, tinySpec, until, withServer } from '../harness.mjs';

const ran = async (s, env) => {
  const w = await s.runWorker({ env });
  assert.equal(w.code, 0, w.output);
};
const sizes = { S: [56, 62, 72], O: [16, 24, 32], H: [8, 16], A: [24, 40] };
// without the fixture's own padding
const spec = (padding, patch = {}) => {
  const out = chessSpec({ training: { epochs: 2 }, ...patch });
  out.runtime = { ...out.runtime, ...patch.runtime, padding };
  return out;
};
const series = ['loss', 'loss/policy', 'loss/value', 'lr', 'grad_norm', 'padding_waste', 'shapes_exceeded'];

// Lengths per dimension of the records by shard and offset.
function lengths(shards) {
  const out = new Map();
  for (const [name, text] of Object.entries(shards)) {
    let offset = 0;
    for (const line of text.split('\n')) {
      if (line) {
        const r = JSON.parse(line);
        out.set(`${name},${offset}`, { S: r.state.length, O: r.objects.length, H: r.history.length, A: r.legal.length });
      }
      offset += Buffer.byteLength(line) + 1;
    }
  }
  return out;
}
const up = (list, n) => list.find((x) => x >= n) ?? Math.max(n, 1);
// Of each step: the part of padded entries that hold nothing, and the shapes so far.
// The policy runs along A beside the legal moves.
const weight = { S: 1, O: 1, H: 1, A: 2 };
function expected(trace, of, list, micro = 16) {
  const seen = new Set();
  const over = {};
  return trace.map(({ records }) => {
    let padded = 0, held = 0;
    for (let i = 0; i < records.length; i += micro) {
      const part = records.slice(i, i + micro).map((r) => of.get(`${r[0]},${r[1]}`));
      const shape = [part.length];
      for (const d of Object.keys(weight)) {
        const to = up(list[d] ?? [], Math.max(...part.map((r) => r[d])));
        shape.push(to);
        padded += weight[d] * to * part.length;
        for (const r of part) {
          held += weight[d] * r[d];
          const top = (list[d] ?? []).at(-1);
          if (top && r[d] > top) over[d] = { count: (over[d]?.count ?? 0) + 1, longest: Math.max(over[d]?.longest ?? 0, r[d]) };
        }
      }
      seen.add(String(shape));
    }
    return { waste: 1 - held / padded, shapes: seen.size, over: structuredClone(over) };
  });
}
const traced = (file) => fs.readFileSync(file, 'utf8').trimEnd().split('\n').map((l) => JSON.parse(l));

test('given sizes: waste, shapes and what exceeds them are as counted by hand; yields and kill -9 change nothing', async (t) => {
  const env = { PAWL_TRACE: '' };
  await withServer({ workers: 0, args: ['--lease', '2'] }, async (s) => {
    const shards = chessShards({ shards: 2 });
    await s.upload('chess', shards);
    env.PAWL_TRACE = `${s.dir}/trace`;
    const job = await s.submit(spec({ sizes }));
    assert.equal(job.runtime.padding.mode, 'ladder');
    await ran(s, env);
    const whole = { ...(await s.result(job.id)), series: await s.series(job.id, series) };
    const want = expected(traced(env.PAWL_TRACE), lengths(shards), sizes);
    const waste = (await s.values(job.id, 'padding_waste')).map(Number), shapes = (await s.values(job.id, 'shapes')).map(Number);
    const over = (await s.values(job.id, 'shapes_exceeded')).map(Number);
    assert.equal(want.length, 26);
    want.forEach((w, i) => {
      assert.ok(Math.abs(waste[i] - w.waste) < 1e-6, `step ${i + 1}: waste ${waste[i]}, not ${w.waste}`);
      assert.equal(shapes[i], w.shapes, `step ${i + 1}`);
      assert.equal(over[i], Object.values(w.over).reduce((n, o) => n + o.count, 0), `step ${i + 1}`);
    });
    assert.deepEqual(whole.job.data.exceeded, want.at(-1).over);
    assert.ok(whole.job.data.exceeded.A.count > 0, 'some have more moves than foreseen, and were trained on whole');
    t.diagnostic(`waste ${waste[0]} … ${waste.at(-1)}, ${shapes.at(-1)} shapes, exceeded ${JSON.stringify(whole.job.data.exceeded)}`);

    const two = await s.submit(spec({ sizes }, { runtime: { checkpoint_every: 8, restart: { every_micro_batches: 32 } } }));
    for (let nth = 1; (await s.job(two.id)).state !== 'completed'; nth++) {
      const w = s.startWorker({ local: true, args: ['--once'] });
      if (nth % 2 === 0) {
        await until('a few steps', async () => {
          const [l] = (await s.leases(two.id)).slice(-1);
          return (await s.job(two.id)).state === 'completed' || (l && !l.outcome && l.to_step > l.from_step + 2);
        });
        signal(w.pid, 'SIGKILL');
      }
      await w.ended;
      await until('the lease to end', async () => (await s.leases(two.id)).every((l) => l.outcome));
      assert.ok(nth < 40);
    }
    const stopped = await s.result(two.id);
    assert.equal(stopped.model, whole.model);
    assert.deepEqual(await s.series(two.id, series), whole.series);
    assert.deepEqual(stopped.job.data, whole.job.data);
    assert.equal(stopped.job.exact.tier, 'bit');
    assert.ok((await s.leases(two.id)).some((l) => l.outcome === 'lost'), 'a kill met a lease');
  });
});

test('sizes are chosen once from the data, few and without waste; the composition of batches stays', async (t) => {
  await withServer({ workers: 0 }, async (s) => {
    const shards = chessShards();
    await s.upload('chess', shards);
    const of = lengths(shards);
    const run = async (padding) => {
      const job = await s.submit(spec(padding, { training: { epochs: 1 } }));
      const trace = `${s.dir}/trace-${job.id}`;
      await ran(s, { PAWL_TRACE: trace });
      return { ...(await s.result(job.id)), trace: traced(trace), loss: (await s.values(job.id, 'loss')).map(Number) };
    };
    const dry = (await s.post('/v1/jobs?dry_run=1', spec({ count: 4 }))).expect(200).json;
    assert.deepEqual(dry.spec.runtime.padding, { mode: 'ladder', minimum: {}, count: 4 });
    const dynamic = await run({ mode: 'dynamic' });
    const four = await run({ count: 4 });
    const { sizes: chosen, ...rest } = four.job.runtime.padding;
    assert.deepEqual(rest, { mode: 'ladder', minimum: {} }, 'they are kept as if they had been given');
    for (const d of Object.keys(weight)) {
      assert.ok(chosen[d].length >= 1 && chosen[d].length <= 4, JSON.stringify(chosen));
      assert.ok(chosen[d].every((n, i) => n > (chosen[d][i - 1] ?? 0)));
      assert.deepEqual(dry.memory.lengths[d].sizes, chosen[d], 'a dry run names them');
    }
    assert.deepEqual(four.trace, dynamic.trace, 'the same records in the same steps');
    four.loss.forEach((v, i) => assert.ok(Math.abs(v - dynamic.loss[i]) < 1e-3 * Math.abs(v), `step ${i + 1}: ${v}, ${dynamic.loss[i]}`));
    const by = (list) => expected(four.trace, of, list).at(-1).shapes;
    const total = (list) => expected(four.trace, of, list).reduce((n, e) => n + e.waste, 0);
    t.diagnostic(`${JSON.stringify(chosen)}: ${by(chosen)} shapes instead of ${by({})}, waste ${(total(chosen) / 25).toFixed(3)}, of a stable profile ${(total(Object.fromEntries(Object.entries(chosen).map(([d, l]) => [d, l.slice(-1)]))) / 25).toFixed(3)}, dynamic ${(total({}) / 25).toFixed(3)}`);
    assert.ok(by(chosen) < by({}) / 2, 'fewer shapes');
    // four sizes at equal distances up to the longest waste more
    const even = Object.fromEntries(Object.keys(weight).map((d) => [d, [1, 2, 3, 4].map((i) => Math.ceil(chosen[d].at(-1) * i / 4))]));
    assert.ok(total(chosen) < total(even));
    // what inspecting the dataset foretells of these sizes is what comes
    const advice = (await s.get(`/v1/datasets/chess/inspect?whole=1&job=${four.job.id}`)).expect(200).json.advice.ladder['4'];
    const pasted = await run(advice.padding);
    const measured = (await s.values(pasted.job.id, 'padding_waste')).map(Number);
    const mean = measured.reduce((a, b) => a + b, 0) / measured.length;
    t.diagnostic(`advice: waste ${advice.waste}, measured ${mean.toFixed(3)}`);
    assert.ok(Math.abs(mean - advice.waste) < 0.03, `${mean}, foretold ${advice.waste}`);
    assert.deepEqual(pasted.job.data.exceeded, {}, 'the last size holds the longest');
    const events = (await s.get(`/v1/jobs/${four.job.id}/events?limit=1000`)).expect(200).json.items;
    assert.match(events.find((e) => e.kind === 'padding').cause, /^sizes that waste least, from \d+ records: A /);
  });
});

test('a ladder in the middle of a run ends the bit-exact tier, and sizes are chosen at once', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.uploadChess({ shards: 1 });
    const job = await s.submit(spec({ mode: 'dynamic' }, { runtime: { restart: { every_micro_batches: 8 } } }));
    await ran(s);
    const patched = (await s.patch(`/v1/jobs/${job.id}`, { runtime: { padding: { mode: 'ladder', count: 2 }, restart: { every_micro_batches: 0 } } })).expect(200).json;
    assert.ok(patched.runtime.padding.sizes.S.length <= 2);
    assert.equal(patched.runtime.padding.count, undefined);
    await ran(s);
    const end = await s.completed(job.id);
    assert.equal(end.exact.tier, 'order');
    assert.match(end.exact.reason, /padding/);
    assert.equal(end.exact.since_step, 2);
    assert.deepEqual(end.runtime, patched.runtime);
    // and under "exact": "require" it is refused
    const strict = await s.submit(spec({ mode: 'dynamic' }, { runtime: { exact: 'require', restart: { every_micro_batches: 8 } } }));
    await ran(s);
    (await s.patch(`/v1/jobs/${strict.id}`, { runtime: { padding: { count: 2 , mode: 'ladder' } } })).problem(409, '/runtime/padding');
    (await s.post(`/v1/jobs/${strict.id}/cancel`)).expect(200);
  });
});

test('the sizes that a job got stay when its data grows; what is longer is padded to its own length', async () => {
  await withServer({ workers: 0 }, async (s) => {
    const long = (n, i) => ({ ...tiny(i), x: Array.from({ length: n }, (_, k) => (k + i) % 16) });
    await s.upload('tiny', { 'a.jsonl': jsonl(Array.from({ length: 40 }, (_, i) => long(1 + i % 5, i))) });
    const job = await s.submit(tinySpec({ cycles: 2, runtime: { padding: { count: 2 } } }));
    await ran(s);
    const { sizes: first } = (await s.job(job.id)).runtime.padding;
    assert.equal(first.X.at(-1), 5);
    const next = await s.submit(tinySpec({ cycles: 0, runtime: { padding: { count: 2 } } }));
    (await s.post(`/v1/jobs/${next.id}/cycles`, {})).expect(201);
    await ran(s); // the other job's second
    await ran(s);
    const { sizes: own } = (await s.job(next.id)).runtime.padding;
    await s.upload('tiny', { 'b.jsonl': jsonl([long(9, 1), long(7, 2), long(9, 3), long(1, 4)]) });
    (await s.post(`/v1/jobs/${next.id}/cycles`, {})).expect(201);
    await ran(s);
    const end = await s.waitJob(next.id, 'between cycles', (j) => j.state === 'queued');
    assert.deepEqual(end.runtime.padding.sizes, own);
    assert.deepEqual(end.data.exceeded, { X: { count: 3, longest: 9 } });
    (await s.post(`/v1/jobs/${next.id}/complete`)).expect(200);
  });
});
