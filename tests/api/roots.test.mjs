// Folders below --data-root: read in place, frozen when a cycle becomes ready;
// and a lease's shards over HTTP. The worker is made up; e2e/roots trains.
import test from 'node:test';
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import fs from 'node:fs';
import path from 'node:path';
import zlib from 'node:zlib';
import { FakeWorker } from '../fake_worker.mjs';
import { seekable as frames, zstd } from '../bad_lines.mjs';
import { merge, moment, scratch, sha256, smallDisk, tiny, tinyShard, tinySpec, jsonl, until, withServer } from '../harness.mjs';

const rootSpec = (patch = {}) => {
  const spec = tinySpec();
  spec.data = { root: 'games' };
  return merge(spec, patch);
};
const some = (from, n) => jsonl(Array.from({ length: n }, (_, i) => tiny(from + i)));

async function withRoot(body, options = {}) {
  const dir = scratch();
  const files = path.join(dir, 'games');
  fs.mkdirSync(files);
  try {
    await withServer({ workers: 0, args: ['--data-root', `games=${files}`], ...options }, (s) => body(s, files));
  } finally {
    fs.rmSync(dir, { recursive: true, force: true });
  }
}
const put = (dir, name, bytes) => {
  fs.mkdirSync(path.dirname(path.join(dir, name)), { recursive: true });
  fs.writeFileSync(path.join(dir, name), bytes);
};
const frozen = (s, id) => until('the data to be frozen', async () => {
  const j = await s.job(id);
  assert.notEqual(j.state, 'failed', j.reason);
  return j.reason.includes('waits for a worker') && j;
});
const failed = (s, id) => until('the job to fail', async () => {
  const j = await s.job(id);
  return j.state === 'failed' && j;
});
const shard = (w, n, headers = {}, more = '') =>
  w.server.get(`/v1/leases/${w.id}/shards/${n}${more}`, { 'Pawl-Token': String(w.token), ...headers });

test('a root that is not there is named, with those that are; so is one with no such file', async () => {
  await withRoot(async (s, dir) => {
    const none = (await s.post('/v1/jobs', rootSpec({ data: { root: 'nope' } }))).problem(400, '/data/root');
    assert.match(none.detail, /games/);
    (await s.post('/v1/jobs', rootSpec())).problem(400, '/data/root');
    put(dir, 'a.jsonl', tinyShard(3));
    (await s.post('/v1/jobs', rootSpec({ data: { match: 'b*' } }))).problem(400, '/data/match');
    (await s.post('/v1/jobs', rootSpec({ data: { match: '../*' } }))).problem(400, '/data/match');
    (await s.post('/v1/jobs', rootSpec({ data: { shards: 'a*' } }))).problem(400, '/data/shards');
    (await s.post('/v1/jobs', rootSpec({ data: { dataset: 'tiny' } }))).problem(400, '/data/root');
    (await s.post('/v1/jobs', rootSpec({ data: { groups: [{ match: 'a*', weight: 2 }] } }))).problem(400, '/data/groups');
    (await s.post('/v1/jobs', tinySpec({ data: { match: 'a*' } }))).problem(400, '/data/match');
    assert.deepEqual((await s.get('/v1/jobs')).json.items, []);
    assert.deepEqual((await s.get('/v1/info')).json.data_roots, ['games']);
    // one that is to begin later may find its files then
    const later = await s.submit(rootSpec({ data: { match: 'b*' }, not_before: '2100-01-01T00:00:00Z' }));
    assert.match(later.reason, /not_before/);
  });
});

