// The page that shows a screen: it draws what is there, and gives what a person does to it once that is taken over.
//
// Argument: its address.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

const { chromium } = createRequire(import.meta.url)('playwright-core');
const [url] = process.argv.slice(2);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM,
  args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'],
});
const page = await browser.newPage();
page.setDefaultTimeout(60000);
const alarms = [];
page.on('pageerror', (error) => alarms.push(`error: ${error.message}`));
page.on('console', (message) => {
  if (/Content Security Policy|Trusted/i.test(message.text())) alarms.push(message.text());
});

await page.goto(url);
await page.getByText('You look at the screen').waitFor();
const canvas = page.locator('canvas');
// The size of the screen, and more than one colour on it.
await page.waitForFunction(() => {
  const one = document.querySelector('canvas');
  if (one.width !== 400 || one.height !== 300) return false;
  const { data } = one.getContext('2d').getImageData(0, 0, 400, 300);
  const colours = new Set();
  for (let at = 0; at < data.length; at += 4) colours.add((data[at] << 16) | (data[at + 1] << 8) | data[at + 2]);
  return colours.size > 1;
});
// Whoever looks types nothing.
await canvas.click();
await page.keyboard.type('not this');
await page.getByRole('button', { name: 'Take over' }).click();
await canvas.click();
await page.keyboard.type("it's <b>");
await page.keyboard.press('Enter');
await page.keyboard.press('Control+d');
await page.getByRole('button', { name: 'Hand back' }).click();
await page.getByText('You look at the screen').waitFor();

// Another address: of nobody's desktop, and of none.
await page.goto(url.replace(/\/[^/]*$/, '/wrong'));
await page.reload();
await page.getByText('The screen hung up.').waitFor();
await page.goto(`${url.split('#')[0]}#../x`);
await page.getByText('This address names no desktop.').waitFor();
assert.deepEqual(alarms, []);
await browser.close();
