// POST /v1/leases/{id}/room: a worker asks before it saves.
import test from 'node:test';
import assert from 'node:assert/strict';
import { FakeWorker } from '../fake_worker.mjs';
import { tinyShard, tinySpec, withServer } from '../harness.mjs';

const PB = 2 ** 50; // more than any disk has

test('room is promised, or refused with the number of missing bytes, and the job says so', async () => {
  await withServer({ workers: 0 }, async (s) => {
    await s.upload('tiny', { 'a.jsonl': tinyShard(24) });
    const job = await s.submit(tinySpec());
    const w = new FakeWorker(s);
    (await w.claim()).expect(201);
    const ask = (bytes, more = {}) => s.post(`/v1/leases/${w.id}/room`, { token: w.token, bytes, ...more });
    (await ask(1000)).expect(204);
    assert.equal((await s.job(job.id)).reason, null);
    const p = (await ask(PB, { step: 3 })).problem(507);
    assert.equal(p.code, 'no_space');
    assert.ok(p.missing_bytes > PB / 2, JSON.stringify(p));
    assert.ok(p.detail.includes(`${p.missing_bytes} bytes are missing`));
    let j = await s.job(job.id);
    assert.equal(j.state, 'running');
    assert.match(j.reason, /^no room for the checkpoint of step 3: \d+ bytes are missing; there is none before it$/);
    assert.equal(j.parked, null);
    (await ask(1000, { step: 4 })).expect(204);
    assert.equal((await s.job(job.id)).reason, null);

    // what it may not say
    (await s.post(`/v1/leases/${w.id}/room`, { token: w.token - 1, bytes: 1 })).problem(409);
    (await s.post(`/v1/leases/${w.id}/room`, { token: w.token })).problem(400, '/bytes');
    (await s.post(`/v1/leases/${w.id}/room`, { token: w.token, bytes: -1 })).problem(400, '/bytes');
    (await ask(1, { room: 1 })).problem(400, '/room');
    (await s.post('/v1/leases/999/room', { token: 1, bytes: 1 })).problem(404);

    // it must end: parked at the cost of no budget
    const m = await w.save(2);
    (await w.checkpoint(m)).expect(201);
    const error = { code: 'no_space', detail: 'no room', final: false, bytes: PB / 2, missing_bytes: p.missing_bytes };
    (await w.release('failed', 'no room', 4, { error })).expect(200);
    j = await s.job(job.id);
    assert.equal(j.state, 'queued');
    assert.equal(j.parked.missing_bytes, p.missing_bytes);
    assert.match(j.reason, /step 2's is kept$/);
    assert.equal(j.budgets.failures, 0);
    (await w.reborn().claim()).expect(204);
    const text = (await s.get(`/v1/jobs/${job.id}`, { Accept: 'text/plain' })).expect(200).text;
    assert.match(text, /waits for room on disk/);
    // and one that needs less goes on beside it
    const other = await s.submit(tinySpec());
    (await w.reborn().claim()).expect(201);
    assert.equal(w.lease.lease.job, other.id);
    (await w.finish());
    (await s.post(`/v1/jobs/${job.id}/cancel`)).expect(200);
    assert.equal((await s.job(job.id)).state, 'canceled');
  });
});
