// The page that shows a screen: it draws what is there, and gives what a person does to it once that is taken over.
//
// Arguments: its address, that of who may look alone, and the WebSocket of the latter.

import assert from 'node:assert/strict';
import { createRequire } from 'node:module';

const { chromium } = createRequire(import.meta.url)('playwright-core');
const [url, looking, socket] = process.argv.slice(2);
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
// Whoever may look alone has nothing to take over, and types nothing: neither by the page nor past it.
const looker = await browser.newPage();
await looker.goto(looking);
await looker.getByText('This address lets nobody drive it').waitFor();
assert.equal(await looker.getByRole('button').count(), 0);
await looker.waitForFunction(() => document.querySelector('canvas').width === 400);
await looker.locator('canvas').click();
await looker.keyboard.type('nor this');
await looker.evaluate(async (address) => {
  const { Viewer } = await import('/ui/rfb.js');
  const viewer = new Viewer(address, document.createElement('canvas'));
  let gone = null;
  await new Promise((resolve, reject) => {
    gone = viewer.run(resolve).catch(reject);
  });
  viewer.pointer(200, 150, 1);
  viewer.pointer(200, 150, 0);
  for (const one of 'past') {
    viewer.key(one.charCodeAt(0), true);
    viewer.key(one.charCodeAt(0), false);
  }
  // It is answered, and so all that was said before was judged.
  const answered = new Promise((resolve) => viewer.socket.addEventListener('message', resolve, { once: true }));
  viewer.ask(false);
  await answered;
  viewer.close();
  await gone;
}, socket);
await looker.close();
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
