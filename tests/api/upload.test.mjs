// Uploads: in any form, checked as they arrive, broken off and gone on with.
import test, { after, before } from 'node:test';
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import fs from 'node:fs';
import http from 'node:http';
import path from 'node:path';
import zlib from 'node:zlib';
import { Server, jsonl, scratch, sha256, smallDisk, tiny, tinyRecord, tinyShard, tinySpec, until, withServer } from '../harness.mjs';

let s;
before(async () => { s = await Server.start({ workers: 0 }); });
after(() => s.stop());

const auth = (server = s) => ({ Authorization: `Bearer ${server.token}` });
const shards = (dataset, server = s) => (fs.existsSync(`${server.dir}/datasets/${dataset}`) ? fs.readdirSync(`${server.dir}/datasets/${dataset}`).sort() : []);
const indexes = (server = s) => (fs.existsSync(`${server.dir}/index`) ? fs.readdirSync(`${server.dir}/index`) : []);
const tmp = (server = s) => fs.readdirSync(`${server.dir}/tmp`);
// An answer may come a moment before what it let go of is gone.
const clean = (server = s) => until('the temporary files to go', () => tmp(server).length === 0);
const digest = (data) => `sha-256=:${createHash('sha256').update(data).digest('base64')}:`;

function zstd(text, ...args) {
  const r = spawnSync('zstd', ['-q', '-c', ...args], { input: text, maxBuffer: 1 << 28 });
  assert.equal(r.status, 0, String(r.stderr));
  return r.stdout;
}
function seekable(text, frame) {
  const parts = [], table = Buffer.alloc(8 * Math.ceil(text.length / frame));
  for (let i = 0; i * frame < text.length; i++) {
    const piece = text.subarray(i * frame, (i + 1) * frame);
    parts.push(zstd(piece));
    table.writeUInt32LE(parts[i].length, 8 * i);
    table.writeUInt32LE(piece.length, 8 * i + 4);
  }
  const head = Buffer.alloc(8), foot = Buffer.alloc(9);
  head.writeUInt32LE(0x184d2a5e, 0);
  head.writeUInt32LE(table.length + 9, 4);
  foot.writeUInt32LE(parts.length, 0);
  foot.writeUInt32LE(0x8f92eab1, 5);
  return Buffer.concat([...parts, head, table, foot]);
}

// Send `first` bytes of a body that is announced whole, and hang up.
function breakOff(server, target, body, first, headers = {}) {
  const u = new URL(server.url);
  return new Promise((done) => {
    const req = http.request({ method: 'PUT', path: target, host: u.hostname, port: u.port, agent: false,
      headers: { ...auth(server), 'Content-Length': body.length, ...headers } });
    req.on('error', () => done());
    req.on('close', () => done());
    req.write(body.subarray(0, first), () => setImmediate(() => req.destroy()));
  });
}
const offset = async (target, server = s) => {
  const r = await server.request('HEAD', target);
  assert.equal(r.status, 404);
  return Number(r.headers['upload-offset']);
};
// So many whole MiB of it came, and are kept.
const kept = (target, bytes, server = s) => until(`${bytes} bytes to be kept`, async () => (await offset(target, server)) === bytes);

