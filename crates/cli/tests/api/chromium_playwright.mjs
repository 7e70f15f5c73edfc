// Playwright, with nothing changed but the address that it connects to.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);
const { chromium } = require('playwright-core');
const [address, visit] = process.argv.slice(2);
const site = 'http://localhost:8000';

const browser = await chromium.connectOverCDP(address);
const [context] = browser.contexts();
const page = context.pages()[0] ?? (await context.newPage());
page.setDefaultTimeout(15000);
await page.goto(`${site}/`);
if (visit === 'second') {
  // What the first session requested is a HAR that Playwright reads, and answers from.
  const replayed = await browser.newContext();
  await replayed.routeFromHAR('first.har', { notFound: 'abort' });
  const again = await replayed.newPage();
  assert.equal((await again.goto(`${site}/login`)).status(), 200);
  const answer = await again.goto(`${site}/login?of=har`).catch((error) => error.message);
  assert.ok(String(answer).includes('ERR_FAILED'), String(answer));
  await replayed.close();
  const cookies = await context.cookies(site);
  assert.deepEqual(Object.fromEntries(cookies.map(({ name, value }) => [name, value])), { login: 'sesame', lasting: 'yes' });
  assert.equal(await page.evaluate(() => localStorage.getItem('cart')), 'apples');
} else {
  await page.goto(`${site}/moved`);
  await page.goto(`${site}/login`);
  await page.goto(`${site}/`);
  await page.evaluate(() => localStorage.setItem('cart', 'apples'));
}
await page.getByLabel('who').fill('world');
await page.getByRole('button', { name: 'Go' }).click();
await page.getByText('Hello world').waitFor();
await page.frameLocator('iframe').getByText('inside').waitFor();
const { zone, language } = await page.evaluate(() => ({
  zone: Intl.DateTimeFormat().resolvedOptions().timeZone, language: navigator.language,
}));
assert.deepEqual({ zone, language }, { zone: 'Asia/Tokyo', language: 'de-DE' });
await browser.close();
