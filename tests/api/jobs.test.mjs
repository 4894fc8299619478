import test, { after, before } from 'node:test';
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { FakeWorker } from '../fake_worker.mjs';
import { Server, chessSpec, root, tinyShard, tinySpec, withServer } from '../harness.mjs';

let s;
before(async () => {
  s = await Server.start({ workers: 0 });
  await s.upload('tiny', { 'a.jsonl': tinyShard(20) });
  await s.uploadChess({ shards: 1 });
});
after(() => s.stop());

const RFC3339 = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;

test('a submitted job has the fields that scripts rely on', async () => {
  const r = await s.post('/v1/jobs', tinySpec({ labels: { who: 'me' }, priority: 3 }));
  r.expect(201);
  assert.equal(r.headers.location, `/v1/jobs/${r.json.id}`);
  const j = r.json;
  assert.ok(Number.isInteger(j.id) && Number.isInteger(j.version));
  assert.equal(j.name, 'tiny');
  assert.equal(j.kind, 'train');
  assert.equal(j.state, 'queued');
  assert.equal(typeof j.reason, 'string');
  assert.match(j.signature, /^[0-9a-f]{64}$/);
  assert.equal(j.priority, 3);
  assert.deepEqual(j.labels, { who: 'me' });
  assert.match(j.created_at, RFC3339);
  for (const k of ['cycle', 'cycles', 'epoch', 'step', 'steps', 'records', 'records_total', 'fraction', 'records_per_s', 'eta_s'])
    assert.ok(k in j.progress, `progress.${k}`);
  assert.equal(j.progress.steps, 5);
  assert.equal(j.progress.records_total, 20);
  assert.equal(j.exact.tier, 'bit');
  assert.equal(j.runtime.micro_batch, 4);
  assert.deepEqual((await s.job(j.id)).signature, j.signature);
});

test('the chess job runs as it stands', async () => {
  const text = fs.readFileSync(path.join(root, 'tests/fixtures/chess/job.json'), 'utf8');
  const j = (await s.post('/v1/jobs', text, { 'Content-Type': 'application/json' })).expect(201).json;
  assert.equal(j.progress.steps, 7); // 400 records in steps of 64
});

const wrong = [
  [{ nmae: 'x' }, '/nmae'],
  [{ kind: 'trian' }, '/kind'],
  [{ priority: 101 }, '/priority'],
  [{ priority: 1.5 }, '/priority'],
  [{ cycles: -1 }, '/cycles'],
  [{ labels: { a: 1 } }, '/labels/a'],
  [{ model: { d_model: 0 } }, '/model/d_model'],
  [{ model: { d_model: 30, heads: 4 } }, '/model/heads'],
  [{ model: { dropout: 1 } }, '/model/dropout'],
  [{ model: { size: 8 } }, '/model/size'],
  [{ record: { x: { vocab: 0 } } }, '/record/x/vocab'],
  [{ record: { x: { kind: 'token' } } }, '/record/x/kind'],
  [{ record: { legal: { columns: [] } } }, '/record/legal/columns'],
  [{ record: { policy: { over: 'illegal' } } }, '/record/policy/over'],
  [{ data: { dataset: 'nothing' } }, '/data/dataset'],
  [{ data: { bad_records: 'ignore' } }, '/data/bad_records'],
  [{ data: { policy_tolerance: -1 } }, '/data/policy_tolerance'],
  [{ training: { effective_batch: 0 } }, '/training/effective_batch'],
  [{ training: { epochs: 0 } }, '/training/epochs'],
  [{ training: { seed: -1 } }, '/training/seed'],
  [{ training: { optimizer: { lr: '0.1' } } }, '/training/optimizer/lr'],
  [{ training: { optimizer: { type: 'sgd' } } }, '/training/optimizer/type'],
  [{ training: { optimizer: { betas: [0.9] } } }, '/training/optimizer/betas'],
  [{ training: { schedule: { type: 'step' } } }, '/training/schedule/type'],
  [{ training: { losses: { x: 1 } } }, '/training/losses/x'],
  [{ training: { shuffle: { mode: 'buffer', size: 0 } } }, '/training/shuffle/size'],
  [{ runtime: { micro_batch: 0 } }, '/runtime/micro_batch'],
  [{ runtime: { micro_batch: 5 } }, '/runtime/micro_batch'],
  [{ runtime: { device: 'tpu' } }, '/runtime/device'],
  [{ runtime: { threads: -1 } }, '/runtime/threads'],
  [{ runtime: { keep: 1 } }, '/runtime/keep'],
  [{ runtime: { checkpoint_evry: 1 } }, '/runtime/checkpoint_evry'],
  [{ runtime: { restart: { rss_mb: -5 } } }, '/runtime/restart/rss_mb'],
  [{ runtime: { padding: { mode: 'stable', minimum: { Q: 5 } } } }, '/runtime/padding/minimum/Q'],
  [{ runtime: { exact: 'yes' } }, '/runtime/exact'],
  [{ limits: { failures: -1 } }, '/limits/failures'],
];
for (const [patch, pointer] of wrong) {
  test(`a spec with ${JSON.stringify(patch)} is refused at ${pointer}`, async () => {
    const jobs = (await s.get('/v1/jobs?limit=1000')).json.items.length;
    (await s.post('/v1/jobs', tinySpec(patch))).problem(400, pointer);
    assert.equal((await s.get('/v1/jobs?limit=1000')).json.items.length, jobs);
  });
}