test('files of every form are frozen in place, in order, as their text', async () => {
  await withRoot(async (s, dir) => {
    const text = some(0, 30_000);
    put(dir, 'b/plain.jsonl', text);
    put(dir, 'a.jsonl.gz', zlib.gzipSync(some(5, 40)));
    put(dir, 'c.jsonl.zst', zstd(text));
    put(dir, 'd.jsonl.zst', frames(Buffer.from(text), 50_000));
    put(dir, 'note.txt', 'not one of them');
    put(dir, '.b.jsonl', 'being written\n');
    fs.symlinkSync('/etc/passwd', path.join(dir, 'x.jsonl'));
    const dry = (await s.post('/v1/jobs?dry_run=1', rootSpec())).expect(200).json;
    assert.equal(dry.records, null); // nobody has read them yet
    const j = await s.submit(rootSpec());
    assert.equal(j.dataset, null);
    await frozen(s, j.id);
    assert.equal((await s.post('/v1/jobs?dry_run=1', rootSpec())).json.records, 90_040);
    const w = new FakeWorker(s);
    const lease = (await w.claim()).expect(201).json;
    assert.deepEqual(lease.data.shards.map((f) => [f.name, f.form]),
      [['a.jsonl.gz', 'zstd'], ['b/plain.jsonl', 'plain'], ['c.jsonl.zst', 'zstd'], ['d.jsonl.zst', 'zstd']]);
    assert.deepEqual(lease.data.shards.map((f) => f.path.startsWith(`${dir}/`)), [false, true, false, true]);
    assert.equal(lease.records, 90_040);
    assert.equal(lease.steps, 22_510);
    // their text is what a worker elsewhere is sent, whole or a part
    for (const n of [1, 2, 3]) {
      assert.equal(lease.data.shards[n].sha256, sha256(text));
      const all = (await shard(w, n)).expect(200);
      assert.equal(all.text, text);
      assert.equal(all.headers.etag, `"${sha256(text)}"`);
      const part = (await shard(w, n, { Range: 'bytes=1000000-1000099' })).expect(206);
      assert.equal(part.text, text.slice(1_000_000, 1_000_100));
      assert.equal(part.headers['content-range'], `bytes 1000000-1000099/${text.length}`);
      (await shard(w, n, { Range: `bytes=${text.length}-` })).problem(416);
    }
    (await shard(w, 4)).problem(404);
    (await shard(w, 'x')).problem(404);
    (await shard(w, 0, { 'Pawl-Token': '99' })).problem(409);
    (await shard(w, 0, { 'Pawl-Token': null })).problem(400);
    (await shard(w, 0, {}, '?part=index')).problem(404); // this order needs none
  });
});

test('a cycle says what its data was frozen to; before that how long it trains is open', async () => {
  await withRoot(async (s, dir) => {
    put(dir, 'a.jsonl', `${some(0, 1000)}{"half of a line`);
    put(dir, 'b.jsonl', some(7, 500));
    const spec = rootSpec({ data: { groups: [{ match: 'b*', weight: 2 }] }, training: { shuffle: { mode: 'global' }, validation: { fraction: 0.2 }, epochs: 3 } });
    const later = await s.submit(merge(structuredClone(spec), { not_before: '2100-01-01T00:00:00Z' }));
    const none = (await s.get(`/v1/jobs/${later.id}/cycles/1?data=1`)).expect(200).json;
    assert.deepEqual([none.data, none.epochs], [null, null]);
    const { id } = await s.submit(spec);
    await frozen(s, id);
    const c = (await s.get(`/v1/jobs/${id}/cycles/1?data=1`)).expect(200).json;
    assert.equal(c.epochs, 3);
    const [a, b] = c.data.shards;
    assert.deepEqual([a.name, a.bytes, a.records], ['a.jsonl', some(0, 1000).length, 1000]);
    assert.deepEqual([b.name, b.records, b.weight], ['b.jsonl', 500, 2]);
    assert.equal(c.data.records, 1000 - a.held_out + 2 * (500 - b.held_out));
    assert.equal(c.records, c.data.records);
    assert.equal((await s.get(`/v1/jobs/${id}/cycles/1`)).json.data, undefined);
    (await s.get(`/v1/jobs/${id}/cycles/1?data=2`)).problem(400);
  });
});

test('folders that cannot match are not looked into; those that lie too deep are named', async () => {
  await withRoot(async (s, dir) => {
    put(dir, 'a.jsonl', some(0, 10));
    put(dir, 'ok/b/c.jsonl', some(0, 10));
    put(dir, `nest/${'d/'.repeat(40)}x.jsonl`, some(0, 10));
    (await s.post('/v1/jobs', rootSpec())).problem(400, '/data/match');
    for (const match of ['a.jsonl', 'ok/*', 'ok/b/c*', 'a*'])
      await frozen(s, (await s.submit(rootSpec({ data: { match } }))).id);
  });
});

