// Whose turn it is, over HTTP: urgent jobs without end, and cancels that meet the end.
import test from 'node:test';
import assert from 'node:assert/strict';
import { FakeWorker, madeUp } from '../fake_worker.mjs';
import { moment, randomSource, tinyShard, tinySpec, withServer } from '../harness.mjs';

const AGE_S = 1;

test('QUE-08: urgent jobs without end do not starve a lowly one: it starts within the documented bound', async (t) => {
  await withServer({ workers: 0, args: ['--age', String(AGE_S)] }, async (s) => {
    await s.upload('tiny', { 'a.jsonl': tinyShard(4) });
    const submit = (priority) => s.submit(tinySpec({ priority }));
    // The queue is never empty of urgent ones: two come for each that is done.
    await submit(9);
    const lowly = await submit(1);
    const begin = Date.now();
    const bound_s = (9 - 1 + 1) * AGE_S; // (difference of priorities + 1) × age
    let order = [], started;
    const w = new FakeWorker(s);
    while (!started) {
      (await w.reborn().claim()).expect(201);
      const at = (Date.now() - begin) / 1000;
      order.push(w.lease.lease.job);
      if (w.lease.lease.job === lowly.id) started = at;
      assert.ok(at < bound_s + 5, `it waits for ${at} s, behind ${order.length} others`);
      await submit(9);
      await submit(9);
      await moment(200);
      await w.finish({ tensors: madeUp(1, 10) });
    }
    t.diagnostic(`it started after ${started.toFixed(1)} s (bound ${bound_s} s), behind ${order.length - 1} urgent ones`);
    assert.ok(order.length > 5, 'the urgent ones went first');
    // one lease of the worker may be under way when its turn has come
    assert.ok(started <= bound_s + 1, `${started} s`);
    const urgent = order.slice(0, -1);
    assert.deepEqual(urgent, [...urgent].sort((a, b) => a - b), 'first in, first out among equals');
    const waits = (await s.get('/v1/jobs?state=queued&limit=1000')).json.items;
    assert.ok(waits.every((j) => j.reason), 'each that waits says why');
  });
});

test('QUE-07: a hundred cancels at the moment of completion: one end each, and it stays', async (t) => {
  const random = randomSource(t);
  await withServer({ workers: 0 }, async (s) => {
    await s.upload('tiny', { 'a.jsonl': tinyShard(4) });
    const ends = { canceled: 0, completed: 0 };
    let lag = 0; // of the cancel, so that each comes first half of the time
    for (let i = 0; i < 100; i++) {
      const job = await s.submit(tinySpec());
      const w = new FakeWorker(s);
      (await w.claim()).expect(201);
      const manifest = await w.save(1, { tensors: madeUp(1, 10) });
      const later = async (ms, call) => { await moment(random() * 3 + ms); return call(); };
      const [cancel, end] = await Promise.all([
        later(Math.max(0, lag), () => s.post(`/v1/jobs/${job.id}/cancel`)),
        later(Math.max(0, -lag), () => w.checkpoint(manifest, { release: w.releaseBody('finished', 'all steps are done', 1) })),
      ]);
      const { state } = await s.job(job.id);
      ends[state]++;
      lag += state === 'canceled' ? 0.5 : -0.5;
      // Whoever came first is told so, and the other one is not told otherwise.
      if (state === 'completed') cancel.problem(409);
      else cancel.expect(200);
      end.expect(201);
      // What is sent again, and what is asked for late, changes nothing.
      (await w.checkpoint(manifest, { release: w.releaseBody('finished', 'all steps are done', 1) })).expect(201);
      (await w.heartbeat()).problem(409);
      assert.equal((await s.post(`/v1/jobs/${job.id}/cancel`)).status, state === 'canceled' ? 200 : 409);
      assert.equal((await s.job(job.id)).state, state);
      const kinds = (await s.get(`/v1/jobs/${job.id}/events?limit=1000`)).json.items.map((e) => e.kind);
      assert.deepEqual(kinds.filter((k) => ['canceled', 'completed', 'failed'].includes(k)), [state], kinds.join(' '));
    }
    t.diagnostic(JSON.stringify(ends));
    assert.equal(ends.canceled + ends.completed, 100);
    assert.ok(ends.canceled > 5 && ends.completed > 5, `both came to pass: ${JSON.stringify(ends)}`);
  });
});