test('integers that a double cannot hold are refused, not rounded', async () => {
  const spec = (seed) => JSON.stringify(tinySpec({ training: { seed: 12345 } })).replace('12345', seed);
  const post = (text) => s.post('/v1/jobs?dry_run=1', text, { 'Content-Type': 'application/json' });
  assert.match((await post(spec('9007199254740991'))).expect(200).text, /9007199254740991/);
  (await post(spec('9007199254740992'))).problem(400, '/training/seed');
  (await post(spec('9223372036854775808'))).problem(400);
  (await post('['.repeat(1_000_000))).problem(400);
});

test('what comes later is refused by name, not half done', async () => {
  for (const [patch, pointer] of [
    [{ kind: 'selfplay' }, '/kind'],
    [{ model: { type: 'torchscript' } }, '/model/type'],
    [{ training: { precision: 'bfloat16' } }, '/training/precision'],
  ]) {
    const p = (await s.post('/v1/jobs', tinySpec(patch))).problem(400, pointer);
    assert.match(p.detail, /not supported yet/);
  }
});

test('dry_run resolves the spec and stores nothing', async () => {
  const before = (await s.get('/v1/jobs?limit=1000')).json.items.length;
  const r = (await s.post('/v1/jobs?dry_run=1', chessSpec())).expect(200).json;
  assert.match(r.signature, /^[0-9a-f]{64}$/);
  assert.ok(r.parameters > 100_000, `${r.parameters} parameters`);
  assert.equal(r.spec.training.effective_batch, 64);
  assert.equal(r.spec.runtime.keep, 2);
  assert.equal((await s.get('/v1/jobs?limit=1000')).json.items.length, before);
});

test('the signature covers what may change the result, nothing else', async () => {
  const signature = async (patch) => (await s.post('/v1/jobs?dry_run=1', tinySpec(patch))).expect(200).json.signature;
  const base = await signature({});
  for (const patch of [{ name: 'other' }, { priority: 5 }, { labels: { a: 'b' } }, { limits: { lost: 3 } },
    { runtime: { micro_batch: 2, threads: 2, checkpoint_every: 7, restart: { rss_mb: 4000 }, padding: { mode: 'stable', minimum: { X: 9 } } } }])
    assert.equal(await signature(patch), base, JSON.stringify(patch));
  for (const patch of [{ training: { seed: 4 } }, { training: { optimizer: { lr: 0.02 } } }, { training: { epochs: 2 } }, { model: { ff: 24 } },
    { model: { dropout: 0.1 } }, { training: { losses: { value: 0.5 } } }, { training: { shuffle: { size: 17 } } }, { data: { bad_records: 'skip' } }])
    assert.notEqual(await signature(patch), base, JSON.stringify(patch));
});