test('a sound stream whose seek table lies is copied, as an upload would be', async () => {
  await withRoot(async (s, dir) => {
    const text = some(0, 3000);
    const bytes = frames(Buffer.from(text), 50_000);
    const n = bytes.readUInt32LE(bytes.length - 9);
    assert.ok(n >= 2, `${n} frames`);
    const entry = (bytes.length - 9 - bytes.lastIndexOf(Buffer.from([0x5e, 0x2a, 0x4d, 0x18])) - 8) / n;
    const first = bytes.length - 9 - n * entry;
    bytes.writeUInt32LE(bytes.readUInt32LE(first + 4) - 1, first + 4); // one byte goes over
    bytes.writeUInt32LE(bytes.readUInt32LE(first + entry + 4) + 1, first + entry + 4);
    put(dir, 'a.jsonl.zst', bytes);
    const j = await s.submit(rootSpec());
    await frozen(s, j.id);
    const w = new FakeWorker(s);
    const lease = (await w.claim()).expect(201).json;
    assert.equal(lease.data.shards[0].sha256, sha256(text));
    assert.match(lease.data.shards[0].path, /\/copies\//);
    assert.equal((await shard(w, 0)).text, text);
  });
});

test('an index is sent as well, and made again where it is missing', async () => {
  await withRoot(async (s, dir) => {
    const text = some(0, 1000);
    put(dir, 'a.jsonl', text);
    put(dir, 'b.jsonl.gz', zlib.gzipSync(some(7, 500)));
    const { id } = await s.submit(rootSpec({ training: { shuffle: { mode: 'global' }, validation: { fraction: 0.2 } } }));
    await frozen(s, id);
    const w = new FakeWorker(s);
    const lease = (await w.claim()).expect(201).json;
    const [a, b] = lease.data.shards;
    assert.equal(lease.records, 1500 - a.held_out - b.held_out);
    assert.ok(a.held_out > 100 && a.held_out < 300, `${a.held_out}`);
    const index = (await shard(w, 0, {}, '?part=index')).expect(200).body;
    assert.equal(index.length, 64 + 16 * 1000 + 8 * 4);
    assert.deepEqual(index, fs.readFileSync(a.index));
    // record 500 lies where the index says
    const place = index.readBigUInt64LE(64 + 16 * 500);
    const offset = Number(place >> 24n), length = Number(place & 0xffffffn);
    assert.equal(text.slice(offset, offset + length), text.split('\n')[500]);
    const entry = (await shard(w, 0, { Range: 'bytes=8064-8079' }, '?part=index')).expect(206).body;
    assert.deepEqual(entry, index.subarray(8064, 8080));
    for (const f of [a, b]) fs.rmSync(f.index);
    const n = [a, b].length;
    for (let i = 0; i < n; i++) {
      const again = await until('the index to be made again', async () => {
        const r = await shard(w, i, {}, '?part=index');
        if (r.status === 503) return false;
        return r.expect(200);
      });
      if (i === 0) assert.deepEqual(again.body, index);
    }
    // and where it is not what was written, if only in the order of its records
    const damaged = fs.openSync(a.index, 'r+');
    fs.writeSync(damaged, index, 64 + 16 * 7, 16, 64 + 16 * 8);
    fs.closeSync(damaged);
    const mended = await until('the index to be made again', async () => {
      const r = await shard(w, 0, { Range: 'bytes=64-95' }, '?part=index');
      return r.status === 503 ? false : r.expect(206);
    });
    assert.deepEqual(mended.body, index.subarray(64, 96));
    assert.deepEqual(fs.readFileSync(a.index), index);
    // of a text that is another one by now there is none
    fs.rmSync(a.index);
    fs.writeFileSync(path.join(dir, 'a.jsonl'), some(1, 1000));
    const said = await until('the refusal', async () => {
      const r = await shard(w, 0, {}, '?part=index');
      return r.status !== 503 && r;
    });
    const p = said.problem(409);
    assert.equal(p.code, 'data');
    assert.equal(p.shard, 'a.jsonl');
  });
});

test('a shard that is missing, replaced or shrunk is refused with its name and place', async () => {
  await withRoot(async (s, dir) => {
    const text = some(0, 3000);
    put(dir, 'a.jsonl', text);
    put(dir, 'b.jsonl.zst', frames(Buffer.from(text), 50_000));
    const { id } = await s.submit(rootSpec());
    await frozen(s, id);
    const w = new FakeWorker(s);
    (await w.claim()).expect(201);
    const refused = async (n, pattern, name, offset) => {
      const p = (await shard(w, n, { Range: 'bytes=100000-100999' })).problem(409);
      assert.equal(p.code, 'data');
      assert.match(p.detail, pattern);
      assert.equal(p.shard, name);
      if (offset !== undefined) assert.equal(p.offset, offset);
    };
    fs.appendFileSync(path.join(dir, 'a.jsonl'), some(3000, 10)); // it may grow
    assert.equal((await shard(w, 0)).expect(200).text, text);
    fs.truncateSync(path.join(dir, 'a.jsonl'), 5000);
    await refused(0, /has shrunk: it ends at offset 5000/, 'a.jsonl', 5000);
    fs.rmSync(path.join(dir, 'a.jsonl'));
    await refused(0, /is missing: there is no file/, 'a.jsonl');
    fs.symlinkSync('/etc/passwd', path.join(dir, 'a.jsonl'));
    await refused(0, /is a symbolic link now/, 'a.jsonl');
    // one frame of the compressed one is damaged: said where it is read
    const packed = fs.readFileSync(path.join(dir, 'b.jsonl.zst'));
    const at = Math.floor(packed.length / 2);
    packed.fill(0x55, at, at + 200);
    fs.writeFileSync(path.join(dir, 'b.jsonl.zst'), packed);
    let bad = 0;
    for (let first = 0; first < text.length; first += 50_000) {
      const r = await shard(w, 1, { Range: `bytes=${first}-${first + 49_999}` });
      if (r.status === 206) assert.equal(r.text, text.slice(first, first + 50_000));
      else {
        assert.equal(r.problem(409).code, 'data');
        bad++;
      }
    }
    assert.ok(bad >= 1 && bad <= 2, `${bad} frames were refused`);
    put(dir, 'b.jsonl.zst', 'something else');
    await refused(1, /was edited|has shrunk/, 'b.jsonl.zst');
  });
});

test('a dataset\'s shards and those for validation are sent too', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.upload('tiny', { 'a.jsonl': some(0, 20), 'b.jsonl': some(20, 20) });
    await s.upload('held', { 'v.jsonl': some(40, 5) });
    await s.submit(tinySpec({ training: { validation: { dataset: 'held' } } }));
    const w = new FakeWorker(s);
    const lease = (await w.claim()).expect(201).json;
    assert.equal(lease.data.validation.shards[0].name, 'v.jsonl');
    assert.equal((await shard(w, 1)).expect(200).text, some(20, 20));
    assert.equal((await shard(w, 2)).expect(200).text, some(40, 5));
    (await shard(w, 3)).problem(404);
    (await s.delete('/v1/datasets/held')).problem(409);
    (await s.delete('/v1/datasets/held/shards/v.jsonl')).problem(409);
  });
});

