// The same records in every form that they may come in: uploaded plain, as gzip, as
// zstd, with a seek table; or lying in a folder that the operator named. What comes of
// them is the same, to the bit; and of what is wrong with them the same is said.
import test, { after, before } from 'node:test';
import assert from 'node:assert/strict';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import zlib from 'node:zlib';
import { Server, jsonl, sha256, tiny, tinyShard, tinySpec, until } from '../harness.mjs';
import { forms as packings, oddLines, seekable, zstd } from '../bad_lines.mjs';

let s, rootDir;
before(async () => {
  rootDir = fs.mkdtempSync(path.join(os.tmpdir(), 'pawl-test-root-'));
  s = await Server.start({ workers: 1, args: ['--data-root', `here=${rootDir}`] });
});
after(async () => {
  await s?.stop();
  fs.rmSync(rootDir, { recursive: true, force: true });
});

// What to do with a text so that a job can train on it: [data of the spec, shard's name].
const uploaded = ({ name, pack }) => async (set, text) => {
  await s.upload(set, { [name]: pack(text) });
  return [{ dataset: set }, name];
};
const inPlace = ({ name, pack }) => async (set, text) => {
  fs.mkdirSync(`${rootDir}/${set}`);
  fs.writeFileSync(`${rootDir}/${set}/${name}`, pack(text));
  return [{ dataset: null, root: 'here', match: `${set}/*` }, `${set}/${name}`];
};
const forms = {
  plain: uploaded(packings.plain),
  gz: uploaded(packings.gz),
  zst: uploaded(packings.zst),
  seekable: uploaded(packings.seekable),
  'plain in place': inPlace(packings.plain),
  'gz in place': inPlace(packings.gz),
  'zst in place': inPlace(packings.zst),
  'seekable in place': inPlace(packings.seekable),
};

let sets = 0;
// A job for each form; submitted together, awaited by who asks.
async function inAllForms(text, patch = {}, only = Object.keys(forms)) {
  const jobs = [];
  for (const form of only) {
    const [data, shard] = await forms[form](`set${sets++}`, text);
    const spec = tinySpec({ ...patch, data: { ...patch.data, ...data } });
    jobs.push({ form, shard, data, job: (await s.submit(spec)).id });
  }
  return jobs;
}
async function allTrainTo(want, text, patch, only) {
  for (const { form, job } of await inAllForms(text, patch, only)) {
    const got = await s.result(job);
    assert.equal(got.model, want.model, form);
    assert.deepEqual(got.series, want.series, form);
    assert.equal(got.job.progress.records, want.job.progress.records, form);
  }
}
const FEW = ['plain', 'gz', 'zst in place'];
async function allFail(text, { line, offset, says, patch, only = FEW }) {
  for (const { form, shard, job } of await inAllForms(text, patch, only)) {
    const end = await s.failed(job);
    assert.ok(end.reason.includes(shard), `${form}: ${shard} in: ${end.reason}`);
    assert.match(end.reason, says, form);
    if (line) assert.match(end.reason, new RegExp(`line ${line}\\b.*\\b${offset}\\b`), form);
    assert.equal((await s.leases(job)).length <= 1, true, `${form}: errors of data are never tried again`);
  }
}
// What plain and clean lines come to: [model, losses].
const clean = async (records, patch) => s.result((await inAllForms(jsonl(records), patch, ['plain']))[0].job);

test('DAT-01: a byte-order mark at the start is no part of the first record; elsewhere it is an error', async () => {
  const mark = '\ufeff', two = [tiny(1), tiny(2)];
  const want = await clean(two);
  assert.equal(want.job.progress.records, 2);
  await allTrainTo(want, mark + jsonl(two));
  // the first record's offset is 3
  await allFail(`${mark}{"x":1}\n`, { line: 1, offset: 3, says: /x is 1, must be a list/ });
  const first = jsonl([tiny(1)]);
  await allFail(`${first}${mark}${jsonl([tiny(2)])}`, { line: 2, offset: first.length, says: /byte-order mark/ });
  await allFail(mark, { says: /holds no record/, only: ['plain', 'gz', 'plain in place', 'zst in place'] });
  // other encodings are refused by name
  const utf16 = Buffer.concat([Buffer.from(mark + first, 'utf16le'), Buffer.from('\n')]);
  await allFail(utf16, { says: /UTF-16/, only: ['plain', 'zst', 'gz in place'] });
});