test('a POST with a key may be sent again and again', async () => {
  const key = { 'Idempotency-Key': 'k-1' };
  const before = (await s.get('/v1/jobs?limit=1000')).json.items.length;
  const all = await Promise.all(Array.from({ length: 20 }, () => s.post('/v1/jobs', tinySpec({ name: 'once' }), key)));
  assert.deepEqual(new Set(all.map((r) => r.status)), new Set([201]));
  assert.equal(new Set(all.map((r) => r.json.id)).size, 1);
  (await s.post('/v1/jobs', tinySpec({ name: 'once', training: { optimizer: { lr: 0.5 } } }), key)).problem(422);
  await s.kill9();
  await s.launch();
  const again = (await s.post('/v1/jobs', tinySpec({ name: 'once' }), key)).expect(201);
  assert.equal(again.json.id, all[0].json.id);
  assert.equal((await s.get('/v1/jobs?limit=1000')).json.items.length, before + 1);
});

test('a refused POST with a key may be mended and sent again', async () => {
  const key = { 'Idempotency-Key': 'k-2' };
  const first = (await s.post('/v1/jobs', tinySpec({ data: { dataset: 'later' } }), key)).problem(400, '/data/dataset');
  assert.ok(first);
  await s.upload('later', { 'a.jsonl': tinyShard(4) });
  const second = await s.post('/v1/jobs', tinySpec({ data: { dataset: 'later' } }), key);
  assert.ok([201, 400].includes(second.status), second.text); // the first answer, or a new try; never a 500
});

test('lists filter, page and end', async () => {
  for (let i = 0; i < 5; i++) await s.submit(tinySpec({ name: `page-${i}`, labels: { set: 'page' } }));
  const seen = [];
  let cursor = '';
  do {
    const page = (await s.get(`/v1/jobs?label=set=page&limit=2${cursor && `&cursor=${cursor}`}`)).expect(200).json;
    assert.ok(page.items.length <= 2);
    seen.push(...page.items.map((j) => j.name));
    if (page.next !== undefined) assert.match(String(page.next), /^[A-Za-z0-9._~-]+$/);
    cursor = page.next;
  } while (cursor !== undefined);
  assert.deepEqual(seen.sort(), [0, 1, 2, 3, 4].map((i) => `page-${i}`));
  const q = (await s.get('/v1/jobs?q=page-3')).expect(200).json.items;
  assert.deepEqual(q.map((j) => j.name), ['page-3']);
  assert.ok((await s.get('/v1/jobs?state=completed')).expect(200).json.items.length === 0);
  (await s.get('/v1/jobs?state=done')).problem(400);
  (await s.get('/v1/jobs?limit=1001')).problem(400);
  (await s.get('/v1/jobs?limit=0')).problem(400);
  (await s.get('/v1/jobs?cursor=%20nonsense')).problem(400);
});

test('text/plain answers are aligned, one value a line', async () => {
  const j = await s.submit(tinySpec({ name: 'for eyes' }));
  for (const r of [await s.get(`/v1/jobs/${j.id}`, { Accept: 'text/plain' }), await s.get(`/v1/jobs/${j.id}?as=text`)]) {
    r.expect(200);
    assert.match(r.headers['content-type'], /^text\/plain/);
    assert.match(r.text, /^name +for eyes$/m);
    assert.match(r.text, /^state +queued$/m);
    assert.ok(r.text.endsWith('\n'));
  }
  const list = (await s.get('/v1/jobs?as=text')).expect(200).text;
  assert.match(list, /for eyes/);
  assert.ok(!list.includes('{'));
  // one line a job, of a terminal's width
  assert.match(list.split('\n')[0], /^ *id +name +state +step +steps\b/);
  for (const line of list.trimEnd().split('\n')) assert.ok(line.length <= 200, line);
});