test('what cannot be read is the job\'s end, by name', async () => {
  await withRoot(async (s, dir) => {
    const packed = zlib.gzipSync(some(0, 2000));
    put(dir, 'a.jsonl', some(0, 10));
    put(dir, 'cut.jsonl.gz', packed.subarray(0, packed.length - 100));
    const one = await failed(s, (await s.submit(rootSpec())).id);
    assert.match(one.reason, /cut\.jsonl\.gz/);
    assert.equal(one.error.code, 'data');
    assert.equal(one.error.shard, 'cut.jsonl.gz');
    // it is whole now: a retry reads it
    put(dir, 'cut.jsonl.gz', packed);
    (await s.post(`/v1/jobs/${one.id}/retry`)).expect(200);
    await frozen(s, one.id);
    assert.equal((await s.get(`/v1/jobs/${one.id}/cycles/1`)).json.records, 2010);
  });
});

test('reading takes its time, and says how far it is; a cancel ends it', async () => {
  await withRoot(async (s, dir) => {
    const part = Buffer.from(some(0, 100_000)), to = fs.openSync(path.join(dir, 'big.jsonl'), 'w');
    const mb = 400; // a second at the pace of SHA-256
    for (let i = 0; i * part.length < mb * 1e6; i++) fs.writeSync(to, part);
    fs.closeSync(to);
    const { id } = await s.submit(rootSpec());
    const seen = await until('a sentence on how far it is', async () => {
      const j = await s.job(id);
      return /reads its data: \d+ of \d+ MB/.exec(j.reason) ?? (j.reason.includes('waits for a worker') && ['too fast']);
    });
    const begun = Date.now();
    const w = new FakeWorker(s);
    if (seen[0] !== 'too fast') (await w.claim()).expect(204); // and nobody waits for that
    assert.ok(Date.now() - begun < 2000);
    (await s.post(`/v1/jobs/${id}/cancel`)).expect(200);
    assert.equal((await s.job(id)).state, 'canceled');
    await until('the reading to end', () => fs.readdirSync(path.join(s.dir, 'tmp')).length === 0);
    // a small one is not held up by what was canceled
    fs.truncateSync(path.join(dir, 'big.jsonl'), part.length);
    await frozen(s, (await s.submit(rootSpec())).id);
  });
});