test('a shard is its text, however it was sent', async () => {
  const text = Buffer.from(tinyShard(60_000)); // 5 MB: blocks and frames of both kinds
  const gz = zlib.gzipSync(text), zst = zstd(text), frames = seekable(text, 700_000);
  const ways = {
    'plain.jsonl': [text, {}, 'plain'],
    'name.jsonl.gz': [gz, {}, 'zstd'],
    'name.jsonl.zst': [zst, {}, 'zstd'],
    'frames.jsonl.zst': [frames, {}, 'zstd'],
    'header-gzip.jsonl': [gz, { 'Content-Encoding': 'gzip' }, 'zstd'],
    'header-zstd.jsonl': [zst, { 'Content-Encoding': 'zstd' }, 'zstd'],
    'both.jsonl.gz': [gz, { 'Content-Encoding': 'gzip' }, 'zstd'],
    'identity.jsonl': [text, { 'Content-Encoding': 'identity' }, 'plain'],
  };
  for (const [name, [bytes, headers, form]] of Object.entries(ways)) {
    const target = `/v1/datasets/forms/shards/${name}`;
    const made = (await s.put(target, bytes, headers)).expect(201).json;
    assert.deepEqual([made.bytes, made.records, made.lines, made.sha256, made.form],
      [text.length, 60_000, 60_000, sha256(text), form], name);
    assert.equal(made.stored_bytes, fs.statSync(`${s.dir}/datasets/forms/${name}`).size, name);
    const got = (await s.get(target)).expect(200);
    assert.ok(got.body.equals(text), `${name}: the text comes back`);
    assert.equal(got.headers.etag, `"${sha256(text)}"`);
    for (const [a, b] of [[0, 0], [1048570, 1048590], [3_000_000, 4_200_000], [text.length - 5, text.length - 1]]) {
      const part = (await s.get(target, { Range: `bytes=${a}-${b}` })).expect(206);
      assert.ok(part.body.equals(text.subarray(a, b + 1)), `${name}: ${a} to ${b}`);
      assert.equal(part.headers['content-range'], `bytes ${a}-${b}/${text.length}`);
    }
    // the same text again, sent otherwise
    for (const [other, more] of [[text, {}], [gz, { 'Content-Encoding': 'gzip' }], [zst, { 'Content-Encoding': 'zstd' }]])
      if (!/\.(gz|zst)$/.test(name) || more['Content-Encoding']) (await s.put(target, other, more)).expect(200);
    (await s.put(target, zlib.gzipSync(text.subarray(0, 1000)), { 'Content-Encoding': 'gzip' })).problem(409);
    assert.ok((await s.get(target)).body.equals(text), `${name}: and stays`);
  }
  assert.ok(fs.readFileSync(`${s.dir}/datasets/forms/frames.jsonl.zst`).equals(frames), 'frames that fit are kept as they came');
  for (const name of ['name.jsonl.gz', 'name.jsonl.zst']) { // what is stored is plain zstd to others
    const r = spawnSync('zstd', ['-q', '-d', '-c', '--stdout'], { input: fs.readFileSync(`${s.dir}/datasets/forms/${name}`), maxBuffer: 1 << 28 });
    assert.ok(r.stdout.equals(text), name);
  }
  assert.deepEqual(indexes().filter((f) => f === sha256(text)), [sha256(text)], 'one index for them all');
  const m = (await s.get('/v1/datasets/forms')).expect(200).json;
  assert.deepEqual([m.bytes, m.records], [8 * text.length, 8 * 60_000]);
  assert.equal(m.stored_bytes, m.shards.reduce((sum, x) => sum + x.stored_bytes, 0));
  await clean();
});

test('all members and frames are read', async () => {
  const a = tinyShard(3), b = tinyShard(2);
  const two = Buffer.concat([zlib.gzipSync(a), zlib.gzipSync(b)]);
  assert.equal((await s.put('/v1/datasets/members/shards/a.jsonl.gz', two)).expect(201).json.records, 5);
  const frames = Buffer.concat([zstd(a), zstd(b)]);
  assert.equal((await s.put('/v1/datasets/members/shards/a.jsonl.zst', frames)).expect(201).json.records, 5);
  assert.equal((await s.get('/v1/datasets/members/shards/a.jsonl.gz')).text, a + b);
  assert.equal((await s.get('/v1/datasets/members/shards/a.jsonl.zst')).text, a + b);
});

test('bytes that are not what name or header says are refused, and leave nothing', async () => {
  const text = tinyShard(20_000), gz = zlib.gzipSync(text), zst = zstd(text);
  const cases = [
    ['a.jsonl', gz, {}, 415, /Content-Encoding: gzip/],
    ['a.jsonl', zst, {}, 415, /Content-Encoding: zstd/],
    ['a.jsonl', Buffer.from('BZh91AY&SY'), {}, 415, /bzip2/],
    ['a.jsonl.gz', text, {}, 400, /name says/],
    ['a.jsonl.zst', gz, {}, 400, /name says/],
    ['a.jsonl', text, { 'Content-Encoding': 'gzip' }, 400, /Content-Encoding says gzip/],
    ['a.jsonl', text, { 'Content-Encoding': 'br' }, 415, /not 'br'/],
    ['a.jsonl.gz', zlib.gzipSync(gz), {}, 415, /twice/],
    ['a.jsonl.gz', gz.subarray(0, gz.length - 4), {}, 400, /cut short/],
    ['a.jsonl.zst', zst.subarray(0, zst.length - 4), {}, 400, /cut short/],
    ['a.jsonl.gz', Buffer.concat([gz, Buffer.from('more')]), {}, 400, /follows the last member/],
    ['a.jsonl.gz', Buffer.alloc(0), {}, 400, /empty/],
  ];
  const flipped = Buffer.from(gz);
  flipped[gz.length >> 1] ^= 4;
  cases.push(['a.jsonl.gz', flipped, {}, 400, /damaged at compressed byte/]);
  for (const [name, bytes, headers, status, words] of cases)
    assert.match((await s.put(`/v1/datasets/wrong/shards/${name}`, bytes, headers)).problem(status).detail, words);
  (await s.get('/v1/datasets/wrong')).problem(404);
  await clean();
  assert.deepEqual(shards('wrong'), []);
});