test('PATCH changes the runtime policy, priority and labels, and nothing else', async () => {
  const j = await s.submit(tinySpec());
  const r = (await s.patch(`/v1/jobs/${j.id}`, { priority: -5, labels: { a: 'b' }, runtime: { checkpoint_every: 3, restart: { every_micro_batches: 9 } } })).expect(200).json;
  assert.equal(r.priority, -5);
  assert.deepEqual(r.labels, { a: 'b' });
  assert.equal(r.runtime.checkpoint_every, 3);
  assert.equal(r.runtime.restart.every_micro_batches, 9);
  assert.equal(r.runtime.micro_batch, 4);
  assert.equal(r.signature, j.signature);
  assert.ok(r.version > j.version);
  for (const [patch, pointer] of [
    [{ training: { optimizer: { lr: 0.5 } } }, '/training/optimizer/lr'],
    [{ training: { seed: 9 } }, '/training/seed'],
    [{ data: { dataset: 'chess' } }, '/data/dataset'],
    [{ model: { ff: 99 } }, '/model/ff'],
    [{ record: { x: { vocab: 99 } } }, '/record/x/vocab'],
  ]) {
    const p = (await s.patch(`/v1/jobs/${j.id}`, patch)).problem(409);
    assert.ok(pointer.startsWith(p.pointer) && p.pointer.length > 1, `${p.pointer} for ${pointer}`);
  }
  (await s.patch(`/v1/jobs/${j.id}`, { runtime: { micro_batch: 0 } })).problem(400, '/runtime/micro_batch');
  (await s.patch(`/v1/jobs/${j.id}`, { runtime: { nothing: 0 } })).problem(400, '/runtime/nothing');
  (await s.patch(`/v1/jobs/${j.id}`, { priority: 'high' })).problem(400, '/priority');
  (await s.patch(`/v1/jobs/${j.id}`, { colour: 1 })).problem(400, '/colour');
  const end = await s.job(j.id);
  assert.equal(end.runtime.micro_batch, 4);
  assert.equal(end.priority, -5);
});

test('a queued job pauses, resumes, is canceled, and can be removed', async () => {
  const j = await s.submit(tinySpec());
  (await s.delete(`/v1/jobs/${j.id}`)).problem(409);
  assert.equal((await s.post(`/v1/jobs/${j.id}/pause`)).expect(200).json.state, 'paused');
  assert.equal((await s.post(`/v1/jobs/${j.id}/pause`)).expect(200).json.state, 'paused');
  assert.equal((await s.post(`/v1/jobs/${j.id}/resume`)).expect(200).json.state, 'queued');
  assert.equal((await s.post(`/v1/jobs/${j.id}/cancel`)).expect(200).json.state, 'canceled');
  (await s.post(`/v1/jobs/${j.id}/resume`)).problem(409);
  (await s.delete(`/v1/jobs/${j.id}`)).expect(204);
  (await s.get(`/v1/jobs/${j.id}`)).problem(404);
});

test('wait returns when the version has passed, or when the time is up', async () => {
  const j = await s.submit(tinySpec());
  const begin = Date.now();
  const waiting = s.get(`/v1/jobs/${j.id}?wait=30&version=${j.version}`);
  (await s.patch(`/v1/jobs/${j.id}`, { priority: 1 })).expect(200);
  const r = (await waiting).expect(200).json;
  assert.ok(r.version > j.version);
  assert.ok(Date.now() - begin < 15_000);
  const late = (await s.get(`/v1/jobs/${j.id}?wait=1&version=${r.version}`)).expect(200).json;
  assert.equal(late.version, r.version);
  (await s.get(`/v1/jobs/${j.id}?wait=61`)).problem(400);
  (await s.get(`/v1/jobs/${j.id}?wait=x`)).problem(400);
});

test('an unknown dataset comes after errors of shape', async () => {
  (await s.post('/v1/jobs', tinySpec({ data: { dataset: 'nothing' }, training: { epochs: 0 } }))).problem(400, '/training/epochs');
});

