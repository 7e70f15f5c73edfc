// What a browser takes until a page of it can be sent somewhere, what a navigation takes, and what ten hold of the machine's
// memory: bare, in a session that starts one, and in a session that is handed one that waited.
//
// Beside that, what the daemon takes while a dashboard shows many sandboxes.
//
// Arguments: a directory with `node_modules`, and an order as JSON. Answers JSON on standard output, times in µs.

import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, readdirSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import os from 'node:os';
import path from 'node:path';

const [kit, text] = process.argv.slice(2);
const order = JSON.parse(text);
const { chromium } = createRequire(path.join(kit, 'node_modules', 'x'))('playwright-core');
const PROFILE = '--user-data-dir=';
const NAVIGATIONS = 3;
// How often the daemon is looked at for a dashboard.
const LOOKS = 15;
// Nothing may go on of the sample before.
const SETTLE_MS = 300;

const SITE = `
import http.server, sys
part = b"x" * 20000
page = b"<!doctype html><title>site</title><p>" + b"word " * 8000 + b"".join(b"<script src=/%d.js></script>" % n for n in range(10))
class Site(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"/*" + part + b"*/" if self.path.endswith(".js") else page
        self.send_response(200)
        self.send_header("Content-Type", "text/javascript" if self.path.endswith(".js") else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Site)
print(server.server_address[1], flush=True)
server.serve_forever()
`;

const micros = (since) => Math.round((performance.now() - since) * 1000);
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function ask(daemon, method, route, body) {
  const answer = await fetch(daemon.url + route, {
    method, headers: { 'X-API-KEY': daemon.key, 'content-type': 'application/json' }, body: body && JSON.stringify(body),
  });
  const told = await answer.text();
  if (!answer.ok) throw new Error(`${method} ${route}: ${answer.status} ${told}`);
  return told;
}

async function waitForPool(daemon, count) {
  while (!(await ask(daemon, 'GET', '/metrics')).includes(`\noffleash_pool_browsers ${count}\n`)) await sleep(50);
}

/** A browser of this machine, as one of a session is started. */
function startBare(flags) {
  const profile = mkdtempSync(path.join(os.tmpdir(), 'offleash-bench-'));
  const own = flags.map((flag) => (flag.startsWith(PROFILE) ? PROFILE + profile : flag.startsWith('--remote-debugging-port=') ? '--remote-debugging-port=0' : flag));
  const child = spawn(order.chromium, own, { stdio: ['ignore', 'ignore', 'pipe'], detached: true });
  const url = new Promise((resolve, reject) => {
    let said = '';
    child.stderr.on('data', (bytes) => {
      said = (said + bytes).slice(-100000);
      const found = said.match(/DevTools listening on (ws:\S+)/);
      if (found) resolve(found[1]);
    });
    child.once('exit', () => reject(new Error(`the browser ended: ${said}`)));
  });
  const end = async () => {
    const ended = new Promise((resolve) => child.once('exit', resolve));
    process.kill(-child.pid, 'SIGKILL');
    await ended;
    rmSync(profile, { recursive: true, force: true, maxRetries: 20 });
  };
  return { url, pid: child.pid, end };
}

async function startSession(daemon) {
  const session = JSON.parse(await ask(daemon, 'POST', '/v1/sessions', { timeout: 3000 }));
  return { ...session, url: session.connectUrl, end: () => ask(daemon, 'POST', `/v1/sessions/${session.id}/release`, {}) };
}

async function connected(url) {
  const browser = await chromium.connectOverCDP(url);
  const [context] = browser.contexts();
  return { browser, page: context.pages()[0] ?? (await context.newPage()) };
}

/** The flags that a session's browser has, of the first one that is found. */
function flagsOfSessions() {
  for (const pid of readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
    let words = [];
    try {
      words = readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0').slice(0, -1);
    } catch {
      continue;
    }
    if (words.includes(`${PROFILE}/home/user/.offleash-browser`) && !words.some((word) => word.startsWith('--type='))) {
      return words.slice(words.indexOf('--headless'));
    }
  }
  throw new Error('no browser of a session is found among the processes');
}

async function serveBeside() {
  const child = spawn('python3', ['-c', SITE, '0'], { stdio: ['ignore', 'pipe', 'inherit'] });
  const port = await new Promise((resolve) => child.stdout.once('data', (bytes) => resolve(Number(String(bytes)))));
  return { url: `http://localhost:${port}/`, end: () => child.kill() };
}

async function serveInside(daemon, id) {
  const shell = `cat >/tmp/site.py <<'END'\n${SITE}\nEND\n(setsid python3 /tmp/site.py 8000 >/tmp/site.log 2>&1 </dev/null &)\nuntil grep -q 8000 /tmp/site.log; do sleep 0.02; done`;
  const told = JSON.parse(await ask(daemon, 'POST', `/v1/sandboxes/${id}/run`, { shell }));
  if (told.exit_code !== 0) throw new Error(told.stderr);
  return 'http://localhost:8000/';
}

