// Data that changes under a job, and data that is wrong from the start.
import test, { after, before } from 'node:test';
import assert from 'node:assert/strict';
import fs from 'node:fs';
import http from 'node:http';
import { Server, chessSpec, jsonl, tiny, tinyShard, tinySpec, withServer } from '../harness.mjs';

// ---- frozen snapshots ----

const frozen = chessSpec({ runtime: { checkpoint_every: 0, restart: { every_micro_batches: 8 } } }); // two steps a lease

async function halfWay(s, dataset = 'chess') {
  const job = await s.submit({ ...frozen, data: { dataset } });
  const w = await s.runWorker();
  assert.equal(w.code, 0, w.output);
  assert.equal((await s.leases(job.id))[0].to_step, 2);
  return job;
}
async function toTheEnd(s, id) {
  (await s.patch(`/v1/jobs/${id}`, { runtime: { restart: { every_micro_batches: 0 } } })).expect(200);
  for (;;) {
    const job = await s.job(id);
    if (['completed', 'failed'].includes(job.state)) return job;
    const w = await s.runWorker();
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
const line = (patch) => JSON.stringify({ ...tiny(5), ...patch });
const without = (key) => { const r = tiny(5); delete r[key]; return JSON.stringify(r); };
// [what, the line, field in the reason]
const badLines = [
  ['truncated JSON', line().slice(0, -9), null],
  ['not an object', '[1,2,3]', null],
  ['a bare word', 'record', null],
  ['wrong type: a string for a list', line({ x: '1,2' }), 'x'],
  ['wrong type: a fraction for an index', line({ x: [1.5] }), 'x'],
  ['wrong type: a list for a number', line({ value: [0.5] }), 'value'],
  ['missing field x', without('x'), 'x'],
  ['missing field policy', without('policy'), 'policy'],
  ['missing field value', without('value'), 'value'],
  ['index beyond vocab', line({ x: [16] }), 'x'],
  ['index beyond vocab in a row', line({ legal: [[16], [1]] }), 'legal'],
  ['negative index', line({ x: [-1] }), 'x'],
  ['NaN', line().replace(/"value":[^}]*/, '"value":NaN'), null],
  ['a row of the wrong width', line({ legal: [[1, 2], [3]] }), 'legal'],
  ['a row that is no list', line({ legal: [1, 2] }), 'legal'],
  ['no candidates', line({ legal: [], policy: [] }), 'legal'],
  ['policy of another length', line({ policy: [1] }), 'policy'],
  ['policy with a negative entry', line({ policy: [1.5, -0.5] }), 'policy'],
  ['policy not summing to 1', line({ policy: [0.4, 0.4] }), 'policy'],
  ['invalid UTF-8', Buffer.from(line({ id: '\u00ff' }), 'latin1'), null],
  ['invalid UTF-8 in an ignored field', Buffer.concat([Buffer.from('{"id":"'), Buffer.from([0xc3, 0x28]), Buffer.from(`",${line().slice(1)}`)]), null],
];

const shardWith = (bad) => {
  const head = Buffer.from(jsonl(good));
  return { bytes: Buffer.concat([head, Buffer.from(bad), Buffer.from('\n'), Buffer.from(jsonl(good))]), offset: head.length, line: good.length + 1 };
};

badLines.forEach(([what, bad, field], i) => {
  test(`a bad line fails the job with shard, line, offset and field: ${what}`, async () => {
    const { bytes, offset, line: number } = shardWith(bad);
    await s.upload(`bad${i}`, { 'ok.jsonl': tinyShard(4), 'zz.jsonl': bytes });
    const job = await s.submit(tinySpec({ data: { dataset: `bad${i}` } }));
    const end = await s.failed(job.id);
    assert.match(end.reason, /zz\.jsonl/);
    assert.match(end.reason, new RegExp(`line ${number}\\b`));
    assert.match(end.reason, new RegExp(`\\b${offset}\\b`), `offset ${offset} in: ${end.reason}`);
    if (field) assert.match(end.reason, new RegExp(`\\b${field}\\b`));
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
    assert.ok(e.detail);
  }
  assert.equal(new Set(examples.map((e) => e.line)).size, examples.length);
  assert.equal(end.progress.records, badLines.length);
  const clean = await s.submit(tinySpec({ data: { dataset: 'clean' } }));
  assert.equal((await s.completed(clean.id)).progress.records, badLines.length);
});

test('DAT-01: a byte-order mark at the start is no part of the first record; elsewhere it is an error', async () => {
  const bom = '\ufeff';
  await s.upload('bom', { 'a.jsonl': bom + jsonl([tiny(1), tiny(2)]) });
  await s.upload('nobom', { 'a.jsonl': jsonl([tiny(1), tiny(2)]) });
  assert.equal((await s.get('/v1/datasets/bom')).json.records, 2);
  const [a, b] = await Promise.all(['bom', 'nobom'].map(async (d) => s.result((await s.submit(tinySpec({ data: { dataset: d } }))).id)));
  assert.equal(a.model, b.model);
  assert.equal(a.job.progress.records, 2);
  await s.upload('bom2', { 'a.jsonl': jsonl([tiny(1)]) + bom + jsonl([tiny(2)]) });
  const end = await s.failed((await s.submit(tinySpec({ data: { dataset: 'bom2' } }))).id);
  assert.match(end.reason, /line 2\b/);
  assert.match(end.reason, new RegExp(`\\b${jsonl([tiny(1)]).length}\\b`));
  // a mark alone is an empty shard
  await s.upload('bom3', { 'a.jsonl': bom });
  const r = await s.post('/v1/jobs', tinySpec({ data: { dataset: 'bom3' } }));
  if (r.status !== 400) await s.failed(r.json.id);
  // UTF-16 is refused by name
  await s.upload('utf16', { 'a.jsonl': Buffer.from(bom + jsonl([tiny(1)]), 'utf16le') });
  assert.match((await s.failed((await s.submit(tinySpec({ data: { dataset: 'utf16' } }))).id)).reason, /UTF-?(16|8)/i);
});

test('DAT-03: a record that arrives in pieces is one record; an unfinished last line is judged as it stands', async () => {
  const u = new URL(s.url);
  const long = JSON.stringify(tiny(3, { id: 'p'.repeat(9000) }));
  const pieces = [jsonl([tiny(1)]), long.slice(0, 4096), long.slice(4096, 8192), `${long.slice(8192)}\n`, jsonl([tiny(2)]).slice(0, 20), jsonl([tiny(2)]).slice(20)];
  const answer = await new Promise((resolve, reject) => {
    const req = http.request({ method: 'PUT', path: '/v1/datasets/pieces/shards/a.jsonl', host: u.hostname, port: u.port, agent: false,
      headers: { Authorization: `Bearer ${s.token}`, 'Transfer-Encoding': 'chunked' } }, (res) => {
      res.setEncoding('utf8');
      let text = '';
      res.on('data', (d) => { text += d; });
      res.on('end', () => resolve({ status: res.statusCode, text }));
    });
    req.on('error', reject);
    // each piece once the one before it was handed to the system
    const next = (i) => (i === pieces.length ? req.end() : req.write(pieces[i], () => setImmediate(next, i + 1)));
    next(0);
  });
  assert.equal(answer.status, 201, answer.text);
  assert.equal(JSON.parse(answer.text).records, 3);
  assert.equal((await s.completed((await s.submit(tinySpec({ data: { dataset: 'pieces' } }))).id)).progress.records, 3);

  await s.upload('whole', { 'a.jsonl': jsonl([tiny(1)]) + JSON.stringify(tiny(2)) }); // no newline at the end
  assert.equal((await s.completed((await s.submit(tinySpec({ data: { dataset: 'whole' } }))).id)).progress.records, 2);
  await s.upload('cut', { 'a.jsonl': jsonl([tiny(1)]) + JSON.stringify(tiny(2)).slice(0, 25) });
  const end = await s.failed((await s.submit(tinySpec({ data: { dataset: 'cut' } }))).id);
  assert.match(end.reason, /line 2\b/);
});

test('DAT-04: NaN, infinities and numbers that overflow are refused; a tiny number is zero; answers stay strict JSON', async () => {
  const spec = (dataset) => {
    const base = tinySpec({ data: { dataset } });
    base.record.x = { kind: 'numbers', size: 1 };
    return base;
  };
  const rec = (x, value = '0.5') => `{"x":[${x}],"legal":[[1],[2]],"policy":[0.5,0.5],"value":${value}}\n`;
  let i = 0;
  for (const bad of [rec('1', 'NaN'), rec('1', '-Infinity'), rec('1e999'), rec('-1e999')]) {
    await s.upload(`nan${i}`, { 'a.jsonl': rec('1') + bad });
    const end = await s.failed((await s.submit(spec(`nan${i++}`))).id);
    assert.match(end.reason, /line 2\b/);
    assert.match(end.reason, new RegExp(`\\b${rec('1').length}\\b`));
  }
  await s.upload('small', { 'a.jsonl': rec('1') + rec('1e-400') });
  await s.upload('zero', { 'a.jsonl': rec('1') + rec('0') });
  const [a, b] = await Promise.all(['small', 'zero'].map(async (d) => s.result((await s.submit(spec(d))).id)));
  assert.equal(a.model, b.model);

  // A loss that is not finite fails the job at that step, with the last good state kept:
  // a decay of lr times 1 makes each weight grow a thousandfold a step.
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
