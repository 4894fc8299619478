// Data that changes under a job, and data that is wrong from the start.
import test, { after, before } from 'node:test';
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';
import zlib from 'node:zlib';
import { Server, bin, chessSpec, jsonl, tiny, tinyShard, tinySpec, withServer } from '../harness.mjs';
import { badLines } from '../bad_lines.mjs';

// ---- frozen snapshots ----

const frozen = chessSpec({ runtime: { checkpoint_every: 0, restart: { every_micro_batches: 8 } } }); // two steps a lease

async function halfWay(s, dataset = 'chess') {
  const job = await s.submit({ ...frozen, data: { dataset } });
  const w = await s.runWorker({ local: true });
  assert.equal(w.code, 0, w.output);
  assert.equal((await s.leases(job.id))[0].to_step, 2);
  return job;
}
async function toTheEnd(s, id) {
  (await s.patch(`/v1/jobs/${id}`, { runtime: { restart: { every_micro_batches: 0 } } })).expect(200);
  for (;;) {
    const job = await s.job(id);
    if (['completed', 'failed'].includes(job.state)) return job;
    const w = await s.runWorker({ local: true });
    assert.ok(w.code !== null, w.output);
  }
}

test('a shard that grew is read to the frozen size', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.uploadChess({ shards: 2 });
    await s.uploadChess({ dataset: 'same', shards: 2 });
    const want = await toTheEnd(s, (await halfWay(s, 'same')).id);
    assert.equal(want.state, 'completed', want.reason);
    const job = await halfWay(s);
    for (const name of ['shard-0000.jsonl', 'shard-0001.jsonl'])
      fs.appendFileSync(`${s.dir}/datasets/chess/${name}`, 'this is no record\n'.repeat(50));
    const end = await toTheEnd(s, job.id);
    assert.equal(end.state, 'completed', end.reason);
    assert.equal(end.model_sha256, want.model_sha256);
  });
});

const edits = {
  'a byte changed in place': (file) => {
    const fd = fs.openSync(file, 'r+');
    fs.writeSync(fd, Buffer.from('7'), 0, 1, 300_000);
    fs.closeSync(fd);
  },
  'cut short': (file) => fs.truncateSync(file, 200_000),
  'replaced by another file of the same size': (file) => {
    const bytes = fs.readFileSync(file);
    bytes[310_000] ^= 1;
    fs.writeFileSync(`${file}.new`, bytes);
    fs.renameSync(`${file}.new`, file);
  },
  'removed': (file) => fs.rmSync(file),
};
for (const [what, edit] of Object.entries(edits)) {
  test(`a shard ${what} below the frozen size is refused, naming shard and offset`, async () => {
    await withServer({ workers: 0 }, async (s) => {
      await s.uploadChess({ shards: 2 });
      const job = await halfWay(s);
      edit(`${s.dir}/datasets/chess/shard-0001.jsonl`);
      const end = await toTheEnd(s, job.id);
      assert.equal(end.state, 'failed');
      assert.match(end.reason, /shard-0001\.jsonl/);
      if (what !== 'removed') assert.match(end.reason, /offset \d+|byte \d+/);
      assert.ok((await s.checkpoints(job.id)).length > 0, 'the last good state is kept');
    });
  });
}

// ---- bad records ----

// One server for all of them; nothing that one job does disturbs the next.
let s;
before(async () => { s = await Server.start({ workers: 1 }); });
after(() => s?.stop());

const good = Array.from({ length: 8 }, (_, i) => tiny(i));
const shardWith = (bad) => {
  const head = Buffer.from(jsonl(good));
  return { bytes: Buffer.concat([head, Buffer.from(bad), Buffer.from('\n'), Buffer.from(jsonl(good))]), offset: head.length, line: good.length + 1 };
};

