// Which processes the supervisor takes for its own, and what it does with them.
import test from 'node:test';
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { FakeWorker } from '../fake_worker.mjs';
import { Server, signal, tinyShard, tinySpec, until } from '../harness.mjs';

// A process that stands for a worker, and the claim that such a one would send.
function stranger(s, name) {
  const child = spawn('sleep', ['600'], { stdio: 'ignore' });
  const ended = new Promise((done) => child.on('close', (code, sig) => done(sig)));
  const w = new FakeWorker(s, { name, pid: child.pid });
  w.identity.local = true;
  return { w, pid: child.pid, ended };
}

test('a local worker that claims after the start is adopted: its death is seen, and it ends with the server', async () => {
  const s = await Server.start({ workers: 0 });
  let a, b;
  try {
    await s.upload('tiny', { 'a.jsonl': tinyShard(8) });
    const job = (await s.post('/v1/jobs', tinySpec())).expect(201).json;
    a = stranger(s, 'a');
    (await a.w.claim()).expect(201);
    const started = Date.now();
    // The supervisor looks about once a second; the kill must not come before.
    b = stranger(s, 'b');
    (await b.w.claim({ wait: 3 })).expect(204);
    signal(a.pid, 'SIGKILL');
    const lease = await until('the lease to be lost', async () => (await s.leases(job.id)).find((l) => l.outcome));
    assert.ok(Date.now() - started < 20_000, 'seen, not waited for in silence');
    assert.equal(lease.outcome, 'lost');
    assert.match(lease.reason, /is gone/);
  } finally {
    await s.stop();
    // One that was told to end has done so: sleep takes no time for it.
    for (const w of [a, b]) if (w) signal(w.pid, 'SIGKILL');
    if (b) assert.equal(await b.ended, 'SIGTERM', 'the server told it to end');
  }
});
