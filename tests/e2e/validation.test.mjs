// Records that are held out: never trained on, looked at by the spec's steps, and the
// same figures however often the run is interrupted.
import test from 'node:test';
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import { bin, chessLines, chessShards, chessSpec, jsonl, merge, moment, randomSource, signal, tiny, tinyShard, tinySpec, until, withServer } from '../harness.mjs';

const ran = async (s, env) => {
  const w = await s.runWorker({ env });
  assert.equal(w.code, 0, w.output);
};
const validation = ['validation/loss', 'validation/loss/policy', 'validation/loss/value'];
const all = ['loss', 'loss/policy', 'loss/value', 'lr', 'grad_norm', ...validation];
const result = async (s, id) => ({ ...(await s.result(id)), series: await s.series(id, all) });
const steps = async (s, id, name = 'validation/loss') => (await s.series(id, [name])).map((l) => l.split(',')).map(([c, n]) => [Number(c), Number(n)]).sort((a, b) => a[0] - b[0] || a[1] - b[1]).map(([c, n]) => (c === 1 ? n : `${c}:${n}`));
const traced = (file) => fs.readFileSync(file, 'utf8').trimEnd().split('\n').map((l) => JSON.parse(l));

// The losses of a model by what `pawl-worker predict` answers: the mean over records
// of cross-entropy and squared error.
async function judged(s, id, lines) {
  const model = `${s.dir}/model-${id}`, records = `${s.dir}/records-${id}`;
  fs.writeFileSync(model, (await s.get(`/v1/jobs/${id}/model`)).expect(200).body);
  fs.writeFileSync(records, lines.map((l) => l + '\n').join(''));
  const r = spawnSync(path.join(bin, 'pawl-worker'), ['predict', '--model', model, records], { encoding: 'utf8', maxBuffer: 1 << 28 });
  assert.equal(r.status, 0, r.stderr);
  const answers = r.stdout.trimEnd().split('\n').map((l) => JSON.parse(l));
  assert.equal(answers.length, lines.length);
  let policy = 0, value = 0;
  lines.forEach((l, i) => {
    const want = JSON.parse(l), got = answers[i];
    const sum = want.policy.reduce((a, b) => a + b, 0);
    want.policy.forEach((p, k) => { if (p > 0) policy -= p / sum * Math.log(got.policy[k]); });
    value += (want.value - got.value) ** 2;
  });
  return { policy: policy / lines.length, value: value / lines.length };
}
// Lines by shard and offset.
function placed(shards) {
  const out = new Map();
  for (const [name, text] of Object.entries(shards)) {
    let offset = 0;
    for (const line of text.split('\n')) {
      if (line) out.set(`${name},${offset}`, line);
      offset += Buffer.byteLength(line) + 1;
    }
  }
  return out;
}
const near = (got, want, how) => assert.ok(Math.abs(got - want) < 2e-5 * Math.max(1, Math.abs(want)), `${how}: ${got}, not ${want}`);

for (const shuffle of [{ mode: 'buffer', size: 300 }, { mode: 'global', size: null }]) {
  const spec = (patch = {}) => merge(chessSpec({ training: { epochs: 2, shuffle, validation: { fraction: 0.2, every: 2 } }, runtime: { checkpoint_every: 8 }, limits: { lost: 1000, no_progress: 1000 } }), patch);
  let straight;

  test(`${shuffle.mode}: a fifth is held out, in every epoch the same records, and judged as predictions judge them`, async (t) => {
    await withServer({ workers: 0 }, async (s) => {
      const shards = chessShards({ shards: 2 });
      await s.upload('chess', shards);
      const job = await s.submit(spec());
      const trace = `${s.dir}/trace`;
      await ran(s, { PAWL_TRACE: trace });
      straight = await result(s, job.id);
      const lines = placed(shards), rows = traced(trace);
      const trained = (epoch) => rows.filter((r) => r.epoch === epoch).flatMap((r) => r.records.map(String)).sort();
      assert.equal(new Set(trained(0)).size, trained(0).length);
      assert.deepEqual(trained(1), trained(0));
      const held = [...lines.keys()].filter((p) => !new Set(trained(0)).has(p));
      t.diagnostic(`${held.length} of ${lines.size} records are held out`);
      assert.ok(held.length > 800 * 0.13 && held.length < 800 * 0.27, `${held.length}`);
      assert.equal(straight.job.progress.records_total, 2 * trained(0).length);
      const last = straight.job.progress.steps;
      assert.equal(last, 2 * Math.ceil(trained(0).length / 64));
      const due = Array.from({ length: last }, (_, i) => i + 1).filter((n) => n % 2 === 0 || n === last);
      assert.deepEqual(await steps(s, job.id), due);
      const want = await judged(s, job.id, held.map((p) => lines.get(p)));
      const value = async (name) => Number((await s.values(job.id, name)).at(-1));
      near(await value('validation/loss/policy'), want.policy, 'policy');
      near(await value('validation/loss/value'), want.value, 'value');
      near(await value('validation/loss'), want.policy + want.value, 'both');
    });
  });

  test(`${shuffle.mode}: yields and kill -9, also while it validates: the same model, the same figures, each once`, async (t) => {
    const random = randomSource(t);
    await withServer({ workers: 0, args: ['--lease', '2'] }, async (s) => {
      await s.upload('chess', chessShards({ shards: 2 }));
      const job = await s.submit(spec({ runtime: { restart: { every_micro_batches: 21 } } }));
      for (let nth = 1; (await s.job(job.id)).state !== 'completed'; nth++) {
        assert.ok(nth < 60);
        // a yield after six steps, or a long lease that is killed in it: half of
        // the time it validates
        const killed = nth % 2 === 0;
        (await s.patch(`/v1/jobs/${job.id}`, { runtime: { restart: { every_micro_batches: killed ? 0 : 21 } } })).expect(200);
        const w = s.startWorker({ local: true, args: ['--once'] });
        if (killed) {
          await until('it to train', async () => {
            const [l] = (await s.leases(job.id)).slice(-1);
            return (l && l.stage !== 'load' && !l.outcome) || (await s.job(job.id)).state === 'completed';
          }, { every_ms: 1 });
          await moment(random() * 300);
          signal(w.pid, 'SIGKILL');
        }
        await w.ended;
        await until('the lease to end', async () => (await s.leases(job.id)).every((l) => l.outcome));
      }
      const leases = await s.leases(job.id);
      t.diagnostic(leases.map((l) => `${l.outcome} ${l.from_step}-${l.to_step}`).join(', '));
      assert.ok(leases.filter((l) => l.outcome === 'lost').length >= 1, 'no kill met a lease');
      const got = await result(s, job.id);
      assert.deepEqual(got.series, straight.series);
      assert.equal(got.model, straight.model);
      assert.equal(got.job.exact.tier, 'bit');
      assert.equal(got.job.exact.inexact_steps, 0);
      const seen = await steps(s, job.id);
      assert.equal(new Set(seen).size, seen.length);
    });
  });
}

