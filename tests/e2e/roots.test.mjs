// Real workers train where the files lie: below a --data-root, of every form, while
// they grow, and when they change below what was frozen (DAT-03, DAT-07).
import test from 'node:test';
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import zlib from 'node:zlib';
import { seekable, zstd } from '../bad_lines.mjs';
import { chessLines, chessSpec, hasWorker, merge, scratch, until, withServer } from '../harness.mjs';

const skip = !hasWorker && 'no pawl-worker';
const lines = skip ? [] : chessLines().slice(0, 300);
const text = (from, to) => lines.slice(from, to).map((l) => `${l}\n`).join('');
const parts = { 'a.jsonl': text(0, 90), 'b.jsonl': text(90, 140), 'c.jsonl': text(140, 240) };

const chess = (patch = {}) => merge(chessSpec({ runtime: { checkpoint_every: 0 } }), patch);
const below = (patch = {}) => {
  const spec = chess();
  spec.data = { root: 'games' };
  return merge(spec, patch);
};

async function withRoot(body) {
  const dir = scratch();
  const files = path.join(dir, 'games');
  fs.mkdirSync(files);
  try {
    await withServer({ workers: 0, args: ['--data-root', `games=${files}`] }, (s) => body(s, files));
  } finally {
    fs.rmSync(dir, { recursive: true, force: true });
  }
}

const ready = (s, id) => until('a cycle to be ready', async () => {
  const j = await s.job(id);
  return j.state !== 'queued' || j.reason.includes('waits for a worker');
});
// Beside the files, unless it is told to be elsewhere.
async function toTheEnd(s, id, more = { local: true }) {
  for (;;) {
    await ready(s, id);
    const job = await s.job(id);
    if (['completed', 'failed'].includes(job.state)) return job;
    const w = await s.runWorker(more);
    assert.ok(w.code !== null, w.output);
  }
}

for (const [order, training] of Object.entries({
  'read front to back': { shuffle: { mode: 'buffer', size: 100 } },
  'of all records, some held out': { shuffle: { mode: 'global' }, validation: { fraction: 0.1 } },
})) {
  test(`files below a root, whatever their form, train the model that uploads do: order ${order}`, { skip }, async () => {
    await withRoot(async (s, dir) => {
      await s.upload('chess', parts);
      fs.writeFileSync(path.join(dir, 'a.jsonl'), parts['a.jsonl']);
      fs.mkdirSync(path.join(dir, 'b'));
      fs.writeFileSync(path.join(dir, 'b/b.jsonl.gz'), zlib.gzipSync(parts['b.jsonl']));
      fs.writeFileSync(path.join(dir, 'b/c.jsonl.zst'), seekable(parts['c.jsonl']));
      const want = await toTheEnd(s, (await s.submit(chess({ training }))).id);
      assert.equal(want.state, 'completed', want.reason);
      const id = (await s.submit(below({ training, runtime: { restart: { every_micro_batches: 8 } } }))).id;
      const got = await toTheEnd(s, id);
      assert.equal(got.state, 'completed', got.reason);
      assert.equal(got.model_sha256, want.model_sha256);
      const leases = await s.leases(id);
      assert.ok(leases.length > 1, `${leases.length} leases`);
      // and the worker that has no part in any of these folders
      const far = (await s.submit(below({ training }))).id;
      const end = await toTheEnd(s, far, { local: false });
      assert.equal(end.model_sha256, want.model_sha256);
    });
  });
}

test('DAT-03: a line under way is no record yet, and one that grew is read by the next cycle', { skip }, async () => {
  await withRoot(async (s, dir) => {
    const file = path.join(dir, 'grows.jsonl');
    const half = lines[100].slice(0, Math.floor(lines[100].length / 2));
    fs.writeFileSync(file, text(0, 100) + half);
    fs.writeFileSync(path.join(dir, 'b.jsonl.zst'), zstd(text(200, 230)));
    const { id } = await s.submit(below({ cycles: 0, data: { bad_records: 'fail' }, runtime: { restart: { every_micro_batches: 8 } } }));
    (await s.post(`/v1/jobs/${id}/cycles`)).expect(201);
    await ready(s, id);
    // while it trains the file grows: in pieces, as a writer's buffer would
    const rest = lines[100].slice(half.length) + '\n' + text(101, 150);
    for (const piece of [rest.slice(0, 4096), rest.slice(4096, 8192), rest.slice(8192)]) {
      fs.appendFileSync(file, piece);
      const w = await s.runWorker({ local: true });
      assert.equal(w.code, 0, w.output);
    }
    await until('the first cycle to end', async () => {
      if ((await s.job(id)).reason?.includes('cycles')) return true;
      await s.runWorker({ local: true });
      return false;
    });
    (await s.post(`/v1/jobs/${id}/cycles`)).expect(201);
    await until('the second cycle to end', async () => {
      await ready(s, id);
      await s.runWorker({ local: true });
      return (await s.get(`/v1/jobs/${id}/cycles/2`)).json.state === 'done';
    });
    const cycles = (await s.get(`/v1/jobs/${id}/cycles`)).json.items;
    assert.deepEqual(cycles.map((c) => [c.state, c.records]), [['done', 130], ['done', 180]]);
    const job = await s.job(id);
    assert.equal(job.data?.skipped ?? 0, 0);
    // the text of the second cycle is what an upload of it would be
    await s.upload('chess', { 'a.jsonl': text(200, 230), 'b.jsonl': text(0, 150) });
    assert.notEqual(cycles[0].digest, cycles[1].digest);
  });
});