test('DAT-02: line ends of all kinds, and blank lines, are no part of records; line numbers are those of an editor', async () => {
  const records = Array.from({ length: 6 }, (_, i) => tiny(i));
  const want = await clean(records);
  const l = records.map((r) => JSON.stringify(r));
  const text = `${l[0]}\r\n${l[1]}\n${l[2]}\n\n${l[3]}\n  \t\n${l[4]}\r\n\r\n${l[5]}`;
  await allTrainTo(want, text, {}, ['plain', 'zst']); // no newline at its end: in place it would not be data yet
  await allTrainTo(want, `${text}\n`, {}, ['gz', 'seekable', 'plain in place', 'zst in place']);
  const { shards: [shard] } = (await s.get(`/v1/datasets/set${sets - 4}`)).expect(200).json;
  assert.deepEqual([shard.lines, shard.records, shard.bytes], [9, 6, text.length + 1]);
  const inspected = (await s.get(`/v1/datasets/set${sets - 4}/inspect?whole=1`)).expect(200).json;
  assert.deepEqual([inspected.records, inspected.lines, inspected.blank], [6, 9, 3]);
  const bad = `${text}\r\n\r\nnope\r\n`;
  await allFail(bad, { line: 11, offset: bad.indexOf('nope'), says: /not a JSON object/ });
});

test('DAT-03: what still grows is read up to its last whole line; what is complete, to its end', async () => {
  const records = [tiny(1), tiny(2), tiny(3, { id: 'p'.repeat(9000) })];
  const [two, three] = [await clean(records.slice(0, 2)), await clean(records)];
  const whole = jsonl(records);
  const long = JSON.stringify(records[2]);
  // uploads are complete: an unfinished line is judged as it stands
  await allTrainTo(three, whole.trimEnd(), {}, ['gz', 'seekable']);
  await allFail(whole.slice(0, -30), { line: 3, offset: whole.length - long.length - 1, says: /truncated/, only: ['plain', 'zst'] });
  // a file in place may be written to at this moment: its last record comes in pages
  const at = whole.length - long.length - 1;
  for (const [name, pack] of [['a.jsonl', (b) => Buffer.from(b)], ['a.jsonl.gz', packings.gz.pack], ['a.jsonl.zst', packings.zst.pack]]) {
    const set = `grows-${name}`, file = `${rootDir}/${set}/${name}`;
    const spec = () => tinySpec({ data: { dataset: null, root: 'here', match: `${set}/*` } });
    fs.mkdirSync(path.dirname(file));
    for (const [upTo, want] of (name === 'a.jsonl' ? [[at, two], [at + 4096, two], [whole.length - 1, two], [whole.length, three]] : [[at + 4096, two], [whole.length, three]])) {
      fs.writeFileSync(file, pack(whole.slice(0, upTo)));
      const got = await s.result((await s.submit(spec())).id);
      assert.equal(got.model, want.model, `${name}: ${upTo} of ${whole.length} bytes`);
      assert.equal(got.job.progress.records, want.job.progress.records);
      assert.equal(got.job.data.skipped, 0);
    }
  }
});

test('DAT-04: NaN, infinities and numbers that overflow are refused; a tiny number is zero', async () => {
  const rec = (x, value = '0.5') => `{"x":[${x}],"legal":[[1],[2]],"policy":[0.5,0.5],"value":${value}}\n`;
  const numbers = { record: { x: { kind: 'numbers', dim: null, vocab: null, size: 1 } } };
  const good = rec('1');
  const bad = [[rec('1', 'NaN'), /value is NaN/], [rec('1', '-Infinity'), /value is -Infinity/], [rec('1e999'), /x\[0\] is 1e999, too large/], [rec('-1e999'), /x\[0\] is -1e999/]];
  for (const [i, [line, says]] of bad.entries())
    await allFail(good + line, { line: 2, offset: good.length, says, patch: numbers, only: i === 2 ? FEW : ['plain'] });
  const [{ job }] = await inAllForms(good + rec('0'), numbers, ['plain']);
  await allTrainTo(await s.result(job), good + rec('1e-400'), numbers, ['gz', 'zst in place']);
});

