// The status page, as a person meets it: in a browser, on a real server.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { after, before, test } from 'node:test';
import { FakeWorker, madeUp } from '../fake_worker.mjs';
import { chessSpec, hasWorker, sha256, tinyShard, tinySpec, until, withServer } from '../harness.mjs';
import { assertFits, logIn, NARROW, openPage, pointsShown, screenshot, startBrowser, WIDE } from './browser.mjs';

const UNAUTHORIZED = /401 \(/;    // what Chromium itself says of the first, cookieless question
const UNREACHABLE = /net::ERR_/;  // and of a server that is away

let browser;
before(async () => { browser = await startBrowser(); });
after(() => browser?.close());

// A server without workers of its own, and a tiny dataset.
const quietServer = (body) => withServer({ workers: 0 }, async (server) => {
  await server.upload('tiny', { 'a.jsonl': tinyShard(400) });
  await body(server);
});

// Steps from…to as a worker would report them.
const losses = (from, to) => Array.from({ length: to - from }, (_, i) => {
  const loss = 3 / (from + i + 2);
  return [from + i + 1, { loss, 'loss/policy': loss * 0.8, 'loss/value': loss * 0.2, lr: 0.01, grad_norm: 1 + loss }];
});
const beat = (worker, from, to, more = {}) => worker.heartbeat({
  position: worker.position(to), metrics: losses(from, to), records_per_s: 123.4,
  memory: [{ step: to, at_ms: Date.now(), rss_bytes: 300 * 2 ** 20 + to * 2 ** 20 }], ...more,
}).then((r) => r.expect(200));

// ---- login -----------------------------------------------------------------

test('the printed link logs in once, and leaves no code in the address', () => quietServer(async (server) => {
  const page = await openPage(browser);
  await page.goto(server.loginUrl);
  await page.waitForSelector('.empty:not([hidden])');
  assert.equal(new URL(page.url()).hash, '#/jobs');
  const [cookie] = await page.context().cookies();
  assert.match(cookie.name, /^pawl_/);
  assert.equal(cookie.httpOnly, true);
  assert.equal(cookie.sameSite, 'Strict');
  assert.notEqual(cookie.value, server.token);
  // Going back does not bring the code up again.
  assert.equal(await page.evaluate(() => history.length), 2);
  await page.endClean();

  const second = await openPage(browser, { expected: [UNAUTHORIZED, /40[0-9] \(/] });
  await second.goto(server.loginUrl);
  await second.waitForSelector('#login-error:has-text("used already")');
  assert.equal(new URL(second.url()).hash, '#/jobs');
  assert.equal((await second.context().cookies()).length, 0);
  await second.endClean();
}));

test('a link opened again in a browser that is logged in just works', () => quietServer(async (server) => {
  const page = await openPage(browser, { expected: [/40[0-9] \(/] });
  await page.goto(server.loginUrl);
  await page.waitForSelector('.empty:not([hidden])');
  await page.goto('about:blank');
  await page.goto(server.loginUrl);
  await page.waitForSelector('.empty:not([hidden])');
  await page.endClean();
}));

test('the token opens the page; a wrong one is told so', () => quietServer(async (server) => {
  const page = await openPage(browser, { expected: [/40[0-9] \(/] });
  await page.goto(server.url);
  await page.waitForSelector('.login');
  await screenshot(page, 'login');
  await page.fill('#token', 'not-the-token');
  await page.keyboard.press('Enter');
  await page.waitForSelector('#login-error:has-text("not this server’s token")');
  assert.equal((await page.context().cookies()).length, 0);
  await page.fill('#token', `${server.token}\n`);
  await page.keyboard.press('Enter');
  await page.waitForSelector('.empty:not([hidden])');
  // Neither page nor browser storage keeps the token.
  assert.deepEqual(await page.evaluate(() => [localStorage.length, sessionStorage.length]), [0, 0]);
  assert.ok(!(await page.content()).includes(server.token));
  await page.reload();
  await page.waitForSelector('.empty:not([hidden])');
  await page.endClean();
}));

// ---- what is shown ---------------------------------------------------------

test('a waiting job shows why it waits and no figure that nobody measured', () => quietServer(async (server) => {
  const { id } = await server.submit(tinySpec({ name: 'waits' }));
  const page = await openPage(browser, { expected: [UNAUTHORIZED] });
  await logIn(page, server);
  const row = page.locator(`tr.job[data-id="${id}"]`);
  await row.waitFor();
  assert.equal(await row.locator('.state').innerText(), 'queued');
  assert.ok(await row.locator('.state svg path').count(), 'a shape beside the word');
  const listed = (await server.get('/v1/jobs')).expect(200).json.items.find((j) => j.id === id);
  assert.equal(await row.locator('.reason').innerText(), listed.reason);
  assert.equal(await row.locator('.rate').innerText(), '');
  assert.equal(await row.locator('.left').innerText(), '');
  await row.locator('a.name').click();
  await page.waitForSelector('h1:has-text("waits")');
  assert.equal(await page.locator('[data-fact="Speed"]:visible, [data-fact="Time left"]:visible').count(), 0);
  assert.equal(await page.locator('[data-fact="Sweep"]:visible, [data-fact="Comes after"]:visible, [data-fact="Not before"]:visible').count(), 0);
  assert.equal(await page.locator('.summary .reason').innerText(), (await server.job(id)).reason);
  assert.ok(await page.locator('text=Nothing measured yet.').isVisible());
  assert.ok(await page.locator('text=No worker has taken this job yet.').isVisible());
  assert.equal(await page.locator('section.model:visible').count(), 0);
  await page.endClean();
}));

test('a job shows its sweep, what it comes after, and its time', () => quietServer(async (server) => {
  const first = await server.submit(tinySpec({ name: 'first' }));
  const other = await server.submit(tinySpec({ name: 'other' }));
  const { items } = (await server.post('/v1/jobs', {
    ...tinySpec({ name: 'many', after: [first.id, { job: other.id, when: 'ended' }], not_before: '2199-07-01T08:00:00Z' }),
    sweep: { '/training/seed': [5, 6], '/training/optimizer/lr': [0.01] },
  })).expect(201).json;
  const page = await openPage(browser, { expected: [UNAUTHORIZED] });
  await logIn(page, server);
  const row = page.locator(`tr.job[data-id="${items[1].id}"]`);
  await row.waitFor();
  assert.equal(await row.locator('.id').innerText(), `#${items[1].id} · seed 6, lr 0.01`);
  assert.equal(await page.locator(`tr.job[data-id="${first.id}"] .id`).innerText(), `#${first.id}`);
  await row.locator('a.name').click();
  await page.waitForSelector('h1:has-text("many")');
  const fact = (name) => page.locator(`[data-fact="${name}"] dd`).innerText();
  assert.equal(await fact('Sweep'), `#${items[1].sweep.id}: seed 6, lr 0.01`);
  assert.equal(await fact('Comes after'), `#${first.id}, #${other.id} (any end)`);
  assert.match(await fact('Not before'), /2199/);
  assert.match(await page.locator('.summary .reason').innerText(), /waits for job .* to complete/);
  await page.endClean();
}));

test('list and job follow a training job, its yield, its loss and its end without a reload', () => quietServer(async (server) => {
  const { id } = await server.submit(tinySpec({ name: 'followed' })); // 100 steps
  const list = await openPage(browser, { expected: [UNAUTHORIZED] });
  await logIn(list, server);
  const page = await openPage(browser, { expected: [UNAUTHORIZED] });
  await logIn(page, server);
  await page.goto(`${server.url}/#/jobs/${id}`);
  await page.waitForSelector('h1:has-text("followed")');
  for (const p of [list, page])
    await p.evaluate(() => { window.neverReloaded = true; });
  const row = list.locator(`tr.job[data-id="${id}"]`);
  await row.waitFor();

  const worker = new FakeWorker(server, { name: 'bench-1' });
  (await worker.claim()).expect(201);
  await beat(worker, 0, 30);
  await page.waitForSelector('.summary .state:has-text("running")');
  await page.waitForFunction(() => document.querySelector('[data-plot="Loss"] g.line')?.dataset.points === '30');
  await list.waitForSelector(`tr.job[data-id="${id}"] .steps:has-text("step 30 of 100 · 30 %")`);
  assert.equal(await row.locator('.state').innerText(), 'running');
  assert.equal(await row.locator('.rate').innerText(), '123 records/s');
  assert.equal(await row.locator('[role=progressbar]').getAttribute('aria-valuenow'), '30');
  assert.equal(await page.locator('.lease .worker').innerText(), 'bench-1');

  // The curve grows.
  await beat(worker, 30, 40);
  await page.waitForFunction(() => document.querySelector('[data-plot="Loss"] g.line').dataset.points === '40');
  assert.equal(await page.locator('[data-plot="Loss"] .key').count(), 3);

  // A yield is a line on it and a row below it, each with the reason.
  const manifest = await worker.save(40);
  (await worker.checkpoint(manifest, { release: worker.releaseBody('yielded', 'steps', 40) })).expect(201);
  await page.waitForSelector('[data-plot="Loss"] .mark[data-kind="yielded"]');
  assert.match(await page.locator('[data-plot="Loss"] .mark title').textContent(), /step 40: yielded, step threshold reached/);
  const first = page.locator('.lease').last();
  assert.equal(await first.locator('.outcome').innerText(), 'yielded');
  assert.match(await first.locator('.reason').innerText(), /step threshold reached/);
  assert.equal(await first.locator('.steps').innerText(), '0 → 40');
  assert.equal(await first.locator('.peak').innerText(), '340 MiB process');

  // So is a failure that is tried again.
  worker.reborn();
  (await worker.claim()).expect(201);
  await beat(worker, 40, 50);
  (await worker.release('failed', 'the disk said no', 50, { error: { code: 'io', detail: 'the disk said no', final: false } })).expect(200);
  await page.waitForSelector('[data-plot="Loss"] .mark[data-kind="failed"]');

  worker.reborn();
  await until('the second try', async () => (await worker.claim({ wait: 5 })).status === 201);
  await beat(worker, 40, 100);
  await worker.finish();
  const done = await server.completed(id);
  await page.waitForSelector('.summary .state:has-text("completed")');
  assert.equal(await page.locator('.model .digest').innerText(), done.model_sha256);
  assert.equal(await page.locator('.lease').count(), 3);
  assert.equal(await page.locator('#live').textContent().then((t) => /followed is completed/.test(t)), true);
  await list.waitForSelector(`tr.job[data-id="${id}"][data-state="completed"]`);

  // The file behind the link is the model.
  const [download] = await Promise.all([page.waitForEvent('download'), page.click('.model a')]);
  assert.equal(sha256(fs.readFileSync(await download.path())), done.model_sha256);

  for (const p of [list, page])
    assert.equal(await p.evaluate(() => window.neverReloaded), true);
  await list.endClean();
  await page.endClean();
}));

test('a job of many leases shows all of them, newest first', () => quietServer(async (server) => {
  const { id } = await server.submit(tinySpec({ training: { epochs: 3 } })); // 300 steps
  const worker = new FakeWorker(server);
  const yieldAfter = async (step) => {
    (await worker.reborn().claim()).expect(201);
    await beat(worker, step - 1, step);
    const manifest = await worker.save(step, { tensors: madeUp(step, 10) });
    (await worker.checkpoint(manifest, { release: worker.releaseBody('yielded', 'steps', step) })).expect(201);
  };
  for (let step = 1; step <= 205; step++) await yieldAfter(step);
  const page = await openPage(browser, { expected: [UNAUTHORIZED] });
  await logIn(page, server);
  await page.goto(`${server.url}/#/jobs/${id}`);
  await page.waitForSelector('.lease');
  assert.equal(await page.locator('.lease .steps').first().innerText(), '204 → 205');
  const marks = () => page.locator('[data-plot="Loss"] .mark').evaluateAll((all) => all.reduce((n, m) => n + Number(m.dataset.count), 0));
  assert.equal(await marks(), 205);
  await yieldAfter(206);
  await page.waitForSelector('.lease:first-child .steps:text-is("205 → 206")');
  assert.equal(await marks(), 206);
  await screenshot(page, 'many-leases');
  await page.click('button:has-text("Show all 206")');
  assert.equal(await page.locator('.lease').count(), 206);
  assert.equal(await page.locator('.lease .steps').last().innerText(), '0 → 1');
  await page.endClean();
}));

test('the URL holds which series are shown; a plot answers to the keyboard', () => quietServer(async (server) => {
  const { id } = await server.submit(tinySpec());
  const worker = new FakeWorker(server);
  (await worker.claim()).expect(201);
  await beat(worker, 0, 20);
  const page = await openPage(browser, { expected: [UNAUTHORIZED, /404 \(/] });
  await logIn(page, server);
  await page.goto(`${server.url}/#/jobs/${id}?series=lr,loss`);
  await page.waitForSelector('[data-plot="Learning rate"]');
  assert.deepEqual(await page.locator('.picker input:checked').evaluateAll((all) => all.map((b) => b.value)), ['loss', 'lr']);
  await page.locator('.picker input[value="grad_norm"]').check();
  await page.waitForSelector('[data-plot="Gradient norm"]');
  await page.locator('.picker input[value="lr"]').uncheck();
  await page.waitForSelector('[data-plot="Learning rate"]', { state: 'detached' });
  await page.reload();
  await page.waitForSelector('[data-plot="Gradient norm"]');
  assert.deepEqual(await page.locator('.picker input:checked').evaluateAll((all) => all.map((b) => b.value)), ['loss', 'grad_norm']);

  await page.locator('[data-plot="Loss"] svg.plot').focus();
  await page.keyboard.press('Home');
  await page.waitForSelector('[data-plot="Loss"] .where:text-is("step 1")');
  await page.keyboard.press('ArrowRight');
  await page.waitForSelector('[data-plot="Gradient norm"] .where:text-is("step 2")'); // one cursor for all
  assert.equal(await page.locator('[data-plot="Loss"] .key b').innerText(), '1.000');

  // The list by keyboard alone.
  await page.goto(`${server.url}/#/jobs`);
  await page.waitForSelector('tr.job');
  for (let i = 0; i < 5 && !(await page.evaluate(() => document.activeElement.matches('a.name'))); i++)
    await page.keyboard.press('Tab');
  await page.keyboard.press('Enter');
  await page.waitForSelector('.summary');
  assert.equal(new URL(page.url()).hash, `#/jobs/${id}`);
  await page.goBack();
  await page.waitForSelector('table.jobs');
  await page.goto(`${server.url}/#/jobs/999999`);
  await page.waitForSelector('h1:has-text("There is no job #999999")');
  await page.endClean();
}));

test('the loss of held-out records stands beside the loss; odd records are told', () => quietServer(async (server) => {
  const { id } = await server.submit(tinySpec());
  const worker = new FakeWorker(server);
  (await worker.claim()).expect(201);
  const metrics = losses(0, 10).map(([step, v]) => [step, { ...v, padding_waste: 0.25, shapes: 3, ...(step % 5 ? {} : { 'validation/loss': v.loss + 1 }) }]);
  await beat(worker, 0, 10, { stage: 'validate', metrics, data: { skipped: 0, bad: [], renormalised: 4, exceeded: { X: { count: 3, longest: 90 } } } });
  const page = await openPage(browser, { expected: [UNAUTHORIZED] });
  await logIn(page, server);
  await page.goto(`${server.url}/#/jobs/${id}`);
  await page.waitForSelector('[data-plot="Loss"] g.line path');
  assert.equal(await page.locator('[data-plot="Loss"] g.line').count(), 4, 'loss, its two parts, and the held-out one');
  assert.match(await page.locator('[data-plot="Loss"]').innerText(), /validation\/loss/);
  const facts = await page.locator('dl.facts').innerText();
  assert.match(facts, /validating/);
  assert.match(facts, /Policies renormalised\s+4/i);
  assert.match(facts, /Longer than foreseen\s+X: 3, at most 90/i);
  await page.locator('.picker input[value="padding_waste"]').check();
  await page.waitForSelector('[data-plot="Padding that holds nothing"] g.line path', { state: 'attached' }); // flat
  await page.endClean();
}));

test('NET-06: names, reasons and addresses that look like markup are shown as text', () => quietServer(async (server) => {
  const names = ['<img src=x onerror=alert(1)>', '"\'><svg onload=alert(2)>', '</script><script>alert(3)</script>'];
  const { id } = await server.submit(tinySpec({ name: names[0], labels: { 'a<b>': names[1] } }));
  const worker = new FakeWorker(server, { name: names[1] });
  (await worker.claim()).expect(201);
  await beat(worker, 0, 3, { logs: [{ at_ms: Date.now(), level: 'info', text: names[2] }] });
  (await worker.release('failed', names[2], 3, { error: { code: 'data', detail: names[2], final: true } })).expect(200);
  const job = await server.failed(id);
  assert.ok(job.reason.includes(names[2]), job.reason);

  const page = await openPage(browser, { expected: [UNAUTHORIZED] });
  await logIn(page, server);
  const row = page.locator(`tr.job[data-id="${id}"]`);
  await row.waitFor();
  assert.equal(await row.locator('.name').innerText(), names[0]);
  assert.equal(await row.locator('.reason').innerText(), job.reason);
  await page.goto(`${server.url}/#/jobs/${id}?series="><img src=x onerror=alert(4)>,loss`);
  await page.waitForSelector('.lease');
  assert.equal(await page.locator('h1').innerText(), names[0]);
  assert.ok((await page.title()).includes(names[0]));
  assert.equal(await page.locator('.lease .worker').innerText(), names[1]);
  assert.ok((await page.locator('.lease .reason').innerText()).includes(names[2]));
  assert.ok(await page.locator(`.pairs dd:text-is(${JSON.stringify(names[1])})`).count());
  assert.equal(await page.locator('main img, main script').count(), 0);

  // The same words in plain-text feeds, in JSON and in errors that quote the address,
  // opened as documents: no tag becomes an element.
  const bad = `'"><img src=x onerror=alert(5)>`;
  const documents = [`/v1/jobs?as=text`, `/v1/jobs/${id}?as=text`, `/v1/jobs/${id}/logs?as=text`, `/v1/jobs/${id}/leases?as=text`,
    `/v1/jobs/${id}/events?as=text`, '/v1/workers?as=text', `/v1/jobs/${id}`, '/v1/jobs',
    `/v1/jobs/${id}/logs`, '/v1/workers', `/v1/jobs/${encodeURIComponent(bad)}`, `/v1/jobs?${encodeURIComponent(bad)}=1`,
    `/v1/jobs?cursor=${encodeURIComponent(bad)}`, `/v1/datasets/${encodeURIComponent(bad)}`, `/${encodeURIComponent(bad)}`];
  const plain = await openPage(browser, { expected: [UNAUTHORIZED, /40\d \(/] });
  await logIn(plain, server);
  for (const path of documents) {
    const r = await plain.goto(server.url + path);
    assert.match(r.headers()['content-type'], /^(text\/plain|application\/(problem\+)?json)/, path);
    assert.equal(r.headers()['x-content-type-options'], 'nosniff', path);
    const found = await plain.evaluate(() => ({
      tags: [...document.querySelectorAll('img, svg, script')].map((e) => e.outerHTML), text: document.body.innerText,
    }));
    assert.deepEqual(found.tags, [], path);
    if (/jobs\?as=text|jobs\/\d+\?as|leases|logs\?|workers\?/.test(path)) assert.ok(/<\/script>|<svg onload|<img src=x/.test(found.text), `${path}: ${found.text}`);
  }
  await plain.endClean();
  await page.endClean();
}));

test('a killed server is noticed, and the page goes on when it is back', () => quietServer(async (server) => {
  // The same address again after a restart.
  server.args = server.args.map((a) => (a === '127.0.0.1:0' ? new URL(server.url).host : a));
  const { id } = await server.submit(tinySpec({ name: 'survivor' }));
  const worker = new FakeWorker(server);
  (await worker.claim()).expect(201);
  await beat(worker, 0, 10);
  const page = await openPage(browser, { expected: [UNAUTHORIZED, UNREACHABLE] });
  await logIn(page, server);
  await page.goto(`${server.url}/#/jobs/${id}`);
  await page.waitForFunction(() => document.querySelector('[data-plot="Loss"] g.line')?.dataset.points === '10');
  await page.evaluate(() => { window.neverReloaded = true; });

  await server.kill9();
  await page.waitForSelector('#connection:not([hidden])');
  assert.match(await page.locator('#connection').innerText(), /No answer from the server/);
  assert.equal(await page.locator('h1').innerText(), 'survivor'); // what is known stays
  await screenshot(page, 'lost');

  await server.launch();
  // The page tries again by itself, and may have done so before we press the button.
  await page.evaluate(() => { const b = document.querySelector('#connection button'); if (b) b.click(); });
  await page.waitForSelector('#connection', { state: 'hidden' });
  await beat(worker, 10, 15);
  await page.waitForFunction(() => document.querySelector('[data-plot="Loss"] g.line').dataset.points === '15');
  assert.equal(await page.evaluate(() => window.neverReloaded), true);
  await page.endClean();
}));

test('figures keep what was measured, and what is not known has no text', () => quietServer(async (server) => {
  const page = await openPage(browser, { expected: [UNAUTHORIZED] });
  await page.goto(server.url);
  const got = await page.evaluate(async () => {
    const f = await import('/format.js');
    const { ticks, gather } = await import('/plot.js');
    return {
      value: [2.34567, 0.000981234, 1.2345e-7, 0, -3.5, 123456.7, NaN, null, Infinity].map((v) => f.value(v)),
      percent: [0, 0.999, 0.9999999, 1, null].map(f.percent),
      bytes: [0, 1023, 2 ** 20, 393 * 2 ** 20, 1.5 * 2 ** 30, undefined].map(f.bytes),
      duration: [0.001, 0.25, 59.7, 61, 3600, 90061, -1, null].map(f.duration),
      rate: [0.5, 99.94, 1234.5, null].map(f.perSecond),
      ago: [0, 61, 7200, 200000].map((s) => f.ago(new Date(1e12 - s * 1000).toISOString(), 1e12)),
      ticks: [ticks(0, 100, 5).at, ticks(0.1, 0.35, 4).at.map((v) => v.toFixed(2)), ticks(0, 3, 8, { whole: true }).at],
      gather: gather([{ x: 9, kind: 'lost' }, { x: 2, kind: 'yielded' }, { x: 1, kind: 'yielded' }], (x) => x * 2).map((g) => g.marks.length),
    };
  });
  assert.deepEqual(got, {
    value: ['2.346', '0.0009812', '1.235e-7', '0', '-3.500', '123,457', null, null, null],
    percent: ['0 %', '99 %', '99 %', '100 %', null],
    bytes: ['0 B', '1,023 B', '1.00 MiB', '393 MiB', '1.50 GiB', null],
    duration: ['< 0.1 s', '0.3 s', '1 min 00 s', '1 min 01 s', '1 h 00 min', '1 d 1 h', null, null],
    rate: ['0.5 records/s', '99.9 records/s', '1,235 records/s', null],
    ago: ['just now', '1 min ago', '2 h ago', '2 d ago'],
    ticks: [[0, 20, 40, 60, 80, 100], ['0.10', '0.20', '0.30'], [0, 1, 2, 3]],
    gather: [2, 1],
  });
  await page.endClean();
}));

// ---- how it looks ----------------------------------------------------------

test('nothing sticks out, light or dark, from 360 px to wide', () => quietServer(async (server) => {
  const long = 'a-name-without-any-space-that-goes-on-and-on-and-on-for-longer-than-a-telephone-is-wide';
  const { id } = await server.submit(tinySpec({ name: long }));
  const worker = new FakeWorker(server, { name: 'a-host-with-a-rather-long-name.example.org/worker-12' });
  (await worker.claim()).expect(201);
  await beat(worker, 0, 50);
  const manifest = await worker.save(50);
  (await worker.checkpoint(manifest, { release: worker.releaseBody('yielded', 'memory', 50, { detail: 'rss_mb is 900, found 913' }) })).expect(201);
  await server.submit(tinySpec({ name: 'second' }));

  for (const scheme of ['light', 'dark']) {
    for (const size of [{ width: 360, height: 740 }, NARROW, { width: 820, height: 900 }, WIDE, { width: 1920, height: 1000 }]) {
      const name = `${scheme}, ${size.width} px`;
      const page = await openPage(browser, { scheme, size, expected: [UNAUTHORIZED] });
      await page.goto(server.url);
      await page.waitForSelector('.login');
      await assertFits(page, `login, ${name}`);
      await logIn(page, server);
      await page.waitForSelector('tr.job');
      await assertFits(page, `jobs, ${name}`);
      if (size === WIDE || size === NARROW) await screenshot(page, `jobs-${scheme}-${size.width}`);
      await page.goto(`${server.url}/#/jobs/${id}?series=loss,loss/policy,loss/value,lr`);
      await page.waitForSelector('[data-plot="Loss"] g.line path');
      await assertFits(page, `job, ${name}`);
      if (size === WIDE || size === NARROW) await screenshot(page, `job-${scheme}-${size.width}`);
      const dark = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      assert.equal(Number(/\d+/.exec(dark)[0]) < 128, scheme === 'dark', `${name}: ground is ${dark}`);
      assert.deepEqual(await tooFaint(page), [], name);
      await page.endClean();
    }
  }
}));

// Texts whose contrast to their ground is below WCAG's 4.5.
const tooFaint = (page) => page.evaluate(() => {
  const channels = (c) => (/rgba?\(([^)]+)\)/.exec(c)?.[1] ?? '0 0 0 0').split(/[ ,/]+/).map(Number);
  const light = (c) => {
    const [r, g, b] = channels(c).slice(0, 3).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const groundOf = (e) => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if ((channels(c)[3] ?? 1) === 1) return c;
    }
    return 'rgb(255,255,255)';
  };
  const faint = [];
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || !e.getClientRects().length) continue;
    const style = getComputedStyle(e);
    const [a, b] = [light(e instanceof SVGElement ? style.fill : style.color), light(groundOf(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) faint.push(`${e.tagName} ${e.className} ${e.textContent.slice(0, 30)}`);
  }
  return faint;
});

test('the policy allows nothing inline and nothing from elsewhere', () => quietServer(async (server) => {
  for (const file of ['/', '/app.js', '/style.css', '/icon.svg']) {
    const r = (await server.get(file, { Authorization: null })).expect(200);
    const policy = r.headers['content-security-policy'];
    for (const part of ["default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"])
      assert.ok(policy.includes(part), `${file}: ${policy}`);
    assert.ok(!/unsafe|https?:|\*/.test(policy), policy);
    assert.equal(r.headers['x-content-type-options'], 'nosniff');
    assert.ok(!/https?:\/\/(?!www\.w3\.org)/.test(r.text), `${file} names no other host`);
  }
  // A change of a file is seen at once, an unchanged one costs nothing.
  const { etag } = (await server.get('/app.js', { Authorization: null })).headers;
  (await server.get('/app.js', { Authorization: null, 'If-None-Match': etag })).expect(304);
}));

// ---- real workers ----------------------------------------------------------

test('a real job on real records: live curve, yields, resumes, the model', { skip: !hasWorker && 'no pawl-worker' }, () =>
  withServer({ workers: 1 }, async (server) => {
    await server.uploadChess();
    const spec = chessSpec({ name: 'chess-tiny', training: { epochs: 8 }, runtime: { restart: { every_micro_batches: 140 }, checkpoint_every: 100 } });
    const { id } = await server.submit(spec);
    await server.submit(chessSpec({ name: 'chess-tiny, another seed', training: { seed: 8 } }));
    const page = await openPage(browser, { expected: [UNAUTHORIZED] });
    await logIn(page, server);
    await page.waitForSelector(`tr.job[data-id="${id}"][data-state="running"]`);
    const steps = page.locator(`tr.job[data-id="${id}"] .steps`);
    const early = await until('a first step in the list', async () => {
      const shown = Number(/^step ([\d,]+) of/.exec(await steps.innerText())?.[1].replace(',', ''));
      return shown > 0 && shown;
    });
    await until('a later step in the list', async () =>
      Number(/^step ([\d,]+) of/.exec(await steps.innerText())?.[1].replace(',', '')) > early);
    await screenshot(page, 'real-jobs');
    await page.click(`tr.job[data-id="${id}"] a.name`);
    await page.waitForSelector('[data-plot="Loss"] g.line path');
    const before = await pointsShown(page);
    await page.waitForFunction((n) => Number(document.querySelector('[data-plot="Loss"] g.line').dataset.points) > n, before);
    await page.waitForSelector('[data-plot="Loss"] .mark[data-kind="yielded"]');
    await until('a second lease', async () => (await page.locator('.lease').count()) >= 2);
    await screenshot(page, 'real-job-running');

    const done = await server.completed(id);
    await page.waitForSelector('.summary .state:has-text("completed")');
    const leases = await server.leases(id);
    assert.ok(leases.length >= 2, `${leases.length} leases`);
    await until('all leases', async () => (await page.locator('.lease').count()) === Math.min(12, leases.length));
    const marks = await page.locator('[data-plot="Loss"] .mark').evaluateAll((all) => all.reduce((n, m) => n + Number(m.dataset.count), 0));
    assert.equal(marks, leases.filter((l) => l.outcome !== 'finished').length);
    assert.equal(await page.locator('.model .digest').innerText(), done.model_sha256);
    assert.match(await page.locator('[data-fact="Exactness"] dd').innerText(), /^bit-exact/);
    assert.match(await page.locator('.lease .peak').first().innerText(), /MiB process/);
    assert.equal(await pointsShown(page), Math.min(500, done.progress.steps));
    await screenshot(page, 'real-job');
    await page.endClean();
  }));
