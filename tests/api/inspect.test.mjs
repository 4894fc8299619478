// A look at a dataset, beside a count of its own: records, bad lines, lengths,
// shapes, duplicates, sums, and what the advised paddings waste.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import { test } from 'node:test';
import zlib from 'node:zlib';
import { chessShards, chessSpec, randomSource, until, withServer } from '../harness.mjs';

const quiet = (body) => withServer({ workers: 0 }, body);
const inspect = async (server, name, query = 'whole=1') =>
  (await server.get(`/v1/datasets/${name}/inspect${query && `?${query}`}`)).expect(200).json;

// ---- a count of its own ------------------------------------------------------

// Lines of a shard, with where they stand: {text, raw (bytes), line, offset}.
function linesOf(bytes) {
  const all = [];
  let offset = bytes.subarray(0, 3).equals(Buffer.from([0xef, 0xbb, 0xbf])) ? 3 : 0;
  for (let line = 1; offset < bytes.length; line++) {
    let end = bytes.indexOf(10, offset);
    if (end < 0) end = bytes.length;
    const raw = bytes.subarray(offset, end);
    all.push({ raw, text: raw.toString('utf8'), line, offset });
    offset = end + 1;
  }
  return all;
}

// The lengths of one record: by dimension, or by list.
function lengthsOf(record, description) {
  const lengths = {};
  for (const [name, value] of Object.entries(record)) {
    const field = description?.[name];
    if (!description && Array.isArray(value)) lengths[name] = value.length;
    if (field?.dim) lengths[field.dim] = value.length;
  }
  return lengths;
}

// A bad line is one that JSON does not read, is no object, or that `bad` names.
function count(shards, { description, bad = () => false } = {}) {
  const c = { lines: 0, records: 0, bad: [], shapes: new Set(), lengths: {}, good: [], value: [], policy: [], duplicates: [] };
  const seen = new Map();
  for (const [shard, bytes] of Object.entries(shards).sort(([a], [b]) => (a < b ? -1 : 1))) {
    for (const { raw, text, line, offset } of linesOf(Buffer.from(bytes))) {
      c.lines++;
      if (/^[ \t\r]*$/.test(text)) continue;
      c.records++;
      const place = { shard, line, offset };
      const key = raw.toString('latin1');
      if (seen.has(key)) c.duplicates.push({ ...place, same_as: seen.get(key) });
      else seen.set(key, place);
      let record;
      try {
        record = JSON.parse(text);
      } catch { /* bad */ }
      if (record === null || typeof record !== 'object' || Array.isArray(record) || bad(record)) {
        c.bad.push(place);
        continue;
      }
      const lengths = lengthsOf(record, description);
      c.good.push(lengths);
      c.shapes.add(JSON.stringify(Object.entries(lengths).sort()));
      for (const [dim, n] of Object.entries(lengths)) (c.lengths[dim] ??= []).push(n);
      if (typeof record.value === 'number') c.value.push(record.value);
      if (Array.isArray(record.policy)) c.policy.push(record.policy.reduce((a, b) => a + b, 0));
    }
  }
  for (const v of Object.values(c.lengths)) v.sort((a, b) => a - b);
  return c;
}

const sum = (v) => v.reduce((a, b) => a + b, 0);
const close = (a, b, what, within = 1e-9) =>
  assert.ok(Math.abs(a - b) <= within * Math.max(1, Math.abs(b)), `${what}: ${a}, counted ${b}`);
const percentile = (sorted, f) => sorted[Math.max(0, Math.ceil(f * sorted.length - 1e-9) - 1)];