test('DAT-05: depth, keys and integers have limits, and a sentence that names them', async () => {
  const good = jsonl([tiny(1)]);
  const offset = good.length;
  const more = (text) => `{${text},${jsonl([tiny(2)]).slice(1)}`;
  await allFail(`${good}${'['.repeat(1_000_000)}\n`, { line: 2, offset, says: /not a JSON object but a list/, only: ['plain'] });
  await allFail(good + more(`"id":${'['.repeat(1_000_000)}${']'.repeat(1_000_000)}`), { line: 2, offset, says: /nested deeper than 64 levels/ });
  await allFail(good + more('"value":0.25'), { line: 2, offset, says: /key "value" is repeated/ });
  await allFail(good + more('"id":1,"id":1'), { line: 2, offset, says: /key "id" is repeated/, only: ['plain in place'] });
  await allFail(good + jsonl([tiny(2)]).replace('"x":[2', '"x":[9223372036854775808'), { line: 2, offset, says: /vocab is 16/, only: ['gz'] });
  // what is odd and right is no record of another kind
  const odd = oddLines.map(([, l]) => l.trim());
  const plain = await s.result((await inAllForms(`${odd.join('\n')}\n`, {}, ['plain']))[0].job);
  assert.equal(plain.job.progress.records, odd.length);
  await allTrainTo(plain, `\ufeff${odd.join('\r\n \n')}\n`, {}, FEW);
  // specs: a seed comes back as it was, or is refused; a repeated key is named
  const seed = (n) => JSON.stringify(tinySpec({ data: { dataset: 'set0' } })).replace('"seed":3', `"seed":${n}`);
  const json = { 'Content-Type': 'application/json' };
  const job = (await s.post('/v1/jobs', seed('9007199254740991'), json)).expect(201).json;
  assert.match((await s.get(`/v1/jobs/${job.id}`)).text, /"seed":\s*9007199254740991/);
  for (const n of ['9007199254740993', '9223372036854775808'])
    (await s.post('/v1/jobs', seed(n), json)).problem(400, n.startsWith('900') ? '/training/seed' : undefined);
  const twice = JSON.stringify(tinySpec({ data: { dataset: 'set0' } })).replace('"lr":0.01', '"lr":0.1,"lr":10');
  assert.match((await s.post('/v1/jobs', twice, json)).problem(400).detail, /"?lr"?/);
});