test('Content-Digest is that of the bytes sent', async () => {
  const text = tinyShard(1000), gz = zlib.gzipSync(text);
  const put = (name, bytes, value) => s.put(`/v1/datasets/digest/shards/${name}`, bytes, { 'Content-Digest': value });
  (await put('a.jsonl', text, digest(text))).expect(201);
  (await put('b.jsonl.gz', gz, `md5=:AAAA:, ${digest(gz)}`)).expect(201);
  (await put('c.jsonl', text, 'md5=:AAAA:')).expect(201);
  assert.match((await put('d.jsonl', text, digest(`${text} `))).problem(400).detail, /changed on the way/);
  (await put('d.jsonl.gz', gz, digest(text))).problem(400);
  (await put('d.jsonl', text, `sha-256=:${Buffer.alloc(32).toString('base64')}:`)).problem(400);
  (await put('d.jsonl', text, 'sha-256=:nonsense:')).problem(400);
  await clean();
  assert.deepEqual(shards('digest'), ['a.jsonl', 'b.jsonl.gz', 'c.jsonl']);
});

test('If-None-Match: * is answered before the body is asked for', async () => {
  const target = '/v1/datasets/match/shards/a.jsonl';
  (await s.put(target, tinyShard(10), { 'If-None-Match': '*' })).expect(201);
  (await s.put(target, tinyShard(10), { 'If-None-Match': '*' })).problem(412);
  (await s.put(target, tinyShard(10), { 'If-None-Match': `"${sha256(tinyShard(10))}"` })).problem(412);
  (await s.put(target, tinyShard(10), { 'If-None-Match': '"other"' })).expect(200);
  const u = new URL(s.url);
  const ask = (name) => new Promise((done, fail) => {
    let asked = false;
    const req = http.request({ method: 'PUT', path: `/v1/datasets/match/shards/${name}`, host: u.hostname, port: u.port, agent: false,
      headers: { ...auth(), 'If-None-Match': '*', Expect: '100-continue', 'Content-Length': 50_000_000 } });
    req.on('continue', () => { asked = true; req.destroy(); done({ asked }); });
    req.on('response', (res) => { req.destroy(); done({ asked, status: res.statusCode }); });
    req.on('error', (e) => !asked && fail(e));
    req.flushHeaders();
  });
  assert.deepEqual(await ask('a.jsonl'), { asked: false, status: 412 });
  assert.deepEqual(await ask('new.jsonl'), { asked: true });
  await clean();
});

test('a client that hung up while the server was busy is noticed at once, not when it has idled for a minute', async () => {
  await withServer({ workers: 0 }, async (server) => {
    for (let i = 0; i < 3; i++) {
      process.kill(server.pid, 'SIGSTOP');
      await breakOff(server, `/v1/datasets/gone/shards/${i}.jsonl`, Buffer.from(tinyShard(60_000)), 400_000);
      process.kill(server.pid, 'SIGCONT');
      await server.get('/livez');
      await until('what came of it to go', () => tmp(server).length === 0, { patience_ms: 20_000 });
    }
  });
});