function assertCounted(got, c, { described }) {
  assert.equal(got.complete, true);
  assert.equal(got.records, c.records);
  assert.equal(got.lines, c.lines);
  assert.equal(got.blank, c.lines - c.records);
  assert.equal(got.bad.count, c.bad.length);
  assert.deepEqual(got.bad.first.map(({ shard, line, offset }) => ({ shard, line, offset })), c.bad.slice(0, 20));
  assert.equal(got.shapes, c.shapes.size);
  assert.equal(got.duplicates.records, c.duplicates.length);
  assert.deepEqual(got.duplicates.first, c.duplicates.slice(0, 20));
  assert.deepEqual(Object.keys(got.dims).sort(), Object.keys(c.lengths).sort());
  for (const [dim, sorted] of Object.entries(c.lengths)) {
    const d = got.dims[dim];
    assert.equal(d.records, sorted.length, dim);
    assert.equal(d.min, sorted[0], dim);
    assert.equal(d.max, sorted.at(-1), dim);
    close(d.mean, sum(sorted) / sorted.length, dim);
    for (const p of [50, 90, 99, 100]) assert.equal(d[`p${p}`], percentile(sorted, p / 100), `${dim} p${p}`);
    const bars = new Map();
    for (const n of sorted) bars.set(n, (bars.get(n) ?? 0) + 1);
    assert.deepEqual(d.histogram, [...bars], dim);
  }
  if (!described) return;
  if (c.value.length) {
    assert.equal(got.value.records, c.value.length);
    close(got.value.sum, sum(c.value), 'values', 1e-6);
    close(got.value.min, Math.min(...c.value), 'least value', 1e-6);
    close(got.value.max, Math.max(...c.value), 'greatest value', 1e-6);
  }
  close(got.policy.sum, sum(c.policy), 'policies');
  assert.equal(got.policy.off, c.policy.filter((s) => Math.abs(s - 1) > 1e-6).length);
  close(Math.abs(got.policy.worst.sum - 1), Math.max(...c.policy.map((s) => Math.abs(s - 1))), 'the worst policy');
}

// Batches of `batch` records: many in random orders, few drawn at random.
function* batches(good, batch, random) {
  if (good.length < 500) {
    for (let i = 0; i < 20_000; i++) yield Array.from({ length: batch }, () => good[Math.floor(random() * good.length)]);
    return;
  }
  for (let round = 0; round < 12; round++) {
    const order = good.map((lengths) => [random(), lengths]).sort((a, b) => a[0] - b[0]).map((e) => e[1]);
    for (let i = 0; i < order.length; i += batch) yield order.slice(i, i + batch);
  }
}

// What a padding wastes of these records.
function wasted(good, weights, padding, batch, random) {
  let held = 0, padded = 0;
  for (const some of batches(good, batch, random)) {
    for (const [dim, weight] of Object.entries(weights)) {
      const lengths = some.map((l) => l[dim]).filter((n) => n !== undefined);
      const longest = Math.max(1, ...lengths);
      const size = padding === null ? longest
        : padding.mode === 'stable' ? Math.max(longest, padding.minimum[dim])
          : padding.sizes[dim].find((s) => s >= longest) ?? longest;
      held += weight * sum(lengths);
      padded += weight * lengths.length * size;
    }
  }
  return 1 - held / padded;
}

function assertAdvice(advice, c, weights, random) {
  const pieces = [['dynamic', { waste: advice.dynamic.waste, padding: null }],
    ...Object.entries(advice.stable), ...Object.entries(advice.ladder)];
  assert.deepEqual(pieces.map(([name]) => name), ['dynamic', 'p99', 'p100', '4', '8', '16']);
  for (const [name, { waste, padding }] of pieces)
    close(waste, wasted(c.good, weights, padding, advice.micro_batch, random), `waste of ${name}`, 0.012);
  for (const [dim, sorted] of Object.entries(c.lengths)) {
    assert.equal(advice.stable.p99.padding.minimum[dim], Math.max(1, percentile(sorted, 0.99)));
    assert.equal(advice.stable.p100.padding.minimum[dim], Math.max(1, sorted.at(-1)));
    for (const k of [4, 8, 16]) {
      const sizes = advice.ladder[k].padding.sizes[dim];
      assert.ok(sizes.length <= k && sizes.at(-1) === Math.max(1, sorted.at(-1)), `${dim}: ${sizes}`);
    }
  }
  assert.ok(advice.stable.p100.waste >= advice.ladder[4].waste && advice.ladder[4].waste >= advice.ladder[8].waste
    && advice.ladder[8].waste >= advice.ladder[16].waste && advice.ladder[16].waste >= advice.dynamic.waste);
}

// ---- chess -------------------------------------------------------------------

