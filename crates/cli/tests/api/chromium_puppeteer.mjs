// Puppeteer, with nothing changed but the address that it connects to; and pages that attack.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);
const puppeteer = require('puppeteer-core');
const [address, visit, port] = process.argv.slice(2);
const site = 'http://localhost:8000';
// A driver that waits for ever fails.
setTimeout(() => process.exit(9), 60000).unref();

const browser = await puppeteer.connect({ browserWSEndpoint: address, defaultViewport: null });
const page = (await browser.pages())[0];
await page.goto(`${site}/`);
await page.type('input', 'world');
await page.click('button');
assert.equal(await page.$eval('h1', (heading) => heading.textContent), 'Hello world');
if (visit === 'first') {
  await page.evaluate(() => document.querySelector('a').click());
  await new Promise((resolve) => setTimeout(resolve, 500));
} else {
  // Networks of the owner and the cloud's services: what answers is the gateway, which says why not.
  const other = await browser.newPage();
  for (const place of ['http://10.0.0.1/', 'http://192.168.0.1/', 'http://169.254.169.254/latest/', 'http://example.com/', `http://127.0.0.1:${port}/`]) {
    const answer = await other.goto(place, { timeout: 4000 }).catch(() => null);
    const text = await answer?.text();
    assert.ok(!answer || (answer.status() === 403 && text.startsWith('offleash: ')), `${place}: ${text}`);
  }
  const reached = await page.evaluate(() => fetch('file:///etc/passwd').then(() => true, () => false));
  assert.equal(reached, false);
  // Nor does a page drive its own browser.
  const driven = await page.evaluate(async () => {
    const told = await fetch('http://localhost:9222/json/version').then((answer) => answer.text(), () => 'refused');
    const socket = new WebSocket('ws://localhost:9222/devtools/browser/any');
    const opened = await new Promise((resolve) => {
      socket.onopen = () => resolve('opened');
      socket.onerror = () => resolve('refused');
    });
    return [told, opened];
  });
  assert.deepEqual(driven, ['refused', 'refused']);
  const files = await page.evaluate(() => {
    const frame = document.body.appendChild(document.createElement('iframe'));
    frame.src = 'file:///etc/passwd';
    return new Promise((resolve) => setTimeout(() => {
      try {
        resolve(String(frame.contentDocument?.body.textContent ?? ''));
      } catch {
        resolve('');
      }
    }, 300));
  });
  assert.ok(!files.includes('root:'), files);
  // Dialogs without an end: whoever drives the browser is answered all the same, and so is who releases the session.
  page.on('dialog', () => {});
  await page.evaluate(() => {
    setTimeout(() => {
      for (;;) alert('again');
    }, 0);
  });
  await new Promise((resolve) => setTimeout(resolve, 200));
  assert.ok((await browser.version()).includes('/'));
}
await browser.disconnect();
