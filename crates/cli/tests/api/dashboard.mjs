// The dashboard in a browser: what a person does, and what a hostile sandbox tries meanwhile.
//
// Arguments: what to do (`check` or `pictures`), the server's address, a key, the id of a sandbox with hostile names, a
// directory, the id of a run whose changes are kept. Ends with an error unless all of it is as it should be.

import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { small } from './small_png.mjs';

const require = createRequire(import.meta.url);
const { chromium } = require('playwright-core');
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');
const [what, base, key, hostile, directory, run] = process.argv.slice(2);

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM,
  // It runs as root here, where it has no sandbox of its own.
  args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--disable-lcd-text', '--force-color-profile=srgb'],
});
const page = await browser.newPage({
  viewport: what === 'pictures' ? { width: 1000, height: 600 } : { width: 1280, height: 800 }, colorScheme: 'dark', locale: 'en-GB', timezoneId: 'UTC',
});
page.setDefaultTimeout(15000);

/** What a page that is attacked would do. */
const alarms = [];
page.on('pageerror', (error) => alarms.push(`error: ${error.message}`));
page.on('dialog', (dialog) => {
  alarms.push(`dialog: ${dialog.message()}`);
  dialog.dismiss();
});
page.on('request', (request) => {
  const { url } = { url: request.url() };
  if (!url.startsWith(`${base}/`) && !url.startsWith(`blob:${base}/`)) alarms.push(`request: ${url}`);
});
page.on('console', (message) => {
  if (/Content Security Policy|Trusted/i.test(message.text())) alarms.push(`policy: ${message.text()}`);
});

const tab = (name) => page.locator('.tabs').getByRole('link', { name, exact: true }).click();
const view = (name) => page.getByRole('navigation', { name: 'Views' }).getByRole('link', { name }).click();
const heading = (name) => page.getByRole('heading', { name, exact: true }).waitFor();

/** Nothing that is serious stands between the view and who uses no mouse or sees otherwise. */
async function accessible(name) {
  // Not as a script of the page, which its policy would not take.
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
  const serious = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
  assert.deepEqual(serious.map(({ id, nodes }) => `${id}: ${nodes[0].html}`), [], name);
}

async function login() {
  await page.goto(`${base}/ui`);
  await page.getByLabel('API key').fill(key);
  await page.keyboard.press('Enter');
  await heading('Sandboxes');
}

async function type(text) {
  await page.locator('.terminal textarea').focus();
  await page.keyboard.type(text);
  await page.keyboard.press('Enter');
}

const typed = (text) => page.waitForFunction((wanted) => document.querySelector('.xterm-rows')?.textContent.replace(/\u00a0/g, ' ').includes(wanted), text);

async function create(name) {
  await page.getByRole('button', { name: 'New sandbox' }).click();
  await page.getByLabel('Name').fill(name);
  await page.getByLabel('Labels').fill('team=<b>markup</b>\nturned=\u202Eabc');
  await accessible('dialog');
  await page.getByRole('button', { name: 'Create' }).click();
  await heading(name);
}