test('an upload that broke off goes on where it stopped', async () => {
  const text = Buffer.from(tinyShard(60_000));
  const forms = [['plain.jsonl', text]];
  // what hardly compresses, so that there are MiBs of it to break off in
  const noise = Buffer.from(jsonl(Array.from({ length: 40_000 }, (_, i) => ({ t: createHash('sha512').update(String(i)).digest('base64') }))));
  forms.push(['noise.jsonl.gz', zlib.gzipSync(noise), {}], ['noise.jsonl', zlib.gzipSync(noise), { 'Content-Encoding': 'gzip' }]);
  for (const [name, bytes, headers = {}] of forms) {
    assert.ok(bytes.length > 2.5e6);
    const target = `/v1/datasets/resumed/shards/${name}`;
    await breakOff(s, target, bytes, 1_500_000, headers);
    await kept(target, 1 << 20);
    const range = (n, total = bytes.length) => ({ ...headers, 'Content-Range': `bytes ${n}-${total - 1}/${total}` });
    const elsewhere = await s.put(target, bytes.subarray(1000), range(1000));
    elsewhere.problem(416);
    assert.equal(elsewhere.headers['upload-offset'], String(1 << 20));
    (await s.put(target, bytes.subarray(1 << 20, -1), range(1 << 20, bytes.length - 1))).problem(400); // another body
    await breakOff(s, target, bytes.subarray(1 << 20), 1_200_000, { ...range(1 << 20), 'Content-Length': bytes.length - (1 << 20) });
    await kept(target, 2 << 20);
    const rest = bytes.subarray(2 << 20);
    const made = (await s.put(target, rest, { ...range(2 << 20), 'Content-Digest': digest(rest) })).expect(201).json;
    const whole = /noise/.test(name) ? noise : text;
    assert.deepEqual([made.bytes, made.sha256], [whole.length, sha256(whole)]);
    assert.ok((await s.get(target)).body.equals(whole), name);
    assert.equal((await s.request('HEAD', target)).headers['upload-offset'], undefined);
  }
  assert.deepEqual(shards('resumed'), ['noise.jsonl', 'noise.jsonl.gz', 'plain.jsonl']);
  await clean();
});

test('how much came of an upload is told when that is known, not before', async () => {
  await withServer({ workers: 0 }, async (server) => {
    const text = Buffer.from(tinyShard(60_000)), target = '/v1/datasets/settles/shards/a.jsonl';
    // while one comes, nobody can say
    const u = new URL(server.url);
    const req = http.request({ method: 'PUT', path: target, host: u.hostname, port: u.port, agent: false,
      headers: { ...auth(server), 'Content-Length': text.length } });
    req.on('error', () => {});
    await new Promise((done) => req.write(text.subarray(0, 1_500_000), done));
    await until('it to have begun', () => tmp(server).length > 0);
    const rest = await server.put(target, text.subarray(1 << 20), { 'Content-Range': `bytes ${1 << 20}-${text.length - 1}/${text.length}` });
    rest.problem(503);
    const asked = server.request('HEAD', target); // it waits, and looks again
    const begun = Date.now();
    await until('it to have looked twice', () => Date.now() - begun > 350);
    req.destroy();
    const told = await asked;
    assert.deepEqual([told.status, told.headers['upload-offset']], [404, String(1 << 20)]);
  });
});

test('curl goes on, or begins anew', async () => {
  const dir = scratch(), file = path.join(dir, 'a.jsonl');
  const text = Buffer.from(tinyShard(60_000)), target = '/v1/datasets/curled/shards/a.jsonl';
  fs.writeFileSync(file, text);
  const curl = (...args) => {
    const r = spawnSync('curl', ['-sS', '-o', '/dev/null', '-w', '%{http_code}', '-H', `Authorization: Bearer ${s.token}`, ...args, '-T', file, `${s.url}${target}`]);
    return String(r.stdout);
  };
  await breakOff(s, target, text, 2_200_000);
  await kept(target, 2 << 20);
  assert.equal(curl('-C', '1000'), '416');
  assert.equal(curl('-C', String(await offset(target))), '201');
  assert.ok((await s.get(target)).body.equals(text));
  // without Content-Range all begins anew, whatever was kept
  const other = '/v1/datasets/curled/shards/b.jsonl';
  await breakOff(s, other, text, 2_200_000);
  await kept(other, 2 << 20);
  (await s.put(other, tinyShard(3))).expect(201);
  assert.equal((await s.get(other)).text, tinyShard(3));
  // and nothing is kept of what was never begun
  const none = await s.put('/v1/datasets/curled/shards/c.jsonl', text.subarray(10), { 'Content-Range': `bytes 10-${text.length - 1}/${text.length}` });
  none.problem(416);
  assert.equal(none.headers['upload-offset'], '0');
  (await s.put('/v1/datasets/curled/shards/c.jsonl', text, { 'Content-Range': `bytes 0-${text.length - 1}/${text.length}` })).expect(201);
  for (const bad of ['bytes 0-9/100', 'bytes 5-4/5', 'nonsense', `bytes 0-${text.length - 1}/${text.length + 1}`])
    (await s.put('/v1/datasets/curled/shards/d.jsonl', text, { 'Content-Range': bad })).problem(400);
  await clean();
});

