// Datasets on the page: the list, and one of them with what was found in it.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { after, before, test } from 'node:test';
import { chessSpec, tinyShard, withServer } from '../harness.mjs';
import { assertFits, logIn, NARROW, openPage, screenshot, startBrowser, WIDE } from './browser.mjs';

const UNAUTHORIZED = /401 \(/; // what Chromium itself says of the first, cookieless question

let browser;
before(async () => { browser = await startBrowser(); });
after(() => browser?.close());

const quietServer = (body) => withServer({ workers: 0 }, body);
const census = async (server, name, query = '') =>
  (await server.get(`/v1/datasets/${name}/inspect${query}`)).expect(200).json;
const grouped = (n) => n.toLocaleString('en-US');
const fact = (page, name) => page.locator(`[data-fact="${name}"] dd`).innerText();

test('the navigation leads to the datasets, and from there to each of them and back', () => quietServer(async (server) => {
  const page = await openPage(browser, { expected: [UNAUTHORIZED, /404 \(/] });
  await logIn(page, server);
  assert.equal(await page.locator('nav a[aria-current]').innerText(), 'Jobs');
  await page.click('nav a:has-text("Datasets")');
  await page.waitForSelector('.empty:not([hidden])');
  assert.match(await page.locator('.empty pre').innerText(), /curl[^]*-T shard-0000\.jsonl http:\/\/127\.0\.0\.1:\d+\/v1\/datasets\/NAME\/shards\//);
  assert.equal(await page.locator('nav a[aria-current]').innerText(), 'Datasets');

  // One that is uploaded meanwhile turns up, and grows.
  await server.upload('tiny', { 'a.jsonl': tinyShard(400) });
  const row = page.locator('tr.set[data-name="tiny"]');
  await row.waitFor();
  await page.waitForSelector('tr.set:has-text("400 records")');
  await server.upload('tiny', { 'b.jsonl': tinyShard(30) });
  await page.waitForSelector('tr.set:has-text("430 records")');
  assert.match(await row.innerText(), /2 shards/);

  await row.locator('a.name').focus();
  await page.keyboard.press('Enter');
  await page.waitForSelector('h1:has-text("tiny")');
  assert.equal(new URL(page.url()).hash, '#/datasets/tiny');
  await page.click('.crumbs a');
  await row.waitFor();
  await page.click('nav a:has-text("Jobs")');
  await page.waitForSelector('h1:has-text("Jobs")');
  await page.goto(`${server.url}/#/datasets/nothing`);
  await page.waitForSelector('h1:has-text("There is no dataset nothing")');
  await page.endClean();
}));

test('a dataset shows its lengths, what to pad to, its description and its shards', () => quietServer(async (server) => {
  await server.uploadChess();
  const { record } = chessSpec();
  (await server.put('/v1/datasets/chess', { record })).expect(200);
  const found = await census(server, 'chess');
  const page = await openPage(browser, { expected: [UNAUTHORIZED] });
  await page.context().grantPermissions(['clipboard-read', 'clipboard-write'], { origin: server.url });
  await logIn(page, server);
  await page.goto(`${server.url}/#/datasets/chess`);
  await page.waitForSelector('figure[data-dim="S"] .bin');
  assert.equal(await fact(page, 'Records'), grouped(found.records));
  assert.equal(await fact(page, 'Distinct shapes'), grouped(found.shapes));
  assert.equal(await fact(page, 'Bad lines'), '0');
  assert.equal(await fact(page, 'Duplicates'), '0');
  assert.equal(await fact(page, 'Policies off 1'), `${grouped(found.policy.off)} of ${grouped(found.policy.records)}`);
  assert.match(await page.locator('.look .what').innerText(), /All records were counted/);
  assert.equal(await page.locator('.look button:visible').count(), 0);

  // A plot for each dimension; the keyboard reads it out.
  assert.deepEqual((await page.locator('figure[data-dim]').evaluateAll((all) => all.map((f) => f.dataset.dim))).sort(), ['A', 'H', 'O', 'S']);
  const plot = page.locator('figure[data-dim="S"]');
  assert.equal(await plot.locator('.bin').count(), found.dims.S.histogram.length);
  assert.match(await plot.locator('figcaption').innerText(), new RegExp(`median\\s*${found.dims.S.p50}\\s*99 %\\s*${found.dims.S.p99}\\s*longest\\s*${found.dims.S.max}`));
  await plot.locator('svg').focus();
  await page.keyboard.press('Home');
  const [[shortest, n]] = found.dims.S.histogram;
  assert.match(await plot.locator('.where').innerText(), new RegExp(`^length ${shortest}: ${n} records; \\d+ % are no longer$`));
  await page.keyboard.press('End');
  assert.match(await plot.locator('.where').innerText(), new RegExp(`^length ${found.dims.S.max}: .*; 100 % are no longer$`));

  // Each padding as the server advises it, and into the clipboard with it.
  const rows = page.locator('.advice tbody tr');
  const paddings = [{ mode: 'dynamic' }, found.advice.stable.p99.padding, found.advice.stable.p100.padding,
    ...['4', '8', '16'].map((k) => found.advice.ladder[k].padding)];
  assert.deepEqual((await rows.locator('code').allInnerTexts()).map((t) => JSON.parse(t)), paddings);
  assert.equal(await rows.nth(3).locator('td').nth(1).innerText(), `${(found.advice.ladder[4].waste * 100).toFixed(1)} %`);
  await rows.nth(4).locator('button').click();
  await rows.nth(4).locator('button:has-text("Copied")').waitFor();
  assert.deepEqual(JSON.parse(await page.evaluate(() => navigator.clipboard.readText())), found.advice.ladder[8].padding);
  assert.equal(await page.locator('#live').textContent(), 'Copied');

  const set = (await server.get('/v1/datasets/chess')).expect(200).json;
  assert.deepEqual(JSON.parse(await page.locator('[data-record]').innerText()), set.record);
  assert.equal(await page.locator('.shards tbody tr').count(), 4);
  const [download] = await Promise.all([page.waitForEvent('download'), page.click('.shards a >> nth=0')]);
  assert.equal(download.suggestedFilename(), 'shard-0000.jsonl');
  assert.deepEqual((await page.locator('[data-list="outliers"] tbody tr').count()), found.outliers.length);
  await page.evaluate(() => scrollTo(0, 0));
  await screenshot(page, 'dataset');
  await page.endClean();
}));

test('where the clipboard may not be used the padding is selected', () => quietServer(async (server) => {
  await server.upload('tiny', { 'a.jsonl': tinyShard(40) });
  const page = await openPage(browser, { expected: [UNAUTHORIZED] });
  await page.addInitScript(() => { Object.defineProperty(navigator, 'clipboard', { value: undefined }); });
  await logIn(page, server);
  await page.goto(`${server.url}/#/datasets/tiny`);
  await page.click('.advice tbody tr:nth-child(2) button');
  await page.waitForSelector('.advice button:has-text("Selected")');
  assert.equal(await page.evaluate(() => getSelection().toString()), await page.locator('.advice tbody tr:nth-child(2) code').innerText());
  await page.endClean();
}));

const numbered = (from, n) => Array.from({ length: n }, (_, i) => `{"n":${from + i},"a":[${Array((from + i) % 5).fill(1)}],"text":"${'x'.repeat(700)}"}\n`).join('');

test('a sample says that it is one; all records are counted at the press of a button', () => quietServer(async (server) => {
  for (let i = 0; i < 10; i++) await server.upload('many', { [`s${i}.jsonl`]: numbered(i * 1990, 2000) });
  const page = await openPage(browser, { expected: [UNAUTHORIZED] });
  await logIn(page, server);
  await page.goto(`${server.url}/#/datasets/many`);
  await page.waitForSelector('.look .what:has-text("A sample: the beginnings of 8 of 10 shards")');
  assert.equal(await page.locator('[data-fact="Duplicates"]').count(), 0, 'no figure that nobody counted');
  await screenshot(page, 'dataset-sample');
  await page.click('.look button');
  await page.waitForSelector('.look[data-complete="yes"]');
  const found = await census(server, 'many', '?whole=1');
  assert.equal(await fact(page, 'Duplicates'), '90');
  assert.equal(found.duplicates.records, 90);
  assert.match(await page.locator('#live').textContent(), /All records were counted/);
  assert.equal(await page.locator('[data-list="duplicates"] tbody tr').count(), 20);
  const first = found.duplicates.first[0];
  assert.deepEqual(await page.locator('[data-list="duplicates"] tbody tr:first-child td').allInnerTexts(),
    [`${first.shard}, line ${grouped(first.line)}`, `${first.same_as.shard}, line ${grouped(first.same_as.line)}`]);
  // A dataset that grows is a sample again, without a reload.
  await server.upload('many', { 't.jsonl': numbered(0, 1) });
  await page.waitForSelector('.look[data-complete="no"] .what:has-text("of 11 shards")');
  await page.endClean();
}));

test('a count that fails says why', () => quietServer(async (server) => {
  await server.upload('many', Object.fromEntries(Array.from({ length: 3 }, (_, i) => [`s${i}.jsonl`, numbered(i * 5000, 5000)])));
  const page = await openPage(browser, { expected: [UNAUTHORIZED, /50\d \(/, /40\d \(/] });
  await logIn(page, server);
  await page.goto(`${server.url}/#/datasets/many`);
  await page.waitForSelector('.look button:visible');
  fs.rmSync(`${server.dir}/datasets/many/s1.jsonl`);
  await page.click('.look button');
  await page.waitForSelector('.look .error:has-text("s1.jsonl")');
  assert.ok(await page.locator('.look button').isVisible(), 'it can be tried again');
  await page.endClean();
}));

test('of many shards the first are shown, and all when asked for', () => quietServer(async (server) => {
  await server.upload('many', Object.fromEntries(Array.from({ length: 103 }, (_, i) => [`s${i}.jsonl`, `{"a":[${i}]}\n`])));
  const page = await openPage(browser, { expected: [UNAUTHORIZED] });
  await logIn(page, server);
  await page.goto(`${server.url}/#/datasets/many`);
  await page.waitForSelector('.shards tbody tr');
  assert.equal(await page.locator('.shards tbody tr').count(), 100);
  await page.click('button:has-text("Show all 103")');
  assert.equal(await page.locator('.shards tbody tr').count(), 103);
  assert.equal(await page.locator('button:has-text("Show all")').isVisible(), false);
  await page.endClean();
}));

test('bad lines are shown with their reasons, as text', () => quietServer(async (server) => {
  await server.upload('odd', { 'a.jsonl': '{"a":[1]}\n{"<img src=x onerror=alert(1)>":[1,2]}\n{"a":\n["x"]\n' });
  const page = await openPage(browser, { expected: [UNAUTHORIZED] });
  await logIn(page, server);
  await page.goto(`${server.url}/#/datasets/odd`);
  await page.waitForSelector('[data-list="bad"]');
  assert.match(await page.locator('[data-list="bad"] h2').innerText(), /Bad lines: 2/);
  assert.deepEqual(await page.locator('[data-list="bad"] tbody tr td:first-child').allInnerTexts(), ['a.jsonl, line 3', 'a.jsonl, line 4']);
  assert.match(await page.locator('[data-list="bad"] tbody tr td:last-child').last().innerText(), /not a JSON object/);
  assert.ok(await page.locator('figure[data-dim="<img src=x onerror=alert(1)>"]').isVisible());
  assert.match(await page.locator('#record-title ~ p').innerText(), /None is set/);
  await page.endClean();
}));

test('a job leads to its dataset, looked at as the job describes it', () => quietServer(async (server) => {
  await server.uploadChess({ shards: 1, records: 50 });
  const { id } = await server.submit(chessSpec({ name: 'reads chess' }));
  const page = await openPage(browser, { expected: [UNAUTHORIZED] });
  await logIn(page, server);
  await page.goto(`${server.url}/#/jobs/${id}`);
  await page.click('[data-fact="Data"] a');
  await page.waitForSelector('figure[data-dim="S"] .bin');
  assert.equal(new URL(page.url()).hash, `#/datasets/chess?job=${id}`);
  assert.equal(await fact(page, 'Looked at by'), 'the job’s description');
  await page.endClean();
}));

test('nothing sticks out of the datasets, light or dark, from 360 px to wide', () => quietServer(async (server) => {
  const long = 'a-name-without-any-space-that-goes-on-and-on-for-longer-than-a-telephone-is-wide';
  await server.uploadChess({ dataset: long });
  (await server.put(`/v1/datasets/${long}`, { record: chessSpec().record })).expect(200);
  await server.upload('odd', { 'a.jsonl': `{"a":[1]}\n{"a":\n${'{"a":[1]}\n'.repeat(3)}` });
  for (const scheme of ['light', 'dark']) {
    for (const size of [{ width: 360, height: 740 }, NARROW, { width: 820, height: 900 }, WIDE]) {
      const name = `${scheme}, ${size.width} px`;
      const page = await openPage(browser, { scheme, size, expected: [UNAUTHORIZED] });
      await logIn(page, server);
      await page.goto(`${server.url}/#/datasets`);
      await page.waitForSelector('tr.set');
      await assertFits(page, `list, ${name}`);
      for (const set of [long, 'odd']) {
        await page.goto(`${server.url}/#/datasets/${set}`);
        await page.waitForSelector('figure[data-dim] .bin');
        await assertFits(page, `${set}, ${name}`);
        if (size === WIDE || size === NARROW) await screenshot(page, `dataset-${set === long ? 'chess' : 'odd'}-${scheme}-${size.width}`);
      }
      await page.endClean();
    }
  }
}));