test('a server that is killed while it reads goes on with that when it is back', async () => {
  await withRoot(async (s, dir) => {
    const rest = some(0, 80_000);
    const text = (i) => some(i, 1) + rest;
    for (let i = 0; i < 6; i++) put(dir, `${i}.jsonl`, text(i));
    const { id } = await s.submit(rootSpec({ training: { shuffle: { mode: 'global' } } }));
    for (const ms of [0, 15, 30, 45]) { // somewhere in the middle of it
      await moment(ms);
      await s.kill9();
      await s.launch();
    }
    await frozen(s, id);
    const w = new FakeWorker(s);
    const lease = (await w.claim()).expect(201).json;
    assert.equal(lease.records, 6 * 80_001);
    for (const [i, f] of lease.data.shards.entries()) {
      assert.equal(f.sha256, sha256(text(i)));
      assert.equal(fs.statSync(f.index).size, 64 + 16 * 80_001 + 8 * 313);
    }
    assert.deepEqual(fs.readdirSync(path.join(s.dir, 'tmp')), []);
  });
});

test('a backup has the copies that open cycles read; indexes are made again', async () => {
  await withRoot(async (s, dir) => {
    const text = some(0, 500);
    put(dir, 'a.jsonl.gz', zlib.gzipSync(text));
    const { id } = await s.submit(rootSpec({ training: { shuffle: { mode: 'global' } } }));
    await frozen(s, id);
    const to = path.join(path.dirname(dir), 'restored');
    fs.mkdirSync(to);
    const r = spawnSync('tar', ['xf', '-', '-C', to], { input: (await s.get('/v1/backup')).expect(200).body });
    assert.equal(r.status, 0, String(r.stderr));
    put(dir, 'a.jsonl.gz', zlib.gzipSync(some(1, 500))); // another one by now
    await withServer({ workers: 0, dir: to, args: ['--data-root', `games=${dir}`] }, async (other) => {
      const w = new FakeWorker(other);
      const lease = (await w.claim()).expect(201).json;
      assert.equal((await shard(w, 0)).expect(200).text, text);
      const index = await until('the index', async () => {
        const a = await shard(w, 0, {}, '?part=index');
        return a.status === 200 && a.body;
      });
      assert.equal(index.length, 64 + 16 * 500 + 8 * 2);
      assert.ok(lease.data.shards[0].path.startsWith(`${to}/copies/`));
    });
  });
});