test('kill -9 of the server in the middle of an upload: nothing of it is there, and it can be sent anew', async () => {
  await withServer({ workers: 0 }, async (server) => {
    const text = Buffer.from(tinyShard(60_000)), target = '/v1/datasets/cut/shards/a.jsonl';
    await server.upload('cut', { 'whole.jsonl': tinyShard(7) });
    await breakOff(server, target, text, 2_200_000);
    await kept(target, 2 << 20, server);
    fs.writeFileSync(`${server.dir}/index/${'0'.repeat(64)}`, 'of a text that nobody has');
    await server.kill9();
    // as it is between the name and the commit, and between that and the end
    fs.mkdirSync(`${server.dir}/datasets/new`);
    fs.writeFileSync(`${server.dir}/tmp/upload-AAAAAA`, text);
    fs.linkSync(`${server.dir}/tmp/upload-AAAAAA`, `${server.dir}/datasets/new/a.jsonl`);
    fs.linkSync(`${server.dir}/datasets/cut/whole.jsonl`, `${server.dir}/tmp/upload-BBBBBB`);
    await server.launch();
    assert.deepEqual([tmp(server), shards('cut', server), indexes(server)], [[], ['whole.jsonl'], [sha256(tinyShard(7))]]);
    assert.ok(!fs.existsSync(`${server.dir}/datasets/new`));
    assert.equal((await server.get('/v1/datasets/cut/shards/whole.jsonl')).text, tinyShard(7));
    assert.equal(await offset(target, server), 0);
    const r = await server.put(target, text.subarray(2 << 20), { 'Content-Range': `bytes ${2 << 20}-${text.length - 1}/${text.length}` });
    r.problem(416);
    (await server.put(target, text)).expect(201);
    assert.ok((await server.get(target)).body.equals(text));
  });
});

test('a full disk is said, leaves nothing, and the next upload finds what room there is', async (t) => {
  const disk = smallDisk(64);
  if (!disk) return t.skip('no file system may be mounted here');
  try {
    await withServer({ workers: 0, dir: path.join(disk.dir, 'state') }, async (server) => {
      await server.upload('full', { 'before.jsonl': tinyShard(1000) });
      const noise = Buffer.from(jsonl(Array.from({ length: 200_000 }, (_, i) => ({ t: createHash('sha512').update(String(i)).digest('base64') }))));
      disk.fill(6 << 20);
      for (const [name, bytes] of [['a.jsonl', noise], ['b.jsonl.gz', zlib.gzipSync(noise, { level: 1 })]]) {
        (await server.put(`/v1/datasets/full/shards/${name}`, bytes)).problem(507);
        await clean(server);
      }
      assert.deepEqual(shards('full', server), ['before.jsonl']);
      (await server.put('/v1/datasets/full/shards/c.jsonl', tinyShard(1000))).expect(201);
      disk.free();
      (await server.put('/v1/datasets/full/shards/a.jsonl', noise)).expect(201);
      assert.equal((await server.get('/v1/datasets/full')).json.records, 202_000);
    });
  } finally {
    disk.done();
  }
});