/** A session that has ended is looked at: its pictures are played, one of which is none, and its requests are saved. */
async function recording() {
  const at = Date.now();
  const data = (await page.screenshot({ type: 'jpeg', quality: 20 })).toString('base64');
  const answer = (what, json) => page.route(`**/v1/sessions/recorded${what}`, (route) => route.fulfill({ json }));
  await answer('', { id: 'recorded', status: 'COMPLETED', startedAt: new Date(at).toISOString(), expiresAt: new Date(at).toISOString(), recordSession: true, template: '<b>t</b>', level: 'process' });
  await answer('/logs', { logs: [{ timestamp: at, pageId: 'p', method: 'Runtime.consoleAPICalled', params: { type: 'log', text: '<img src=x onerror=alert(1)>' } }] });
  await answer('/recording', { frames: [{ timestamp: at, pageId: 'p', data }, { timestamp: at + 50, pageId: 'p', data: 'PHNjcmlwdD4=' }, { timestamp: at + 90, pageId: 'p', data }] });
  await answer('/har', { log: { version: '1.2', entries: [] } });
  await page.goto(`${base}/ui/#/browsers/recorded`);
  await page.getByText('console.log: <img src=x onerror=alert(1)>').waitFor();
  await page.getByRole('button', { name: 'Show recording' }).click();
  await page.getByText('Picture 1 of 3').waitFor();
  await page.getByRole('slider', { name: 'Picture' }).press('ArrowRight');
  await page.getByText('Picture 2 of 3 cannot be shown.').waitFor();
  await accessible('recording');
  await page.getByRole('button', { name: 'Play' }).click();
  await page.getByText('Picture 3 of 3').waitFor();
  assert.ok(await page.locator('canvas').evaluate((canvas) => canvas.width) > 1000);
  const saved = page.waitForEvent('download');
  await page.getByRole('button', { name: 'Save HAR' }).click();
  assert.equal((await saved).suggestedFilename(), 'recorded.har');
}

/** Desktops are listed; one that has ended is looked at, and its pictures are played. */
async function desktops() {
  const at = Date.now();
  const data = (await page.screenshot({ type: 'png' })).toString('base64');
  const one = { id: 'd1', status: 'TIMED_OUT', reason: '<b>time</b>', created_at: new Date(at).toISOString(), expires_at: new Date(at).toISOString(), width: 400, height: 300, dpi: 96, record: true, template: '<img src=x onerror=alert(1)>', level: 'process', metadata: {} };
  await page.route('**/v1/desktops', (route) => route.fulfill({ json: { desktops: [one] } }));
  await page.route('**/v1/desktops/d1', (route) => route.fulfill({ json: one }));
  await page.route('**/v1/desktops/d1/recording', (route) => route.fulfill({ json: { frames: [{ timestamp: at, pageId: 'screen', data }, { timestamp: at + 60, pageId: 'screen', data }] } }));
  await view('Desktops');
  await page.getByText('<img src=x onerror=alert(1)>').waitFor();
  await accessible('desktops');
  await page.getByRole('link', { name: 'd1', exact: true }).click();
  await page.getByText('<b>time</b>').waitFor();
  assert.equal(await page.getByRole('button', { name: 'Take over' }).count(), 0);
  await page.getByRole('button', { name: 'Show recording' }).click();
  await page.getByText('Picture 1 of 2').waitFor();
  await accessible('recording of a desktop');
  await page.getByRole('button', { name: 'Play' }).click();
  await page.getByText('Picture 2 of 2').waitFor();
  const canvas = page.getByRole('img', { name: 'What the screen showed' });
  assert.ok(await canvas.evaluate((one) => one.width) > 1000);
  await page.unroute('**/v1/desktops');
}