async function navigate(page, url, times) {
  await page.goto(url);
  for (let number = 0; number < NAVIGATIONS; number += 1) {
    const begun = performance.now();
    await page.goto(url);
    times.push(micros(begun));
  }
}

/** What the processes below `root` hold of the machine's memory, KiB. */
function pssBelow(roots) {
  const children = new Map();
  for (const pid of readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
    try {
      const parent = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ').pop().split(' ')[1];
      children.set(parent, [...(children.get(parent) ?? []), pid]);
    } catch {
      // It ended meanwhile.
    }
  }
  const tree = roots.map(String);
  for (let next = 0; next < tree.length; next += 1) tree.push(...(children.get(tree[next]) ?? []));
  let sum = 0;
  for (const pid of tree) {
    try {
      sum += Number(readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8').match(/^Pss:\s+(\d+)/m)[1]);
    } catch {
      // Likewise, or it is one of the kernel's.
    }
  }
  return sum;
}

const { cold, pool } = order;
const times = { ready: { bare: [], cold: [], pool: [] }, answered: { cold: [], pool: [] }, navigation: { bare: [], session: [] } };

// The first of each is not counted: caches are cold.
await waitForPool(pool, order.waiting);
const first = await startSession(cold);
const flags = flagsOfSessions();
await first.end();
const site = await serveBeside();

const ways = {
  async bare(counted) {
    const begun = performance.now();
    const browser = startBare(flags);
    const { browser: driven, page } = await connected(await browser.url);
    if (counted) times.ready.bare.push(micros(begun));
    await navigate(page, site.url, counted ? times.navigation.bare : []);
    await driven.close();
    await browser.end();
  },
  async cold(counted) {
    const begun = performance.now();
    const session = await startSession(cold);
    if (counted) times.answered.cold.push(micros(begun));
    const { browser, page } = await connected(session.url);
    if (counted) times.ready.cold.push(micros(begun));
    await navigate(page, await serveInside(cold, session.id), counted ? times.navigation.session : []);
    await browser.close();
    await session.end();
  },
  async pool(counted) {
    const begun = performance.now();
    const session = await startSession(pool);
    if (!session.fromPool) throw new Error('the pool was empty');
    if (counted) times.answered.pool.push(micros(begun));
    const { browser } = await connected(session.url);
    if (counted) times.ready.pool.push(micros(begun));
    await browser.close();
    await session.end();
  },
};
const names = Object.keys(ways);
for (let round = 0; round <= order.rounds; round += 1) {
  console.error(`round ${round} of ${order.rounds}`);
  for (let turn = 0; turn < names.length; turn += 1) {
    // Nobody makes anything beside.
    await waitForPool(pool, order.waiting);
    await sleep(SETTLE_MS);
    await ways[names[(round + turn) % names.length]](round > 0);
  }
}

async function memoryOf(start, roots, url) {
  const running = [];
  for (let number = 0; number < order.many; number += 1) {
    const one = await start();
    const { browser, page } = await connected(await one.url);
    await page.goto(url ?? (await serveInside(cold, one.id)));
    running.push({ one, browser });
  }
  await sleep(3000);
  const kib = pssBelow(roots(running.map(({ one }) => one)));
  for (const { one, browser } of running) {
    await browser.close();
    await one.end();
  }
  return kib;
}

/** What of one processor the daemon takes, of 100, while `work` is done every two seconds. */
async function busy(daemon, work) {
  const ticks = () => readFileSync(`/proc/${daemon.pid}/stat`, 'utf8').split(') ').pop().split(' ').slice(11, 13).reduce((sum, one) => sum + Number(one), 0);
  const [begun, before] = [performance.now(), ticks()];
  for (let number = 0; number < LOOKS; number += 1) {
    await work();
    await sleep(2000);
  }
  // A hundred ticks are a second.
  return ((ticks() - before) * 1000) / (performance.now() - begun);
}

/** The same as a dashboard that looks at many sandboxes, and beside it without one. */
async function dashboard(daemon, count) {
  const made = [];
  for (let number = 0; number < count; number += 1) {
    made.push(JSON.parse(await ask(daemon, 'POST', '/v1/sandboxes', { timeout_seconds: 3000 })).id);
  }
  await sleep(10000);
  const idle = await busy(daemon, () => {});
  const watched = await busy(daemon, () => ask(daemon, 'GET', '/v1/overview'));
  for (const id of made) await ask(daemon, 'DELETE', `/v1/sandboxes/${id}`);
  return { sandboxes: count, idle, watched };
}

console.error(`memory of ${order.many}`);
const idle = pssBelow([cold.pid]);
const sessions = (await memoryOf(() => startSession(cold), () => [cold.pid])) - idle;
const bare = await memoryOf(() => startBare(flags), (all) => all.map(({ pid }) => pid), site.url);
site.end();
let looked = null;
if (order.sandboxes > 0) {
  console.error(`a dashboard over ${order.sandboxes}`);
  looked = await dashboard(cold, order.sandboxes);
}
console.log(JSON.stringify({ ...times, memory: { bare, sessions }, dashboard: looked }));
process.exit(0);