test('after: a job waits for those before it, and says so', async () => {
  const first = await s.submit(tinySpec());
  const second = await s.submit(tinySpec({ after: [first.id] }));
  assert.equal(second.state, 'queued');
  assert.deepEqual(second.after, [first.id]);
  assert.match((await s.job(second.id)).reason, new RegExp(`\\b${first.id}\\b`));
  const p = (await s.post('/v1/jobs', tinySpec({ after: [987654] }))).problem(400, '/after/0');
  assert.match(p.detail, /wait for itself/);
  const any = await s.submit(tinySpec({ after: [{ job: first.id, when: 'ended' }, { job: second.id, when: 'completed' }] }));
  assert.deepEqual(any.after, [{ job: first.id, when: 'ended' }, second.id]);
  for (const [after, pointer] of [
    [[{ job: first.id, when: 'failed' }], '/after/0/when'],
    [[{ when: 'ended' }], '/after/0/job'],
    [[first.id, { job: first.id }], '/after/1'],
    [['1'], '/after/0'],
    [first.id, '/after'],
  ]) (await s.post('/v1/jobs', tinySpec({ after }))).problem(400, pointer);
  (await s.patch(`/v1/jobs/${second.id}`, { after: [] })).problem(409, '/after');

  // a cancel takes along who waits for the completion, and no one else
  const then = await s.submit(tinySpec({ after: [{ job: first.id, when: 'ended' }] }));
  (await s.post(`/v1/jobs/${first.id}/cancel`)).expect(200);
  assert.equal((await s.job(second.id)).state, 'canceled');
  assert.match((await s.job(second.id)).reason, new RegExp(`job ${first.id}\\b`));
  assert.equal((await s.job(any.id)).state, 'canceled');
  assert.match((await s.job(then.id)).reason, /waits for a worker/);
  const events = (await s.get(`/v1/jobs/${any.id}/events`)).json.items;
  assert.match(events.at(-1).cause, new RegExp(`job ${second.id}\\b`));
});

test('not_before: a job waits for its time, and begins then', async () => {
  for (const bad of ['tomorrow', '2030-01-01', '2030-01-01T00:00:00', '2030-02-30T00:00:00Z', 5])
    (await s.post('/v1/jobs', tinySpec({ not_before: bad }))).problem(400, '/not_before');
  const late = await s.submit(tinySpec({ not_before: '2199-07-01T10:00:00+02:00' }));
  assert.equal(late.not_before_at, '2199-07-01T08:00:00.000Z');
  assert.equal(late.spec.not_before, '2199-07-01T08:00:00.000Z');
  assert.match(late.reason, /waits until 2199-07-01T08:00:00.000Z/);
  assert.equal((await s.post(`/v1/jobs/${late.id}/pause`)).expect(200).json.state, 'paused');
  assert.match((await s.post(`/v1/jobs/${late.id}/resume`)).expect(200).json.reason, /waits until/);
  assert.equal((await s.post(`/v1/jobs/${late.id}/cancel`)).expect(200).json.state, 'canceled');
  assert.match((await s.post(`/v1/jobs/${late.id}/retry`)).expect(200).json.reason, /waits until/);

  const soon = await s.submit(tinySpec({ not_before: new Date(Date.now() + 1500).toISOString() }));
  assert.match(soon.reason, /waits until/);
  const ready = await s.waitJob(soon.id, 'ready', (j) => j.cycle_state === 'ready');
  assert.ok(Date.now() >= Date.parse(soon.not_before_at), 'not before');
  assert.match(ready.reason, /waits for a worker/);
  assert.equal((await s.submit(tinySpec())).not_before_at, null);
});