// All of them are refused as they arrive (api/robust) and skipped, below; in training a few.
badLines.forEach(([what, bad, field, says], i) => {
  if (i % 4 === 0) test(`a bad line fails the job with shard, line, offset and field: ${what}`, async () => {
    const { bytes, offset, line: number } = shardWith(bad);
    await s.upload(`bad${i}`, { 'ok.jsonl': tinyShard(4), 'zz.jsonl': bytes });
    const job = await s.submit(tinySpec({ data: { dataset: `bad${i}` } }));
    const end = await s.failed(job.id);
    assert.match(end.reason, /zz\.jsonl/);
    assert.match(end.reason, new RegExp(`line ${number}\\b`));
    assert.match(end.reason, new RegExp(`\\b${offset}\\b`), `offset ${offset} in: ${end.reason}`);
    assert.match(end.reason, says);
    const { error } = end;
    assert.deepEqual([error.shard, error.line, error.offset], ['zz.jsonl', number, offset]);
    if (field) assert.equal(error.field, field);
    assert.equal((await s.leases(job.id)).length, 1, 'errors of data are never tried again');
  });
});

test('an empty shard fails the job with its name', async () => {
  await s.upload('empty', { 'ok.jsonl': tinyShard(4), 'zz.jsonl': '' });
  const r = await s.post('/v1/jobs', tinySpec({ data: { dataset: 'empty' } }));
  if (r.status === 400) assert.match(r.json.detail, /zz\.jsonl/);
  else assert.match((await s.failed(r.expect(201).json.id)).reason, /zz\.jsonl/);
  // only blank lines are no records either
  await s.upload('blank', { 'a.jsonl': '\n\n \n' });
  const b = await s.post('/v1/jobs', tinySpec({ data: { dataset: 'blank' } }));
  if (b.status === 400) assert.match(b.json.detail, /record/);
  else assert.match((await s.failed(b.expect(201).json.id)).reason, /record/);
});

test('bad_records: skip with nothing but bad lines fails, and keeps their reasons', async () => {
  await s.upload('allbad', { 'a.jsonl': '{"x":1}\n[]\n' });
  const job = await s.submit(tinySpec({ data: { dataset: 'allbad', bad_records: 'skip' } }));
  const end = await s.failed(job.id);
  assert.match(end.reason, /no records: all 2 lines/);
  assert.equal(end.data.skipped, 2, JSON.stringify(end.data));
  assert.deepEqual(end.data.bad.map((b) => b.line).sort(), [1, 2]);
});

test('bad_records: skip counts them, keeps examples, and trains on the others', async () => {
  const bytes = Buffer.concat(badLines.map(([, bad]) => Buffer.concat([Buffer.from(jsonl([tiny(1)])), Buffer.from(bad), Buffer.from('\n')])));
  await s.upload('skip', { 'a.jsonl': bytes });
  await s.upload('clean', { 'a.jsonl': jsonl(badLines.map(() => tiny(1))) });
  const job = await s.submit(tinySpec({ data: { dataset: 'skip', bad_records: 'skip' } }));
  const end = await s.completed(job.id);
  const { skipped, bad: examples } = end.data;
  assert.equal(skipped, badLines.length, JSON.stringify(end.data));
  assert.ok(examples.length >= 5 && examples.length <= badLines.length, `${examples.length} examples`);
  const starts = [...bytes.toString('latin1').matchAll(/^/gm)].map((m) => m.index);
  for (const e of examples) {
    assert.equal(e.shard, 'a.jsonl');
    assert.equal(e.line % 2, 0, 'every second line is bad');
    assert.equal(e.offset, starts[e.line - 1]);
    const [what, , field, says] = badLines[e.line / 2 - 1];
    assert.match(e.detail, says, what);
    if (field !== null) assert.equal(e.field ?? '', field, what);
  }
  assert.equal(new Set(examples.map((e) => e.line)).size, examples.length);
  assert.equal(end.progress.records, badLines.length);
  const clean = await s.submit(tinySpec({ data: { dataset: 'clean' } }));
  assert.equal((await s.completed(clean.id)).progress.records, badLines.length);
});