const edits = {
  'cut short': [(file) => fs.truncateSync(file, 60_000), /has shrunk: it ends at offset 60000/],
  'another of its size': [(file) => {
    const bytes = fs.readFileSync(file);
    bytes.fill(0x20, bytes.length - 2000, bytes.length - 1990);
    fs.rmSync(file);
    fs.writeFileSync(file, bytes);
  }, /was replaced by another file/],
  'a link to another': [(file) => {
    fs.renameSync(file, `${file}.elsewhere`);
    fs.symlinkSync(`${file}.elsewhere`, file);
  }, /is a symbolic link now/],
  'gone': [(file) => fs.rmSync(file), /is missing: there is no file/],
};
test('DAT-07: a file cut, replaced, linked or removed is refused in its own words; put back, it goes on', { skip }, async () => {
  await withRoot(async (s, dir) => {
    const file = path.join(dir, 'x.jsonl'), aside = `${dir}-aside`;
    fs.writeFileSync(file, text(0, 150));
    const want = await toTheEnd(s, (await s.submit(below())).id);
    assert.equal(want.state, 'completed', want.reason);
    fs.copyFileSync(file, aside);
    let last;
    for (const [what, [edit, words]] of Object.entries(edits)) {
      const { id } = await s.submit(below({ runtime: { restart: { every_micro_batches: 8 } } }));
      await ready(s, id);
      const w = await s.runWorker({ local: true });
      assert.equal(w.code, 0, w.output);
      edit(file);
      const end = await toTheEnd(s, id);
      assert.equal(end.state, 'failed', what);
      assert.match(end.reason, words, what);
      assert.equal(end.error.shard, 'x.jsonl', what);
      assert.equal(end.error.code, 'data', what);
      fs.rmSync(file, { force: true });
      fs.rmSync(`${file}.elsewhere`, { force: true });
      fs.copyFileSync(aside, file);
      last = id;
    }
    (await s.post(`/v1/jobs/${last}/retry`)).expect(200);
    const again = await toTheEnd(s, last);
    assert.equal(again.state, 'completed', again.reason);
    assert.equal(again.model_sha256, want.model_sha256);
  });
});

test('groups of files by weight, a window of the last, each record used so often', { skip }, async () => {
  await withRoot(async (s, dir) => {
    const put = (name, from, to) => fs.writeFileSync(path.join(dir, name), text(from, to));
    put('old-1.jsonl', 0, 100);
    put('new-1.jsonl', 100, 140);
    const spec = below({
      cycles: 0,
      data: { groups: [{ match: 'new-*', weight: 2 }, { match: 'old-*', weight: 0.5 }], shards: { last: 3 }, max_uses: 1.5 },
      training: { epochs: 2, shuffle: { mode: 'global' } },
    });
    const { id } = await s.submit(spec);
    const batch = (await s.job(id)).spec.training.effective_batch;
    const steps = (records, take) => Math.floor(take / records) * Math.ceil(records / batch) + Math.ceil((take % records) / batch);
    const run = async (n, records, take) => {
      (await s.post(`/v1/jobs/${id}/cycles`)).expect(201);
      await until(`cycle ${n} to end`, async () => {
        await ready(s, id);
        await s.runWorker({ local: true });
        const c = (await s.get(`/v1/jobs/${id}/cycles/${n}`)).json;
        assert.notEqual(c.state, 'failed', c.reason);
        return c.state === 'done';
      });
      const c = (await s.get(`/v1/jobs/${id}/cycles/${n}`)).json;
      assert.deepEqual([c.records, c.take, c.step], [records, take, steps(records, take)]);
    };
    await run(1, 130, 210); // 40·2 + 100·0.5; 140 new, 1.5 uses each
    put('new-2.jsonl', 140, 200);
    await run(2, 250, 90); // 60 new ones
    put('new-3.jsonl', 200, 260);
    await run(3, 290, 90); // new-1 has left the window
  });
});