// A job whose lease failed for its data, as a worker says it.
const failData = async (w, name) => (await w.release('failed', 'data', 0, {
  error: { code: 'data', detail: `shard '${name}' was edited after the cycle's data was frozen`, shard: name, offset: 0 },
})).expect(200);
const damage = (file) => {
  const bytes = fs.readFileSync(file);
  bytes.fill(0x55, bytes.length >> 1, (bytes.length >> 1) + 8);
  fs.writeFileSync(file, bytes);
};

test('a copy that is missing is made again before a worker gets the cycle', async () => {
  await withRoot(async (s, dir) => {
    const text = some(0, 3000);
    put(dir, 'a.jsonl.gz', zlib.gzipSync(text));
    put(dir, 'b.jsonl', some(1, 10));
    const { id } = await s.submit(rootSpec());
    await frozen(s, id);
    const copy = path.join(s.dir, 'copies', `${sha256(text)}.zst`);
    const was = fs.readFileSync(copy);
    fs.rmSync(copy);
    const w = new FakeWorker(s);
    const lease = await until('a lease', async () => {
      const r = await w.claim();
      return r.status === 201 && r.json;
    });
    assert.equal(lease.data.shards[0].path, copy);
    assert.deepEqual(fs.readFileSync(copy), was);
    assert.equal((await shard(w, 0)).expect(200).text, text);
    // under a worker: it is told by the name that people know, and a retry helps
    fs.rmSync(copy);
    const p = (await shard(w, 0)).problem(409);
    assert.equal(p.shard, 'a.jsonl.gz');
    assert.doesNotMatch(p.detail, new RegExp(sha256(text)));
    await failData(w, 'a.jsonl.gz');
    assert.equal((await s.job(id)).state, 'failed');
    (await s.post(`/v1/jobs/${id}/retry`)).expect(200);
    await frozen(s, id);
    assert.deepEqual(fs.readFileSync(copy), was);
    // of a file that has another text by now it cannot be made
    fs.rmSync(copy);
    put(dir, 'a.jsonl.gz', zlib.gzipSync(some(2, 3000)));
    (await w.reborn().claim()).expect(204);
    const end = await failed(s, id);
    assert.match(end.reason, /^shard 'a\.jsonl\.gz' was edited since it was read, and its copy is missing or damaged/);
    assert.equal(end.error.shard, 'a.jsonl.gz');
    put(dir, 'a.jsonl.gz', zlib.gzipSync(text));
    (await s.post(`/v1/jobs/${id}/retry`)).expect(200);
    await frozen(s, id);
    assert.deepEqual(fs.readFileSync(copy), was);
    // a folder that is away is waited for, as at first
    fs.rmSync(copy);
    fs.renameSync(dir, `${dir}-away`);
    (await w.reborn().claim()).expect(204);
    await until('the job to say so', async () => /cannot read its data, tries again/.test((await s.job(id)).reason));
    fs.renameSync(`${dir}-away`, dir);
    await frozen(s, id);
    assert.deepEqual(fs.readFileSync(copy), was);
  });
});

test('a copy that is damaged is made again by a retry; one of which nothing is left to make it of stays', async () => {
  await withRoot(async (s, dir) => {
    const text = some(0, 3000);
    put(dir, 'a.jsonl.gz', zlib.gzipSync(text));
    const { id } = await s.submit(rootSpec());
    await frozen(s, id);
    const copy = path.join(s.dir, 'copies', `${sha256(text)}.zst`);
    const was = fs.readFileSync(copy);
    damage(copy);
    const w = new FakeWorker(s);
    (await w.claim()).expect(201);
    assert.equal((await shard(w, 0, { Range: 'bytes=0-99' })).status === 206, true);
    await failData(w, 'a.jsonl.gz');
    (await s.post(`/v1/jobs/${id}/retry`)).expect(200);
    await frozen(s, id);
    assert.deepEqual(fs.readFileSync(copy), was);
    (await w.reborn().claim()).expect(201);
    assert.equal((await shard(w, 0)).expect(200).text, text);
    // a sound one is not lost to a failure that was not its own
    fs.rmSync(path.join(dir, 'a.jsonl.gz'));
    await failData(w, 'a.jsonl.gz');
    (await s.post(`/v1/jobs/${id}/retry`)).expect(200);
    await frozen(s, id);
    assert.deepEqual(fs.readFileSync(copy), was);
    // a damaged one, and the file is gone: said by its name
    damage(copy);
    (await w.reborn().claim()).expect(201);
    await failData(w, 'a.jsonl.gz');
    (await s.post(`/v1/jobs/${id}/retry`)).expect(200);
    assert.match((await failed(s, id)).reason, /^shard 'a\.jsonl\.gz' is missing: there is no file/);
  });
});