test('records that are posted become shards of their own, once each', async () => {
  const url = '/v1/datasets/games/records';
  const first = (await s.post(url, tinyShard(3))).expect(201).json;
  assert.deepEqual([first.name, first.records], ['records-000000000001.jsonl', 3]);
  const key = { 'Idempotency-Key': 'once' };
  const second = (await s.post(url, tinyShard(4), key)).expect(201).json;
  assert.equal(second.name, 'records-000000000002.jsonl');
  const again = (await s.post(url, tinyShard(4), key)).expect(201);
  assert.deepEqual(again.json, second);
  assert.equal(again.headers['idempotent-replayed'], 'true');
  (await s.post(url, tinyShard(5), key)).problem(422);
  assert.equal((await s.post(url, zlib.gzipSync(tinyShard(5)), { 'Content-Encoding': 'gzip' })).expect(201).json.records, 5);
  (await s.post(url, '')).problem(400);
  (await s.post(url, ' \n\n')).problem(400);
  (await s.post(url, tinyShard(1), { 'Content-Range': 'bytes 0-0/1' })).problem(400);
  // somebody put one of the next name
  await s.upload('games', { 'records-000000000004.jsonl': tinyShard(9) });
  const many = await Promise.all(Array.from({ length: 20 }, (_, i) => s.post(url, jsonl([tiny(i)]))));
  const names = many.map((r) => r.expect(201).json.name);
  assert.equal(new Set(names).size, 20);
  assert.ok(!names.includes('records-000000000004.jsonl'));
  const set = (await s.get('/v1/datasets/games')).json;
  assert.equal(set.records, 3 + 4 + 5 + 9 + 20);
  assert.deepEqual(set.shards.map((x) => x.name), [...set.shards.map((x) => x.name)].sort());
  await clean();
});

test('a dataset says what its records look like, and uploads are held to it', async () => {
  const url = '/v1/datasets/described', shard = (name) => `${url}/shards/${name}`;
  assert.deepEqual((await s.request('PUT', url, { record: tinyRecord })).expect(201).json.shards, []);
  const said = (await s.request('PUT', url, { record: tinyRecord, policy_tolerance: 0.02 })).expect(200).json;
  assert.deepEqual([said.bad_records, said.policy_tolerance, Object.keys(said.record).sort()], ['fail', 0.02, Object.keys(tinyRecord).sort()]);
  assert.deepEqual((await s.get(url)).json, said);
  (await s.put(shard('good.jsonl'), tinyShard(100))).expect(201);
  assert.equal((await s.get(url)).json.shards[0].checked, true);

  const lines = tinyShard(20_000).split('\n');
  const cases = { // what the 15,001st line is, and whose fault
    x: [JSON.stringify(tiny(1, { x: [16] })), 'x'],
    policy: [JSON.stringify(tiny(1, { policy: [0.5, 0.2] })), 'policy'],
    missing: ['{"x":[1],"legal":[[1]],"policy":[1]}', 'value'],
    nonsense: ['{"x":[1],', undefined],
  };
  for (const [name, [line, field]] of Object.entries(cases)) {
    const text = [...lines.slice(0, 15_000), line, ...lines.slice(15_000)].join('\n');
    const at = lines.slice(0, 15_000).join('\n').length + 1;
    for (const [file, bytes] of [[`${name}.jsonl`, text], [`${name}.jsonl.gz`, zlib.gzipSync(text)]]) {
      const p = (await s.put(shard(file), bytes)).problem(400);
      assert.deepEqual([p.shard, p.line, p.offset, p.field], [file, 15_001, at, field], p.detail);
      assert.match(p.detail, new RegExp(`shard '${file}', line 15001 \\(offset ${at}\\)`));
    }
  }
  const p = (await s.post(`${url}/records`, '{}\n')).problem(400);
  assert.deepEqual([p.line, p.offset, p.shard], [1, 0, undefined]);
  await clean();
  assert.deepEqual(shards('described'), ['good.jsonl']);

  (await s.request('PUT', url, { record: tinyRecord, bad_records: 'skip' })).expect(200);
  const mixed = [...Array.from({ length: 30 }, () => '{"x":[99]}'), ...lines.slice(0, 5)].join('\n');
  const made = (await s.put(shard('mixed.jsonl'), mixed)).expect(201).json;
  assert.deepEqual([made.records, made.bad, made.bad_first.length, made.bad_first[1].line, made.bad_first[1].offset], [35, 30, 20, 2, 11]);
  assert.ok(made.bad_first[0].reason);
  const set = (await s.get(url)).json;
  assert.deepEqual([set.bad, set.records, set.shards.map((x) => x.checked)], [30, 135, [false, true]]);

  // the same text again is looked at anew, and stays one shard
  (await s.put(shard('good.jsonl'), tinyShard(100))).expect(200);
  assert.deepEqual((await s.get(url)).json.shards.map((x) => x.checked), [true, true]);

  // what is not said stays
  const kept = (await s.request('PUT', url, { policy_tolerance: 0.03 })).expect(200).json;
  assert.deepEqual([kept.bad_records, kept.policy_tolerance, Object.keys(kept.record).sort()], ['skip', 0.03, Object.keys(tinyRecord).sort()]);
  assert.deepEqual((await s.request('PUT', url, {})).expect(200).json, kept);

  (await s.request('PUT', url, { record: null })).expect(200);
  (await s.put(shard('anything.jsonl'), 'whatever\n')).expect(201);
  assert.equal((await s.get(url)).json.record, undefined);
});

