// Records checked as they arrive: every kind of bad line, in every form that a shard
// may be sent in, is refused with shard, line, offset and field, and nothing of it is
// kept; or it is counted.
import test, { after, before } from 'node:test';
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { Server, jsonl, sha256, tiny, tinyRecord } from '../harness.mjs';
import { badLines, forms, oddLines } from '../bad_lines.mjs';

let s;
before(async () => { s = await Server.start({ workers: 0 }); });
after(() => s?.stop());

const describe = async (dataset, more = {}) => {
  const r = await s.put(`/v1/datasets/${dataset}`, { record: tinyRecord, ...more });
  assert.ok(r.status === 201 || r.status === 200, r.text);
};
const shardsOf = async (dataset) => (await s.get(`/v1/datasets/${dataset}`)).expect(200).json.shards;
const left = () => fs.readdirSync(`${s.dir}/tmp`);

// Good ones, blank ones and other line ends before the bad line, so that line and
// offset must be right.
const head = Buffer.from(`\ufeff${jsonl([tiny(1)])}\r\n${JSON.stringify(tiny(2))}\r\n \t\n${jsonl([tiny(3)])}`);
const around = (bad) => Buffer.concat([head, Buffer.from(bad), Buffer.from('\n'), Buffer.from(jsonl([tiny(4)]))]);
const LINE = 6;

for (const [form, { name, pack }] of Object.entries(forms)) {
  test(`a bad line is refused as it arrives, and nothing is kept: ${form}`, async () => {
    const dataset = `refuse-${form}`;
    await describe(dataset);
    for (const [what, bad, field, says] of badLines) {
      const p = (await s.put(`/v1/datasets/${dataset}/shards/${name}`, pack(around(bad)))).problem(400);
      assert.equal(p.shard, name, what);
      assert.equal(p.line, LINE, what);
      assert.equal(p.offset, head.length, what);
      if (field) assert.equal(p.field, field, `${what}: ${p.detail}`);
      else if (field === '') assert.ok(!p.field, `${what}: ${p.detail}`);
      assert.match(p.detail, says, what);
      assert.match(p.detail, new RegExp(`'${name.replaceAll('.', '\\.')}', line ${LINE} \\(offset ${head.length}\\)`), what);
    }
    assert.deepEqual(await shardsOf(dataset), []);
    assert.deepEqual(left(), []);
    assert.equal(fs.existsSync(`${s.dir}/datasets/${dataset}/${name}`), false);
    // the name is free: without the bad line it is taken
    (await s.put(`/v1/datasets/${dataset}/shards/${name}`, pack(around('')))).expect(201);
  });
}

test('a bad line in an appended body is refused likewise', async () => {
  await describe('append');
  const more = { gzip: forms.gz, zstd: forms.zst };
  for (const [encoding, { pack }] of [[null, forms.plain], ...Object.entries(more)]) {
    for (const [what, bad, , says] of badLines.filter((_, i) => i % 4 === 0)) {
      const p = (await s.post('/v1/datasets/append/records', pack(around(bad)), { 'Content-Encoding': encoding, 'Content-Type': 'application/x-ndjson' })).problem(400);
      assert.deepEqual([p.line, p.offset], [LINE, head.length], what);
      assert.match(p.detail, says);
    }
  }
  assert.deepEqual(await shardsOf('append'), []);
});

test('bad lines are counted where the dataset says so, the first twenty with their reasons', async () => {
  await describe('count', { bad_records: 'skip' });
  const parts = [], want = [];
  let offset = 0;
  const add = (bytes) => { parts.push(bytes); offset += bytes.length; };
  badLines.forEach(([, bad, field], i) => {
    add(Buffer.from(jsonl([tiny(i)])));
    want.push({ line: 2 * i + 2, offset, field });
    add(Buffer.concat([Buffer.from(bad), Buffer.from(i % 2 ? '\r\n' : '\n')]));
  });
  for (const [form, { name, pack }] of Object.entries(forms).slice(0, 3)) {
    const shard = (await s.put(`/v1/datasets/count/shards/${form}-${name}`, pack(Buffer.concat(parts)))).expect(201).json;
    assert.equal(shard.records, 2 * badLines.length);
    assert.equal(shard.bad, badLines.length);
    assert.equal(shard.bad_first.length, 20);
    shard.bad_first.forEach((b, i) => {
      assert.deepEqual([b.line, b.offset], [want[i].line, want[i].offset], JSON.stringify(b));
      if (want[i].field !== null) assert.equal(b.field ?? '', want[i].field);
      assert.match(b.reason, badLines[i][3]);
    });
  }
});