test('a file that is read again has its copy replaced, and an index is not made of a damaged one', async () => {
  await withRoot(async (s, dir) => {
    const text = some(0, 3000);
    put(dir, 'a.jsonl.gz', zlib.gzipSync(text));
    const one = await s.submit(rootSpec());
    await frozen(s, one.id);
    const copy = path.join(s.dir, 'copies', `${sha256(text)}.zst`);
    const was = fs.readFileSync(copy);
    damage(copy);
    fs.utimesSync(path.join(dir, 'a.jsonl.gz'), 1e9, 1e9);
    await frozen(s, (await s.submit(rootSpec())).id);
    assert.deepEqual(fs.readFileSync(copy), was);
    // the index is gone, and what it would be made of is damaged
    damage(copy);
    fs.rmSync(path.join(s.dir, 'index', sha256(text)));
    await frozen(s, (await s.submit(rootSpec({ training: { shuffle: { mode: 'global' } } }))).id);
    assert.deepEqual(fs.readFileSync(copy), was);
  });
});

test('a server starts although a folder is not there, says so, and waits for it', async () => {
  const dir = scratch();
  const files = path.join(dir, 'games');
  fs.mkdirSync(files);
  try {
    await withServer({ workers: 0, args: ['--data-root', `games=${files}`] }, async (s) => {
      put(files, 'a.jsonl', some(0, 10));
      const { id } = await s.submit(rootSpec({ cycles: 0 }));
      fs.renameSync(files, `${files}-away`);
      await s.kill9();
      await s.launch();
      assert.match(s.log, /warning: cannot read the folder .*games of data root 'games': No such file/);
      assert.deepEqual((await s.get('/v1/info')).json.data_roots, ['games']);
      (await s.post(`/v1/jobs/${id}/cycles`)).expect(201);
      await until('the job to say so', async () => /cannot read/.test((await s.job(id)).reason));
      fs.renameSync(`${files}-away`, files);
      await frozen(s, id);
    });
  } finally {
    fs.rmSync(dir, { recursive: true, force: true });
  }
});

test('a dry run on a folder that is away says which, and to try again', async () => {
  await withRoot(async (s, dir) => {
    put(dir, 'a.jsonl', some(0, 10));
    (await s.post('/v1/jobs?dry_run=1', rootSpec())).expect(200);
    fs.renameSync(dir, `${dir}-away`);
    assert.ok((await s.post('/v1/jobs?dry_run=1', rootSpec())).problem(503).detail.includes(dir));
    fs.renameSync(`${dir}-away`, dir);
    (await s.post('/v1/jobs?dry_run=1', rootSpec())).expect(200);
  });
});

test('a folder that is away is waited for', async () => {
  await withRoot(async (s, dir) => {
    put(dir, 'a.jsonl', some(0, 10));
    const { id } = await s.submit(rootSpec({ cycles: 0 }));
    fs.renameSync(dir, `${dir}-away`);
    (await s.post(`/v1/jobs/${id}/cycles`)).expect(201);
    await until('the job to say so', async () => /cannot read/.test((await s.job(id)).reason));
    fs.renameSync(`${dir}-away`, dir);
    await frozen(s, id);
  });
});