test('DAT-06: all members and frames of a compressed file are read, whatever else stands between them', async () => {
  const records = Array.from({ length: 5 }, (_, i) => tiny(i));
  const want = await clean(records);
  const [a, b] = [jsonl(records.slice(0, 3)), jsonl(records.slice(3))];
  const skippable = Buffer.from('\x53\x2a\x4d\x18\x04\0\0\0skip', 'latin1');
  const files = {
    'two.jsonl.gz': Buffer.concat([zlib.gzipSync(a), zlib.gzipSync(''), zlib.gzipSync(b)]),
    'cut within a line.jsonl.gz': Buffer.concat([zlib.gzipSync(a.slice(0, 50)), zlib.gzipSync(a.slice(50) + b)]),
    'two.jsonl.zst': Buffer.concat([skippable, zstd(a, '--check'), zstd(''), skippable, zstd(b, '--no-check'), skippable]),
    'table.jsonl.zst': seekable(a + b, 60),
    'table and more.jsonl.zst': Buffer.concat([seekable(a, 60), zstd(b)]),
  };
  const jobs = [];
  for (const [name, bytes] of Object.entries(files)) {
    const shard = name.replaceAll(' ', '-');
    const made = (await s.put(`/v1/datasets/members-${shard}/shards/${shard}`, bytes)).expect(201).json;
    assert.deepEqual([made.records, made.bytes, made.sha256], [5, a.length + b.length, sha256(a + b)], name);
    jobs.push([`${name}, uploaded`, { dataset: `members-${shard}` }]);
    fs.mkdirSync(`${rootDir}/members-${shard}`);
    fs.writeFileSync(`${rootDir}/members-${shard}/${shard}`, bytes);
    jobs.push([`${name}, in place`, { dataset: null, root: 'here', match: `members-${shard}/*` }]);
  }
  for (const j of jobs) j.id = (await s.submit(tinySpec({ data: j[1] }))).id;
  for (const j of jobs) {
    const got = await s.result(j.id);
    assert.equal(got.model, want.model, j[0]);
    assert.equal(got.job.progress.records, 5, j[0]);
  }

  // a name that hides it, a name that lies, a stream that is cut, damaged, or goes on as something else
  const gz = zlib.gzipSync(a), zs = zstd(a, '--check');
  const hurt = (bytes) => { const copy = Buffer.from(bytes); copy[copy.length >> 1] ^= 1; return copy; };
  for (const [name, bytes, status, says, reason] of [
    ['a.jsonl', gz, 415, /\.jsonl\.gz, or send 'Content-Encoding: gzip'/, null], ['a.jsonl', zs, 415, /\.jsonl\.zst, or send 'Content-Encoding: zstd'/, null],
    ['a.jsonl.gz', Buffer.from(a), 400, /says that it is gzip-compressed, and its bytes are not/, /named \.gz, but is not/], ['a.jsonl.zst', gz, 400, /says that it is zstd-compressed, and its bytes are not/, /named \.zst, but is not/],
    ['a.jsonl.gz', gz.subarray(0, -9), 400, /cut short/, /cut short/], ['a.jsonl.zst', zs.subarray(0, -5), 400, /cut short/, /cut short/],
    ['a.jsonl.gz', hurt(gz), 400, /damaged at compressed byte \d+/, /damaged/], ['a.jsonl.zst', hurt(zs), 400, /damaged at compressed byte \d+/, /damaged/],
    ['a.jsonl.gz', Buffer.concat([gz, Buffer.from('more')]), 400, /compressed byte \d+/, /compressed byte \d+/],
  ]) {
    const set = `wrong${sets++}`;
    assert.match((await s.put(`/v1/datasets/${set}/shards/${name}`, bytes)).problem(status).detail, says);
    fs.mkdirSync(`${rootDir}/${set}`);
    fs.writeFileSync(`${rootDir}/${set}/${name}`, bytes);
    const job = await s.submit(tinySpec({ data: { dataset: null, root: 'here', match: `${set}/*` } }));
    if (!reason) { // a file that lies there is read as what it is
      assert.equal((await s.completed(job.id)).progress.records, 3, name);
      continue;
    }
    const why = (await s.failed(job.id)).reason;
    assert.match(why, reason, `${name} in place, instead of ${status}`);
    assert.ok(why.includes(`'${set}/${name}'`), why);
  }
});

test('DAT-08: no records at all, fewer than a batch, one more than a batch', async () => {
  const batch = { training: { effective_batch: 32 }, runtime: { micro_batch: 8 } };
  for (const text of ['', '\n\n\n', '\ufeff'])
    await allFail(text, { says: /holds no record/, patch: batch, only: ['plain', 'gz', 'zst', 'plain in place', 'gz in place'] });
  for (const [n, steps] of [[1, 1], [33, 2]]) {
    for (const { form, job } of await inAllForms(tinyShard(n), batch, FEW)) {
      const began = Date.now();
      const end = await s.completed(job);
      assert.deepEqual([end.progress.step, end.progress.steps, end.progress.records], [steps, steps, n], form);
      assert.ok(Date.now() - began < 30_000);
    }
  }
});

test('what a name stands for: the same text again under it is no other shard, whatever it is packed in', async () => {
  const text = tinyShard(20);
  await s.upload('again', { 'a.jsonl.gz': zlib.gzipSync(text) });
  (await s.put('/v1/datasets/again/shards/a.jsonl.gz', zlib.gzipSync(text, { level: 1 }))).expect(200);
  (await s.put('/v1/datasets/again/shards/a.jsonl.gz', zlib.gzipSync(tinyShard(21)))).problem(409);
  assert.equal((await s.get('/v1/datasets/again/shards/a.jsonl.gz')).expect(200).text, text);
});