async function check() {
  await page.goto(`${base}/ui/`);
  await page.getByLabel('API key').waitFor();
  await accessible('login');
  await page.getByLabel('API key').fill('e2b_nothing');
  await page.keyboard.press('Enter');
  await page.getByText('This key is not valid.').waitFor();
  await login();
  await page.locator('.window a').first().waitFor();
  await accessible('list');

  await create('made-here');
  await page.getByText('<b>markup</b>').waitFor();
  await page.getByText('\\u{202e}abc').waitFor();
  await accessible('about');

  await tab('Terminal');
  await typed('$');
  await type('echo sum-$((40+2))');
  await typed('sum-42');
  // A title, a link, colours, another direction, and what would be markup anywhere else.
  await type("printf '\\033]0;taken\\007\\033]8;;javascript:alert(1)\\007link\\033]8;;\\007\\033[38;2;9;200;9mgreen\\033[0m \\342\\200\\256<img src=x onerror=alert(1)> done-%s\\n' $((6*7))");
  await typed('done-42');
  assert.match(await page.title(), /^Terminal · made-here/);
  await accessible('terminal');

  await tab('Commands');
  await page.getByRole('textbox', { name: 'Command' }).fill("printf '<script>alert(1)</script>\\033[2J\\342\\200\\256 end'; exit 3");
  await page.keyboard.press('Enter');
  await page.getByText('exit status 3').waitFor();
  assert.equal(await page.getByRole('log').textContent(), '<script>alert(1)</script>\\u{1b}[2J\\u{202e} end');

  // Names that are markup, escapes and directions.
  await page.goto(`${base}/ui/#/sandboxes/${hostile}/about`);
  await page.getByText('<img src=x onerror=alert(1)>').first().waitFor();
  await tab('Files');
  await page.getByText('<img src=x onerror=alert(1)>').waitFor();
  await page.getByText('up\\u{202e}fdp.exe').waitFor();
  await page.getByText('line\\u{a}feed').waitFor();
  await accessible('files');
  await page.getByRole('button', { name: 'content.html', exact: true }).click();
  await page.locator('pre').waitFor();
  assert.equal(await page.locator('pre').textContent(), '<script>alert(1)</script>\n\\u{1b}]0;x\\u{7}\n');
  const waits = page.waitForEvent('download');
  await page.getByRole('button', { name: 'Download content.html' }).click();
  assert.equal((await waits).suggestedFilename(), 'content.html');
  await page.getByLabel('Files to upload').setInputFiles({ name: 'from-here.txt', mimeType: 'text/plain', buffer: Buffer.from('up') });
  await page.getByRole('button', { name: 'from-here.txt', exact: true }).waitFor();
  await processes();
  await changes();
  for (const name of ['Ports', 'Network', 'Checkpoints', 'Log']) {
    await tab(name);
    await page.getByRole('button', { name: 'Pause' }).waitFor();
    await page.waitForFunction(() => !document.querySelector('.loading') && document.querySelector('.tabs + div').childElementCount > 0);
    assert.equal(await page.getByRole('alert').filter({ hasText: /./ }).count(), 0, name);
    if (name === 'Network' || name === 'Log') await accessible(name);
  }
  await page.getByRole('button', { name: 'Pause' }).click();
  await page.getByText('paused', { exact: true }).waitFor();
  await page.getByRole('button', { name: 'Resume' }).click();
  await page.getByText('running', { exact: true }).waitFor();

  await approvals();
  await runs();
  await reached();

  for (const name of ['Browsers', 'Machine', 'Templates', 'Snapshots', 'Volumes', 'Audit', 'Keys and quotas']) {
    await view(name);
    await heading(name);
    // Snapshots and volumes are tables as templates are.
    if (!['Snapshots', 'Volumes'].includes(name)) await accessible(name);
  }
  await view('Audit');
  await page.getByRole('button', { name: 'Verify' }).click();
  await page.getByText('unbroken', { exact: true }).waitFor();
  await page.emulateMedia({ colorScheme: 'light' });
  await view('Machine');
  await heading('Machine');
  await accessible('Machine in light colours');

  await recording();
  await desktops();

  // Many are as few: rows that cannot be seen are not there.
  await page.route('**/v1/overview', (route) => route.fulfill({ json: overview(1000) }));
  await view('Sandboxes');
  await page.getByText('1000 sandboxes').waitFor();
  assert.ok(await page.locator('.window .row').count() < 60);
  await page.locator('.window').evaluate((window) => window.scrollTo(0, window.scrollHeight));
  await page.getByText('many-999', { exact: true }).waitFor();
  await page.getByRole('searchbox', { name: 'Filter' }).fill('many-5 gone');
  await page.getByText('There is no sandbox here.').waitFor();
  await page.getByRole('searchbox', { name: 'Filter' }).fill('many-123');
  await page.getByText('many-123', { exact: true }).waitFor();

  // The key is nowhere but in the page, and with the page it goes.
  const kept = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, document.documentElement.outerHTML]));
  assert.ok(!kept.includes(key));
  assert.deepEqual(await page.context().cookies(), []);
  await page.reload();
  await page.getByLabel('API key').waitFor();
  assert.deepEqual(alarms, []);
}