test('a window of the last files, each record used so often', async () => {
  await withRoot(async (s, dir) => {
    put(dir, '01.jsonl', some(0, 10));
    const { id } = await s.submit(rootSpec({ cycles: 0, data: { shards: { last: 2 }, max_uses: 2 }, training: { epochs: 4 } }));
    const cycle = async () => (await s.post(`/v1/jobs/${id}/cycles`)).expect(201);
    const train = async (steps, take) => {
      const w = new FakeWorker(s);
      const lease = await until('a lease', async () => {
        const r = await w.claim();
        return r.status === 201 && r.json;
      });
      assert.equal(lease.steps, steps);
      assert.equal(lease.data.take, take);
      await w.finish();
    };
    fs.renameSync(path.join(dir, '01.jsonl'), path.join(dir, 'later'));
    await cycle();
    await until('the job to wait for its first', async () => /waits for 2 new records/.test((await s.job(id)).reason));
    fs.renameSync(path.join(dir, 'later'), path.join(dir, '01.jsonl'));
    await train(6, 20); // 2 of its 4 epochs
    await cycle();
    await until('the job to wait', async () => /waits for 2 new records/.test((await s.job(id)).reason));
    put(dir, '02.jsonl', some(10, 5));
    put(dir, '03.jsonl', some(15, 3));
    await train(4, 16); // 8 records, twice; 01 has left the window
    const list = (await s.get(`/v1/jobs/${id}/cycles`)).json.items;
    assert.deepEqual(list.map((c) => [c.fresh, c.take]), [[10, 20], [8, 16]]);
  });
});

test('a cycle may have other data than its job', async () => {
  await withRoot(async (s, dir) => {
    put(dir, 'a.jsonl', some(0, 8));
    await s.upload('tiny', { 't.jsonl': some(0, 12) });
    const { id } = await s.submit(rootSpec({ cycles: 0, data: { match: 'a*' } }));
    (await s.post(`/v1/jobs/${id}/cycles`, { data: { root: 'nope' } })).problem(400, '/data/root');
    (await s.post(`/v1/jobs/${id}/cycles`, { data: { dataset: 'tiny' } })).expect(201);
    await frozen(s, id);
    assert.equal((await s.get(`/v1/jobs/${id}/cycles/1`)).json.records, 12);
    (await s.post(`/v1/jobs/${id}/cycles`, { data: { match: 'z*' } })).problem(400, '/data/match');
    fs.rmSync(path.join(dir, 'a.jsonl'));
    (await s.post(`/v1/jobs/${id}/cycles`)).problem(400, '/data/match');
    assert.equal((await s.get(`/v1/jobs/${id}/cycles`)).json.items.length, 1);
    // who asks again gets the first answer, whatever came of the files
    put(dir, 'a.jsonl', some(0, 8));
    const key = { 'Idempotency-Key': 'k1' }, keyed = { 'Idempotency-Key': 'k2' };
    const first = (await s.post('/v1/jobs', rootSpec(), key)).expect(201).json;
    const one = (await s.post(`/v1/jobs/${id}/cycles`, {}, keyed)).expect(201).json;
    fs.rmSync(path.join(dir, 'a.jsonl'));
    assert.equal((await s.post('/v1/jobs', rootSpec(), key)).expect(201).json.id, first.id);
    assert.equal((await s.post(`/v1/jobs/${id}/cycles`, {}, keyed)).expect(201).json.number, one.number);
  });
});

test('a full disk costs no more than the wait, and leaves room for the rest', async (t) => {
  const disk = smallDisk(64);
  if (!disk) return t.skip('no small disk can be made here');
  try {
    await withRoot(async (s, dir) => {
      const random = randomBytes(30e6).map((b, i) => (i % 1000 === 999 ? 10 : 97 + b % 26));
      put(dir, 'big.jsonl.gz', zlib.gzipSync(random, { level: 1 }));
      fs.writeFileSync(path.join(disk.dir, 'ballast'), Buffer.alloc(40e6));
      const { id } = await s.submit(rootSpec());
      const j = await until('the job to say so', async () => {
        const one = await s.job(id);
        return /kept for what must still be written/.test(one.reason ?? '') && one;
      });
      assert.equal(j.state, 'queued');
      assert.deepEqual(fs.readdirSync(path.join(s.dir, 'tmp')), []);
      await s.upload('tiny', { 'a.jsonl': tinyShard(3) }); // others can still write
      fs.rmSync(path.join(disk.dir, 'ballast'));
      await frozen(s, id);
    }, { dir: path.join(disk.dir, 'state') });
  } finally {
    disk.done();
  }
});