test('the chess records: described by the dataset, by a job, and by nothing', (t) => quiet(async (server) => {
  const random = randomSource(t);
  const shards = chessShards({ shards: 4 });
  await server.uploadChess();
  const { record } = chessSpec();

  const plain = await inspect(server, 'chess');
  assert.equal(plain.described_by, null);
  const bare = count(shards);
  assertCounted(plain, bare, { described: false });
  assertAdvice(plain.advice, bare, Object.fromEntries(Object.keys(bare.lengths).map((d) => [d, 1])), random);
  assert.equal(plain.fields.value.kind, 'number');
  assert.equal(plain.fields.id.kind, 'string');
  for (const [name, v] of Object.entries(bare.lengths)) assert.equal(plain.fields[name].max, v.at(-1));

  const job = await server.submit(chessSpec({ runtime: { micro_batch: 8 } }));
  const byJob = await inspect(server, 'chess', `whole=1&job=${job.id}`);
  assert.equal(byJob.described_by, 'job');
  const c = count(shards, { description: record });
  assertCounted(byJob, c, { described: true });
  assert.equal(byJob.advice.micro_batch, 8);
  const weights = { S: 1, O: 1, H: 1, A: 2 };
  assertAdvice(byJob.advice, c, weights, random);
  assert.equal(byJob.fields.policy.max, c.lengths.A.at(-1));
  assert.equal(byJob.fields.state.dim, 'S');

  (await server.put('/v1/datasets/chess', { record })).expect(200);
  const byDataset = await inspect(server, 'chess');
  assert.equal(byDataset.described_by, 'dataset');
  assertCounted(byDataset, c, { described: true });
  assert.equal(byDataset.advice.micro_batch, 16);
  assertAdvice(byDataset.advice, c, weights, random);

  // What is advised can be pasted as it stands.
  for (const { padding } of [...Object.values(byDataset.advice.stable), ...Object.values(byDataset.advice.ladder)]) {
    const r = await server.post('/v1/jobs?dry_run=1', chessSpec({ runtime: { padding } }));
    r.expect(200);
  }
}));

// ---- odd data ----------------------------------------------------------------

const description = {
  t: { kind: 'tokens', dim: 'S', vocab: 100 },
  moves: { kind: 'rows', dim: 'A', columns: [{ vocab: 9 }] },
  policy: { kind: 'target', over: 'moves', loss: 'cross_entropy' },
  value: { kind: 'target', loss: 'mse' },
};
const list = (n, of = 1) => Array(n).fill(of);
const made = (s, a, more = {}) => JSON.stringify({ t: list(s), moves: list(a, [1]), policy: [1, ...list(a - 1, 0)], value: 0.5, ...more });

const odd = {
  'bom.jsonl': Buffer.concat([Buffer.from([0xef, 0xbb, 0xbf]), Buffer.from(`${made(3, 2)}\r\n\r\n \t \n${made(4, 2)}\n${made(3, 2)}`)]),
  'empty.jsonl': Buffer.alloc(0),
  'blank.jsonl': Buffer.from('\n\r\n   \n'),
  'mixed.jsonl': Buffer.from([
    made(5, 1), made(5, 1), '{"t":[1]}', '{"t":[1,', 'null', '[1,2]', '"text"', made(2, 3, { policy: [0.5, 0.25, 0.25], more: { deep: [1, 2] } }),
    made(1, 1, { t: [100] }), made(1, 1, { policy: [0.5] }), made(1, 2, { policy: [0.5, 0.495] }), made(70, 40, { value: -1 }), made(5, 1),
  ].join('\n')),
  'packed.jsonl.gz': Buffer.from(`${made(7, 7)}\n${made(5, 1)}\n${made(0, 4)}\n`),
};
// What the description refuses of those that are JSON objects.
const refused = (r) => r.value === undefined || r.t?.[0] === 100 || Math.abs(sum(r.policy) - 1) > 0.01 + 1e-9;

test('odd shards: marks, CRLF, blanks, bad lines, mixed records, nothing at all, compressed', (t) => quiet(async (server) => {
  const random = randomSource(t);
  for (const [name, text] of Object.entries(odd))
    (await server.put(`/v1/datasets/odd/shards/${name}`, name.endsWith('.gz') ? zlib.gzipSync(text) : text,
      { 'Content-Type': 'application/x-ndjson' })).expect(201);
  const bare = count(odd);
  assertCounted(await inspect(server, 'odd'), bare, { described: false });

  const spec = chessSpec({ name: 'odd' });
  const job = await server.submit({ ...spec, record: description, data: { dataset: 'odd' }, model: { d_model: 16, layers: 1, heads: 2, ff: 16 },
    training: { effective_batch: 4, losses: {} }, runtime: { micro_batch: 4 } });
  const c = count(odd, { description, bad: refused });
  const got = await inspect(server, 'odd', `whole=1&job=${job.id}`);
  assertCounted(got, c, { described: true });
  assertAdvice(got.advice, c, { S: 1, A: 2 }, random);
  const reasons = got.bad.first.map((b) => [b.shard, b.line, b.field, b.reason]);
  assert.deepEqual(reasons.map((r) => r.slice(0, 2)), [3, 4, 5, 6, 7, 9, 10].map((line) => ['mixed.jsonl', line]));
  for (const [line, field, reason] of [[3, 'moves', /no field/], [4, '', /truncated|ends within/], [5, '', /not a JSON object/],
    [6, '', /a list/], [7, '', /a string/], [9, 't', /vocab is 100/], [10, 'policy', /sums to 0\.5, must be 1 within 0\.01/]]) {
    const found = reasons.find((r) => r[1] === line);
    assert.match(found[3], reason);
    assert.ok(field === '' || found[2] === field || line === 3, `${line}: ${found[2]}`);
  }
  // By length: the one that is far longer than all others.
  assert.deepEqual(got.outliers.filter((o) => o.length >= 40).map(({ dim, length, shard, line }) => [dim, length, shard, line]).sort(),
    [['A', 40, 'mixed.jsonl', 12], ['S', 70, 'mixed.jsonl', 12]]);
}));