test('an ETag counts edits; If-Match refuses a patch of something older', async () => {
  const posted = (await s.post('/v1/jobs', tinySpec())).expect(201);
  const id = posted.json.id;
  const tag = async () => (await s.get(`/v1/jobs/${id}`)).expect(200).headers.etag;
  assert.equal(posted.headers.etag, '"e1"');
  assert.equal(await tag(), '"e1"');
  const done = (await s.patch(`/v1/jobs/${id}`, { priority: 1 }, { 'If-Match': '"e1"' })).expect(200);
  assert.equal(done.headers.etag, '"e2"');
  const p = (await s.patch(`/v1/jobs/${id}`, { priority: 2 }, { 'If-Match': '"e1"' })).problem(412);
  assert.match(p.detail, /"e2"/);
  assert.equal((await s.job(id)).priority, 1);
  (await s.patch(`/v1/jobs/${id}`, { priority: 3 }, { 'If-Match': '"e1", "e2"' })).expect(200);
  (await s.patch(`/v1/jobs/${id}`, { priority: 4 }, { 'If-Match': '*' })).expect(200);
  (await s.patch(`/v1/jobs/${id}`, { priority: 5 })).expect(200);
  assert.equal(await tag(), '"e5"');
  // what is no edit does not count: nothing new, a pause, progress
  (await s.patch(`/v1/jobs/${id}`, { priority: 5 })).expect(200);
  (await s.post(`/v1/jobs/${id}/pause`)).expect(200);
  assert.equal(await tag(), '"e5"');
  (await s.patch('/v1/jobs/987654', { priority: 1 }, { 'If-Match': '*' })).problem(404);
});

test('a dry run explains: memory, who could run it, and why others could not', async () => {
  await withServer({ workers: 0 }, async (own) => {
    await own.uploadChess({ shards: 1 });
    const explain = async (patch) => (await own.post('/v1/jobs?dry_run=1', chessSpec(patch))).expect(200).json;
    const alone = await explain({});
    assert.deepEqual([alone.workers, alone.others, alone.warnings], [[], [], ['no worker is there']]);
    await new FakeWorker(own, { name: 'plain' }).claim();
    await new FakeWorker(own, { name: 'gpu', devices: [{ kind: 'cpu' }, { kind: 'cuda', memory_bytes: 2 ** 28 }] }).claim();

    const r = await explain({});
    assert.deepEqual(r.workers.sort(), ['gpu', 'plain']);
    const m = r.memory;
    assert.equal(m.weights_bytes, 4 * r.parameters);
    assert.equal(m.optimizer_bytes, 2 * m.weights_bytes);
    assert.equal(m.total_bytes, m.weights_bytes + m.gradients_bytes + m.optimizer_bytes + m.activations_bytes + m.snapshot_bytes + m.library_bytes);
    assert.equal(m.device, 'cpu');
    assert.ok(m.sampled_records > 50, `${m.sampled_records} records`);
    assert.ok(m.lengths.S.longest > 10 && m.lengths.S.minimum === 72);
    const wide = await explain({ model: { d_model: 256, ff: 1024, heads: 4 } });
    assert.ok(wide.memory.activations_bytes > 4 * m.activations_bytes);
    const more = await explain({ runtime: { micro_batch: 64 } });
    assert.ok(more.memory.activations_bytes > 2 * m.activations_bytes);
    assert.equal(more.memory.weights_bytes, m.weights_bytes);

    const cuda = await explain({ runtime: { device: 'cuda' } });
    assert.deepEqual(cuda.workers, ['gpu']);
    assert.equal(cuda.others.length, 1);
    assert.equal(cuda.others[0].worker, 'plain');
    assert.match(cuda.others[0].reason, /has no cuda device/);
    assert.equal(cuda.memory.device, 'cuda');
    assert.match(cuda.warnings.join(), /gpu has 256 MB/);
    const nobody = await explain({ runtime: { resources: { labels: { gpu: 'none-such' } } } });
    assert.deepEqual([nobody.workers, nobody.others.length], [[], 2]);
    assert.match(nobody.warnings.join(), /none of the workers there can train it/);
    const odd = await explain({ record: { state: { vocab: 2 } } });
    assert.match(odd.warnings.join(), /do not fit the spec; the first: shard shard-0000.jsonl, line 1, field state/);
  });
});