test('another dataset: at the end of each epoch, at most so many records, and training is as without it', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.uploadChess({ shards: 1 });
    const lines = chessLines().slice(400, 520);
    await s.upload('kept', { 'a.jsonl': lines.slice(0, 70).join('\n'), 'b.jsonl': lines.slice(70).join('\n') });
    const plain = await s.submit(chessSpec({ training: { epochs: 2 } }));
    await ran(s);
    const without = await s.result(plain.id);
    const job = await s.submit(chessSpec({ training: { epochs: 2, validation: { dataset: 'kept' } } }));
    assert.notEqual(job.signature, plain.signature);
    await ran(s);
    const got = await s.result(job.id);
    assert.equal(got.model, without.model, 'no weight and no random number was touched');
    assert.deepEqual(got.series, without.series);
    assert.deepEqual(await steps(s, job.id), [7, 14]);
    const want = await judged(s, job.id, lines);
    near(Number((await s.values(job.id, 'validation/loss/policy')).at(-1)), want.policy, 'policy');
    near(Number((await s.values(job.id, 'validation/loss/value')).at(-1)), want.value, 'value');

    const few = await s.submit(chessSpec({ training: { epochs: 2, validation: { dataset: 'kept', records: 90, every: 4 } }, runtime: { keep_best: { series: 'validation/loss' } } }));
    await ran(s);
    await s.completed(few.id);
    assert.deepEqual(await steps(s, few.id), [4, 8, 12, 14]);
    near(Number((await s.values(few.id, 'validation/loss/policy')).at(-1)), (await judged(s, few.id, lines.slice(0, 90))).policy, 'the first 90');
    // a dry run knows how many
    const dry = (await s.post('/v1/jobs?dry_run=1', chessSpec({ training: { validation: { dataset: 'kept', records: 90 } } }))).expect(200).json;
    assert.equal(dry.validation_records, 90);
    assert.deepEqual(dry.spec.training.validation, { dataset: 'kept', records: 90, every: 0 });
  });
});

test('a bad record that is held out ends the job at its place; skipped where records are; nothing held out says so', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.upload('tiny', { 'a.jsonl': tinyShard(24) });
    await s.upload('kept', { 'v.jsonl': jsonl([tiny(1), tiny(2), tiny(3), tiny(4), tiny(5), { ...tiny(6), x: [99] }, tiny(7)]) });
    const spec = (patch = {}) => tinySpec({ training: { validation: { dataset: 'kept' } }, ...patch });
    const job = await s.submit(spec());
    await ran(s);
    const end = await s.failed(job.id);
    assert.equal(end.error.code, 'data');
    assert.deepEqual([end.error.shard, end.error.line, end.error.field], ['v.jsonl', 6, 'x']);
    assert.match(end.reason, /v\.jsonl.*line 6/);
    assert.equal(end.progress.step, 6, 'the step was good, its state is kept');
    assert.equal(Math.max(...(await s.checkpoints(job.id)).map((c) => c.step)), 6);
    const lenient = await s.submit(spec({ data: { dataset: 'tiny', bad_records: 'skip' } }));
    await ran(s);
    await s.completed(lenient.id);
    assert.equal((await s.values(lenient.id, 'validation/loss')).length, 1);
    // so few are held out that it is none
    const none = await s.submit(tinySpec({ training: { validation: { fraction: 1e-9 } } }));
    await ran(s);
    const why = await s.failed(none.id);
    assert.match(why.reason, /none is held out/);
    assert.equal(why.progress.step, 0, 'before anything was trained');
  });
});

test('a dataset for validation that is not there is a 400, one that a job needs stays', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.upload('tiny', { 'a.jsonl': tinyShard(24) });
    await s.upload('kept', { 'v.jsonl': tinyShard(8) });
    (await s.post('/v1/jobs', tinySpec({ training: { validation: { dataset: 'none' } } }))).problem(400, '/training/validation/dataset');
    const job = await s.submit(tinySpec({ training: { validation: { dataset: 'kept' } } }));
    (await s.delete('/v1/datasets/kept')).problem(409);
    (await s.delete('/v1/datasets/kept/shards/v.jsonl')).problem(409);
    (await s.patch(`/v1/jobs/${job.id}`, { training: { validation: { every: 2 } } })).problem(409, '/training/validation/every');
    await ran(s);
    await s.completed(job.id);
    (await s.delete('/v1/datasets/kept')).expect(204);
  });
});