test('a dataset without records, and one that is not there', () => quiet(async (server) => {
  await server.upload('none', { 'empty.jsonl': '\n\n' });
  const got = await inspect(server, 'none');
  assert.deepEqual([got.records, got.lines, got.shapes, got.duplicates.records, got.advice], [0, 2, 0, 0, null]);
  (await server.get('/v1/datasets/none/inspect', { Accept: 'text/plain' })).expect(200);
  (await server.put('/v1/datasets/bare', { record: description })).expect(201);
  for (const query of ['', 'whole=1']) {
    const bare = await inspect(server, 'bare', query);
    assert.deepEqual([bare.complete, bare.shards, bare.records, bare.dims.S.histogram, bare.value, bare.advice], [true, 0, 0, [], null, null]);
  }
  (await server.get('/v1/datasets/other/inspect')).problem(404);
  assert.equal((await server.get('/v1/datasets/none/inspect?whole=2')).problem(400).parameter, 'whole');
  assert.equal((await server.get('/v1/datasets/none/inspect?wait=61')).problem(400).parameter, 'wait');
  assert.equal((await server.get('/v1/datasets/none/inspect?job=7')).problem(400).parameter, 'job');
  (await server.get('/v1/datasets/none/inspect?what=1')).problem(400);
}));

// ---- more than a sample --------------------------------------------------------

const numbered = (from, to, width) => Array.from({ length: to - from }, (_, i) =>
  `{"n":${from + i},"a":[${list((from + i) % 7, 1)}],"text":"${'x'.repeat(width)}"}\n`).join('');

test('a sample by default; all of it when asked for, kept, and counted anew when the dataset grows', () => quiet(async (server) => {
  const shards = Object.fromEntries(Array.from({ length: 10 }, (_, i) => [`s${i}.jsonl`, numbered(i * 2000, i * 2000 + 2010, 600)]));
  await server.upload('many', shards);
  const total = sum(Object.values(shards).map((s) => s.length));
  const sample = await inspect(server, 'many', '');
  assert.equal(sample.complete, false);
  assert.equal(sample.duplicates, null);
  assert.deepEqual(sample.sampled.of, { shards: 10, bytes: total, records: 20100 });
  assert.equal(sample.sampled.shards, 8);
  assert.ok(sample.sampled.bytes <= 8 << 20 && sample.records > 5000 && sample.records < 20100);
  assert.equal(sample.dims.a.max, 6);
  assert.equal(sample.shapes, 7);

  const c = count(shards);
  assert.equal(c.duplicates.length, 90, 'the last ten of each shard are the first of the next one');
  const got = await inspect(server, 'many');
  assertCounted(got, c, { described: false });
  assert.match(got.counted_at, /Z$/);
  assert.deepEqual(await inspect(server, 'many', ''), got, 'who just looks gets what is known');

  // It outlives the server.
  await server.kill9();
  await server.launch();
  assert.deepEqual(await inspect(server, 'many', ''), got);

  shards['t.jsonl'] = numbered(0, 5, 600);
  await server.upload('many', { 't.jsonl': shards['t.jsonl'] });
  assert.equal((await inspect(server, 'many', '')).complete, false);
  assertCounted(await inspect(server, 'many'), count(shards), { described: false });

  // A missing index is made again, a damaged one too.
  const indexes = fs.readdirSync(`${server.dir}/index`).map((f) => `${server.dir}/index/${f}`);
  fs.rmSync(indexes[0]);
  fs.truncateSync(indexes[1], 100);
  shards['u.jsonl'] = numbered(0, 3, 600);
  await server.upload('many', { 'u.jsonl': shards['u.jsonl'] });
  assertCounted(await inspect(server, 'many'), count(shards), { described: false });
  assert.ok(fs.existsSync(indexes[0]) && fs.statSync(indexes[1]).size > 100);

  // Bytes that are not those that were uploaded are no records to count.
  fs.rmSync(indexes[0]);
  const fd = fs.openSync(`${server.dir}/datasets/many/s3.jsonl`, 'r+');
  fs.writeSync(fd, 'Y', 400_000);
  fs.closeSync(fd);
  for (const f of indexes) fs.rmSync(f, { force: true });
  await server.upload('many', { 'v.jsonl': numbered(0, 1, 600) });
  const problem = (await server.get('/v1/datasets/many/inspect?whole=1')).problem(409);
  assert.deepEqual([problem.code, problem.shard], ['data', 's3.jsonl']);
  assert.match(problem.detail, /another SHA-256/);
}));