test('a line of 20 MB: its length is the reason, whatever the order and the form; skipped, it is one of so many', async () => {
  const first = jsonl([tiny(1), tiny(2)]);
  const long = `{"id":"${'x'.repeat(20_000_000)}"}`;
  const text = `${first}${long}\n${jsonl([tiny(3)])}`;
  await s.upload('long', { 'a.jsonl': text });
  await s.upload('long-gz', { 'a.jsonl.gz': zlib.gzipSync(text, { level: 1 }) });
  const jobs = [];
  for (const [dataset, shard] of [['long', 'a.jsonl'], ['long-gz', 'a.jsonl.gz']])
    for (const shuffle of [{ mode: 'buffer', size: 16 }, { mode: 'global', size: null }])
      for (const bad_records of ['fail', 'skip'])
        jobs.push({ shard, bad_records, id: (await s.submit(tinySpec({ data: { dataset, bad_records }, training: { shuffle } }))).id });
  for (const { shard, bad_records, id } of jobs) {
    const end = await (bad_records === 'fail' ? s.failed(id) : s.completed(id));
    const bad = bad_records === 'fail' ? end.error : end.data.bad[0];
    assert.deepEqual([bad.shard, bad.line, bad.offset], [shard, 3, first.length]);
    assert.match(bad.detail, /line is .*\b16777215\b/);
    if (bad_records === 'skip') assert.deepEqual([end.data.skipped, end.progress.records], [1, 3]);
  }
});

test('policies that do not sum to 1, but nearly, are made to, and counted', async () => {
  const off = (i) => tiny(i, { policy: [0.25, i % 3 ? 0.75 : 0.755] });
  await s.upload('off', { 'a.jsonl': jsonl(Array.from({ length: 12 }, (_, i) => off(i))) });
  const spec = (more) => tinySpec({ data: { dataset: 'off', ...more }, training: { epochs: 2 } });
  const end = await s.completed((await s.submit(spec({}))).id);
  assert.equal(end.data.renormalised, 8, JSON.stringify(end.data));
  assert.match((await s.failed((await s.submit(spec({ policy_tolerance: 0.001 }))).id)).reason, /line 1 .*policy sums to 1\.005, must be 1 within 0\.001/);
});

test('DAT-04: a loss that is not finite fails the job at its step, and answers stay strict JSON', async () => {
  // The last good state is kept: a decay of lr times 1 makes each weight grow a thousandfold a step.
  await s.upload('inf', { 'a.jsonl': tinyShard(60) });
  const job = await s.submit(tinySpec({ data: { dataset: 'inf' }, training: { epochs: 4, clip_norm: 0, optimizer: { lr: 1000, weight_decay: 1 } }, runtime: { checkpoint_every: 1 } }));
  const end = await s.failed(job.id);
  assert.match(end.reason, /step \d+/);
  assert.match(end.reason, /finite|NaN/i);
  assert.equal((await s.leases(job.id)).length, 1);
  const strict = JSON.stringify(JSON.parse((await s.get(`/v1/jobs/${job.id}`)).text));
  assert.doesNotMatch(strict, /NaN|Infinity/);
  JSON.parse((await s.get(`/v1/jobs/${job.id}/metrics`)).text);
  JSON.parse((await s.get(`/v1/jobs/${job.id}/leases`)).text);
});

test('after all that the server still trains', async () => {
  await s.upload('fine', { 'a.jsonl': tinyShard(40) });
  const end = await s.completed((await s.submit(tinySpec({ data: { dataset: 'fine' } }))).id);
  assert.equal(end.progress.records, 40);
});

test('more shards than a process may open files, as shells have it: all are read', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.upload('tiny', Object.fromEntries(Array.from({ length: 300 }, (_, i) => [`${i}.jsonl`, tinyShard(2)])));
    const job = await s.submit(tinySpec({ training: { effective_batch: 100 }, runtime: { micro_batch: 100 } }));
    const r = spawnSync('bash', ['-c', 'ulimit -Sn 200 && exec "$@"', 'bash', path.join(bin, 'pawl-worker'), '--state', s.dir, '--once'],
      { env: s.env, encoding: 'utf8', timeout: 60_000 });
    assert.equal(r.status, 0, r.stderr);
    assert.equal((await s.completed(job.id)).progress.records, 600);
  });
});
