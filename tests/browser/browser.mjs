// browser.mjs - Chromium on the page of a server under test.
//
// Every page that is opened is watched: a dialog, an error on the console or a
// report of the content policy fails its test, unless the test said that it
// provokes such a thing.
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { chromium } from 'playwright-core';
import { bin } from '../harness.mjs';

const executablePath = process.env.TEST_CHROMIUM ?? '/usr/bin/chromium';
const shots = process.env.TEST_SHOTS ?? path.join(bin, '..', 'screenshots');

export const WIDE = { width: 1280, height: 860 }, NARROW = { width: 390, height: 800 };

export const startBrowser = () => chromium.launch({
  executablePath,
  args: ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
    '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});

// A page in a profile of its own (no cookie yet). `expected`: patterns of
// console errors that the test brings about.
export async function openPage(browser, { scheme = 'light', size = WIDE, expected = [] } = {}) {
  const context = await browser.newContext({ colorScheme: scheme, viewport: size, acceptDownloads: true });
  const page = await context.newPage();
  page.setDefaultTimeout(Number(process.env.TEST_PATIENCE_S ?? 60) * 1000);
  const wrong = [];
  page.on('dialog', (d) => {
    wrong.push(`dialog: ${d.message()}`);
    d.dismiss();
  });
  page.on('pageerror', (e) => wrong.push(`error: ${e.stack}`));
  page.on('console', (m) => {
    if (['error', 'warning'].includes(m.type()) && !expected.some((e) => e.test(m.text())))
      wrong.push(`console: ${m.text()}`);
  });
  await page.addInitScript(() => {
    addEventListener('securitypolicyviolation', (e) => console.error(`policy: ${e.violatedDirective} ${e.blockedURI} ${e.sample}`));
  });
  page.endClean = async () => {
    await context.close();
    assert.deepEqual(wrong, []);
  };
  return page;
}

// By token: the one-time link has been used by the first who came.
export async function logIn(page, server) {
  await page.goto(server.url);
  await page.fill('#token', server.token);
  await page.click('.login button');
  await page.waitForSelector('h1:has-text("Jobs")');
}

// Names of views as people see them, in the build folder.
export async function screenshot(page, name) {
  fs.mkdirSync(shots, { recursive: true });
  await page.screenshot({ path: path.join(shots, `${name}.png`), animations: 'disabled' });
}

// No sideways scrolling, and nothing that sticks out of the window.
export async function assertFits(page, what) {
  const out = await page.evaluate(() => {
    const wide = [...document.querySelectorAll('main *')].filter((e) => {
      const box = e.getBoundingClientRect();
      return box.width > 1 && box.right > innerWidth + 1;
    }).map((e) => e.outerHTML.slice(0, 120));
    return { scroll: document.documentElement.scrollWidth - innerWidth, wide };
  });
  assert.ok(out.scroll <= 0 && out.wide.length === 0, `${what}: ${JSON.stringify(out)}`);
}

// Points that the line of a series has now.
export const pointsShown = (page, plot = 'Loss') => page.evaluate((title) =>
  Number(document.querySelector(`[data-plot="${title}"] g.line`)?.dataset.points ?? 0), plot);