// The most memory that a process has had since now.
const peakFromNow = (pid) => fs.writeFileSync(`/proc/${pid}/clear_refs`, '5');
const peakMb = (pid) => Number(/VmHWM:\s+(\d+) kB/.exec(fs.readFileSync(`/proc/${pid}/status`, 'utf8'))[1]) / 1024;
const rssMb = (pid) => Number(/VmRSS:\s+(\d+) kB/.exec(fs.readFileSync(`/proc/${pid}/status`, 'utf8'))[1]) / 1024;

test('a long count says how far it is, does not stand in the way, and stays small', () => quiet(async (server) => {
  const one = numbered(0, 30_000, 80); // 3.5 MB
  await server.upload('large', Object.fromEntries(Array.from({ length: 16 }, (_, i) =>
    [`s${i}.jsonl`, one.replaceAll('{"n":', `{"n":${i + 1}`)])));
  await server.upload('small', { 'a.jsonl': numbered(0, 100, 10) });
  const before = rssMb(server.pid);
  peakFromNow(server.pid);
  const first = (await server.get('/v1/datasets/large/inspect?whole=1&wait=0')).expect(202).json;
  assert.equal(first.complete, false);
  assert.ok(first.progress.of_bytes > 16 * one.length && first.progress.fraction < 1, JSON.stringify(first));
  // Meanwhile a sample of it is there at once, and so is all else.
  const sample = await inspect(server, 'large', '');
  assert.equal(sample.records > 0, true);
  assert.equal((await inspect(server, 'small', '')).records, 100);
  const fractions = [];
  const whole = await until('the count', async () => {
    const r = await server.get('/v1/datasets/large/inspect?whole=1&wait=0');
    if (r.status === 202) fractions.push(r.json.progress.fraction);
    return r.status === 200 && r.json;
  });
  for (let i = 1; i < fractions.length; i++) assert.ok(fractions[i] >= fractions[i - 1], `${fractions}`);
  assert.equal(whole.records, 16 * 30_000);
  assert.equal(whole.shapes, 7);
  assert.equal(whole.duplicates.records, 0);
  const grown = peakMb(server.pid) - before;
  // A sanitizer keeps what was freed.
  const plain = !/lib[at]san/.test(fs.readFileSync(`/proc/${server.pid}/maps`, 'utf8'));
  assert.ok(grown < 64 || !plain, `${Math.round(grown)} MB more for ${Math.round(16 * one.length / 2 ** 20)} MB of records`);
}));

// ---- text ----------------------------------------------------------------------

test('as text it is tables, and a padding that can be pasted', () => quiet(async (server) => {
  await server.uploadChess();
  const job = await server.submit(chessSpec());
  const text = (await server.get(`/v1/datasets/chess/inspect?whole=1&as=text&job=${job.id}`)).expect(200).text;
  const { advice } = await inspect(server, 'chess', `whole=1&job=${job.id}`);
  for (const { padding } of [...Object.values(advice.stable), ...Object.values(advice.ladder)])
    assert.ok(text.includes(JSON.stringify(padding)), text);
  assert.match(text, /^ *dim +.*p99/m);
  assert.ok(!text.includes('histogram'), text);
  assert.ok(text.split('\n').length < 120, text);
}));

test('a zstd file is counted as the text it holds', { skip: !zstdThere() && 'no zstd' }, () => quiet(async (server) => {
  const text = numbered(0, 3000, 50);
  const packed = execFileSync('zstd', ['-c', '-q'], { input: text, maxBuffer: 1 << 26 });
  (await server.put('/v1/datasets/z/shards/a.jsonl.zst', packed, { 'Content-Type': 'application/x-ndjson' })).expect(201);
  assertCounted(await inspect(server, 'z'), count({ 'a.jsonl.zst': text }), { described: false });
}));

function zstdThere() {
  try {
    execFileSync('zstd', ['--version'], { stdio: 'ignore' });
    return true;
  } catch {
    return false;
  }
}
