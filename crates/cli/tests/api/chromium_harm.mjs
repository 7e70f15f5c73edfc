// What pages do to a browser, and what somebody else at it sees of that.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

const require = createRequire(import.meta.url);
const puppeteer = require('puppeteer-core');
const [address, what] = process.argv.slice(2);
const site = 'http://localhost:8000';
// Of another site, so that no process of the others is its own.
const other = 'http://127.0.0.1:8000';
// A driver that waits for ever fails.
setTimeout(() => process.exit(9), 85000).unref();

const browser = await puppeteer.connect({ browserWSEndpoint: address, defaultViewport: null, protocolTimeout: 80000 });
const [page] = await browser.pages();
page.setDefaultTimeout(80000);

const actions = {
  async files() {
    await page.goto(`${site}/`);
    const client = await page.createCDPSession();
    const { root } = await client.send('DOM.getDocument');
    const { nodeId } = await client.send('DOM.querySelector', { nodeId: root.nodeId, selector: 'input' });
    await client.send('DOM.setFileInputFiles', { nodeId, files: ['/home/user/up.txt'] });
    await page.waitForFunction(() => document.querySelector('pre').textContent === 'from outside');
    await page.evaluate(() => document.querySelector('a').click());
  },
  async endure() {
    await page.goto(`${site}/large`);
    assert.equal(await page.$eval('p', (one) => one.textContent), 'the end');
    const hung = await browser.newPage();
    hung.goto(`${site}/hang`).catch(() => {});
    const crashed = await browser.newPage();
    const crash = new Promise((resolve) => crashed.once('error', resolve));
    crashed.goto('chrome://crash').catch(() => {});
    await crash;
    await actions.answers();
  },
  async answers() {
    const seen = await browser.newPage();
    seen.setDefaultTimeout(80000);
    await seen.goto(`${other}/`);
    assert.equal(await seen.$eval('h1', (one) => one.textContent), 'home');
    await seen.close();
  },
  async crash() {
    const client = await browser.target().createCDPSession();
    client.send('Browser.crash').catch(() => {});
    await new Promise((resolve) => browser.once('disconnected', resolve));
  },
};
await actions[what]();
process.exit(0);