test('lines that look odd and are records are taken, and kept to the byte', async () => {
  await describe('odd');
  const bytes = Buffer.from(`\ufeff${oddLines.map(([, l]) => `${l}\n`).join('\n \t\r\n')}`.trimEnd()); // no newline at its end
  for (const [form, { name, pack }] of Object.entries(forms)) {
    const shard = (await s.put(`/v1/datasets/odd/shards/${form}-${name}`, pack(bytes))).expect(201).json;
    assert.equal(shard.records, oddLines.length);
    assert.equal(shard.lines, 3 * oddLines.length - 2);
    assert.equal(shard.sha256, sha256(bytes));
    assert.deepEqual((await s.get(`/v1/datasets/odd/shards/${form}-${name}`)).expect(200).body, bytes);
  }
});

test('a line of 100 MB is refused by its length; the server does not grow by it', async () => {
  await describe('long');
  await describe('long-skip', { bad_records: 'skip' });
  const first = Buffer.from(jsonl([tiny(1)]));
  const bytes = Buffer.concat([first, Buffer.from('{"id":"'), Buffer.alloc(100_000_000, 'x'), Buffer.from('"}\n'), first]);
  const long = bytes.length - 2 * first.length - 1;
  const rss = () => Number(/VmHWM:\s+(\d+)/.exec(fs.readFileSync(`/proc/${s.pid}/status`, 'utf8'))[1]);
  const before = rss();
  for (const { name, pack } of [forms.plain, forms.zst]) {
    const body = pack(bytes);
    const p = (await s.put(`/v1/datasets/long/shards/${name}`, body)).problem(400);
    assert.deepEqual([p.shard, p.line, p.offset], [name, 2, first.length]);
    assert.match(p.detail, new RegExp(`${long} bytes; a record has at most 16777215`));
    const shard = (await s.put(`/v1/datasets/long-skip/shards/${name}`, body)).expect(201).json;
    assert.deepEqual([shard.records, shard.bad, shard.bad_first[0].line], [3, 1, 2]);
  }
  assert.ok(process.env.TEST_BIN?.includes('san') || rss() - before < 100_000, `${rss() - before} kB more`);
});

test('empty shards: nothing, blank lines, a mark alone; another kind of text is refused by name', async () => {
  await describe('empty');
  for (const [what, text] of [['nothing', ''], ['blank', '\n\r\n \t\n'], ['mark', '\ufeff']]) {
    for (const [form, { name, pack }] of Object.entries(forms)) {
      const shard = (await s.put(`/v1/datasets/empty/shards/${what}-${form}-${name}`, pack(text))).expect(201).json;
      assert.deepEqual([shard.records, shard.bytes], [0, Buffer.byteLength(text)], `${what}, ${form}`);
    }
  }
  const utf16 = Buffer.from(`\ufeff${jsonl([tiny(1)])}`, 'utf16le');
  const p = (await s.put('/v1/datasets/empty/shards/utf16.jsonl', utf16)).problem(400);
  assert.match(p.detail, /UTF-16/);
  assert.deepEqual([p.line, p.offset], [1, 0]);
});

test('what the tolerance is, the dataset says', async () => {
  const sums = (x) => jsonl([tiny(1, { policy: [0.5, x - 0.5] })]);
  await describe('strict', { policy_tolerance: 0 });
  (await s.put('/v1/datasets/strict/shards/a.jsonl', sums(1.001))).problem(400);
  (await s.put('/v1/datasets/strict/shards/a.jsonl', sums(1))).expect(201);
  await describe('loose', { policy_tolerance: 0.2 });
  (await s.put('/v1/datasets/loose/shards/a.jsonl', sums(1.19))).expect(201);
  (await s.put('/v1/datasets/loose/shards/b.jsonl', sums(1.21))).problem(400);
});