/** Processes as a tree, with what they call themselves; one ends by a signal. */
async function processes() {
  await tab('Processes');
  // Whatever level it is, there is a table; where the kernel has no processes, the commands that were started stand in it.
  await page.getByRole('table').waitFor();
  if (await page.getByText('At this level the kernel outside does not see processes').count()) return;
  const row = page.getByRole('row').filter({ hasText: '<img src=x onerror=alert(1)>' }).filter({ hasText: '600' });
  await row.waitFor();
  assert.match(await row.textContent(), /\\x1b\[2J<img/);
  await accessible('processes');
  await row.getByRole('button').click();
  await page.getByRole('combobox', { name: 'Signal' }).selectOption('SIGKILL');
  await page.getByRole('button', { name: 'Send' }).click();
  await row.waitFor({ state: 'detached' });
}

/** What was changed in the sandbox, and one of that as a difference. */
async function changes() {
  await tab('Changes');
  await page.getByRole('searchbox', { name: 'Filter by path' }).fill('/home/user');
  await page.getByText('/home/user/up\\u{202e}fdp.exe').waitFor();
  await page.getByRole('button', { name: 'Show the difference of /home/user/content.html' }).click();
  const diff = page.locator('.diff');
  await diff.waitFor();
  assert.match(await diff.textContent(), /\+<script>alert\(1\)<\/script>\n\+\\u\{1b\}\]0;x\\u\{7\}\n/);
  await accessible('changes');
}

/** A question shows all that it is about; the menu counts, and both are answered. */
async function approvals() {
  await page.evaluate(() => document.activeElement?.blur());
  await page.keyboard.press('g');
  await page.keyboard.press('p');
  await heading('Approvals');
  const question = page.getByRole('region', { name: /^Question/ });
  await question.waitFor();
  await page.getByRole('navigation', { name: 'Views' }).getByText('1 wait').waitFor({ state: 'attached' });
  assert.match(await question.textContent(), /Call of the tool ask.*Denied in.*"to": "<img src=x onerror=alert\(1\)>\\u\{202e\}"/s);
  await accessible('approvals');
  await question.getByRole('button', { name: 'Allow once' }).click();
  await page.getByText('"amount": 2').waitFor();
  assert.equal(await question.getByRole('button', { name: 'Allow always' }).count(), 0);
  await question.getByRole('button', { name: 'Deny' }).click();
  await page.getByText('0 questions wait.').waitFor();
}

/** Changes of a run are seen and written back, one by one. */
async function runs() {
  await view('Runs');
  await page.getByRole('link', { name: run, exact: true }).click();
  await heading(`Run ${run}`);
  await page.getByRole('checkbox', { name: 'Choose <img src=x onerror=alert(1)>' }).check();
  await page.getByRole('button', { name: 'Show the difference of <img src=x onerror=alert(1)>' }).click();
  await page.locator('.diff').getByText('+<script>alert(1)</script>\\u{1b}[2J').waitFor();
  await accessible('run');
  await page.getByRole('button', { name: 'Apply the chosen (1)' }).click();
  await page.getByRole('button', { name: 'Apply', exact: true }).click();
  await page.getByText('1 changes are written back.').waitFor();
  await page.getByRole('checkbox', { name: 'Choose <img src=x onerror=alert(1)>' }).waitFor({ state: 'detached' });
  await page.getByRole('checkbox', { name: 'Choose kept.txt' }).waitFor();
  await page.getByText('held back: ').first().waitFor();
}