test('a description that is none is refused by its field', async () => {
  const put = (body) => s.request('PUT', '/v1/datasets/undescribed', body);
  (await put({ record: tinyRecord, extra: 1 })).problem(400, '/extra');
  (await put({ record: { x: { kind: 'tokens', dim: 'X', vocab: 0 } } })).problem(400, '/record/x/vocab');
  (await put({ record: tinyRecord, bad_records: 'ignore' })).problem(400, '/bad_records');
  (await put({ record: tinyRecord, policy_tolerance: 2 })).problem(400, '/policy_tolerance');
  (await put('[]')).problem(400);
  (await s.request('PUT', '/v1/datasets/-x', { record: tinyRecord })).problem(400);
  (await s.get('/v1/datasets/undescribed')).problem(404);
});

test('a description that changes while records come is not passed by', async () => {
  const url = '/v1/datasets/changing', text = Buffer.from(tinyShard(60_000)), u = new URL(s.url);
  (await s.request('PUT', url, { record: null })).expect(201);
  const send = (name, between) => new Promise((done, fail) => {
    const req = http.request({ method: 'PUT', path: `${url}/shards/${name}`, host: u.hostname, port: u.port, agent: false,
      headers: { ...auth(), 'Content-Length': text.length } }, (res) => { res.resume(); done(res.statusCode); });
    req.on('error', fail);
    req.write(text.subarray(0, 2_000_000), async () => {
      await until('the upload to have begun', () => tmp().length > 0);
      await between();
      req.end(text.subarray(2_000_000));
    });
  });
  assert.equal(await send('a.jsonl', async () => (await s.request('PUT', url, { record: tinyRecord })).expect(200)), 409);
  await clean();
  assert.deepEqual(shards('changing'), []);
  // one that broke off is not gone on with under another
  const target = `${url}/shards/b.jsonl`;
  await breakOff(s, target, text, 1_500_000);
  await kept(target, 1 << 20);
  (await s.request('PUT', url, { record: tinyRecord, bad_records: 'skip' })).expect(200);
  const r = await s.put(target, text.subarray(1 << 20), { 'Content-Range': `bytes ${1 << 20}-${text.length - 1}/${text.length}` });
  r.problem(416);
  assert.equal(r.headers['upload-offset'], '0');
  assert.equal(await offset(target), 0);
  (await s.put(target, text)).expect(201);
});

test('an index goes with the last shard of its text', async () => {
  const text = tinyShard(123), has = () => indexes().includes(sha256(text));
  await s.upload('twins', { 'a.jsonl': text });
  await s.upload('others', { 'b.jsonl': text });
  assert.ok(has());
  (await s.delete('/v1/datasets/twins')).expect(204);
  await until('the file to go', () => shards('twins').length === 0);
  assert.ok(has());
  (await s.delete('/v1/datasets/others/shards/b.jsonl')).expect(204);
  await until('the index to go', () => !has());
});

test('a dataset that a job validates on stays', async () => {
  await s.upload('trained', { 'a.jsonl': tinyShard(50) });
  await s.upload('judged', { 'v.jsonl': tinyShard(20) });
  const job = await s.submit(tinySpec({ data: { dataset: 'trained' }, training: { validation: { dataset: 'judged' } } }));
  (await s.delete('/v1/datasets/judged')).problem(409);
  (await s.delete('/v1/datasets/judged/shards/v.jsonl')).problem(409);
  (await s.post(`/v1/jobs/${job.id}/cancel`)).expect(200);
  await s.waitState(job.id, 'canceled');
  (await s.delete('/v1/datasets/judged')).expect(204);
});