/** What was reached stands beside what was refused, and one click makes the rule. */
async function reached() {
  const host = '<img src=x onerror=alert(1)>.example';
  const one = (name, rule) => ({ host: name, port: 443, rule, failure: null, methods: ['GET'], times: 2, sent: 10, received: 2048, last: new Date().toISOString() });
  await page.route('**/reached', (route) => route.fulfill({ json: { hosts: [one(host, null), one('good.example', null), one('192.0.2.7', null)], more: 3 } }));
  await page.goto(`${base}/ui/#/sandboxes/${hostile}/network`);
  await page.getByText(`${host}:443`).waitFor();
  await accessible('reached');
  assert.equal(await page.getByRole('button', { name: `Deny ${host}` }).count(), 0);
  await page.getByRole('button', { name: 'Deny 192.0.2.7' }).click();
  assert.match(await page.getByLabel('Denied').inputValue(), /^192\.0\.2\.7$/m);
  await page.getByRole('button', { name: 'Replace' }).click();
  await page.getByRole('row').filter({ hasText: 'deny' }).filter({ hasText: '192.0.2.7' }).first().waitFor();
  await page.getByRole('button', { name: 'Deny good.example' }).click();
  await page.getByText('A name is denied by allowing others alone').waitFor();
  await page.getByRole('button', { name: 'Cancel' }).click();
  await page.unroute('**/reached');
}

function overview(count) {
  const now = new Date().toISOString();
  const one = (index) => ({
    id: `i${index}`, name: `many-${index}`, template: 'base', state: 'running', asleep: false, level: 'process', started_at: now,
    ends_at: '2126-01-01T00:00:00.000Z', limits: { cpus: 2, memory_mib: 512, disk_mib: 1024, pids: 512 },
    used: { at: now, cpu_percent: index % 200, memory_bytes: index * 100000, disk_bytes: index * 1000 },
  });
  return { at: now, total: count, sandboxes: Array.from({ length: count }, (_, index) => one(index)) };
}

/** Pictures of the main views, with their names. */
async function pictures() {
  const take = async (name) => writeFileSync(path.join(directory, `${name}.png`), small(await page.screenshot()));
  await page.goto(`${base}/ui/`);
  await page.getByLabel('API key').waitFor();
  await take('login');
  await login();
  // As many samples as make a line.
  await page.waitForTimeout(16000);
  await take('sandboxes');
  await page.locator('.window a').first().click();
  await page.getByRole('heading', { name: 'Labels' }).waitFor();
  await page.waitForTimeout(2500);
  await take('sandbox');
  await tab('Terminal');
  await typed('$');
  await type('uname -sr; ls -la --color=always /; id');
  await typed('groups=');
  await take('terminal');
  await tab('Files');
  await page.getByRole('table').waitFor();
  await take('files');
  for (const [name, file] of [['Processes', 'processes'], ['Changes', 'changes'], ['Network', 'network'], ['Log', 'log']]) {
    await tab(name);
    await page.getByRole('table').first().waitFor();
    // A figure of CPU takes two looks.
    await page.waitForTimeout(name === 'Processes' ? 4500 : 300);
    await take(file);
  }
  await view('Approvals');
  await page.getByRole('region', { name: /^Question/ }).waitFor();
  await take('approvals');
  await view('Runs');
  await page.getByRole('link', { name: run, exact: true }).click();
  await page.getByRole('button', { name: 'Show the difference of kept.txt' }).click();
  await page.locator('.diff').waitFor();
  await take('run');
  await page.emulateMedia({ colorScheme: 'light' });
  for (const [name, file] of [['Machine', 'machine'], ['Audit', 'audit'], ['Keys and quotas', 'keys']]) {
    await view(name);
    await heading(name);
    await take(file);
  }
}

try {
  await (what === 'pictures' ? pictures() : check());
} catch (error) {
  process.exitCode = 1;
  process.stderr.write(`${error.stack}\nat ${page.url()}\n${alarms.join('\n')}\n${await page.locator('body').innerText().catch(() => '')}\n`);
}
await browser.close();
