// All sandboxes and what they use, asked for once for all views, and not while nobody looks.

import { get } from './api.js';

const EVERY_MS = 2000;
const MAX_WAIT_MS = 30000;
/** How many moments a plot has. */
export const MOMENTS = 60;

const watchers = new Set();
const histories = new Map();
let latest = null;
let timer = null;
let wait = EVERY_MS;
let generation = 0;

/** Calls `work` with each overview, and with the one that is there; gives what ends that. */
export function watch(work) {
  watchers.add(work);
  if (latest) work(latest);
  start();
  return () => watchers.delete(work);
}

/** What a sandbox used at the last moments: `{cpu, memory, disk}`, each a list of numbers. */
export function history(id) {
  return histories.get(id) ?? { cpu: [], memory: [], disk: [] };
}

/** Looks now. */
export function refresh() {
  clearTimeout(timer);
  timer = null;
  return look();
}

export function stop() {
  generation += 1;
  clearTimeout(timer);
  timer = null;
  latest = null;
  watchers.clear();
  histories.clear();
}

function start() {
  if (timer === null) timer = setTimeout(look, 0);
}

async function look() {
  const mine = generation;
  if (document.visibilityState === 'visible' && watchers.size) {
    try {
      const overview = await get('/v1/overview');
      if (mine !== generation) return;
      note(overview);
      wait = EVERY_MS;
    } catch (error) {
      if (mine !== generation) return;
      wait = Math.min(wait * 2, MAX_WAIT_MS);
      latest = { ...(latest ?? { sandboxes: [], total: 0 }), failure: error.message };
    }
    for (const work of [...watchers]) if (latest) work(latest);
  }
  clearTimeout(timer);
  timer = setTimeout(look, wait);
}

function note(overview) {
  const there = new Set();
  const totals = { cpu: 0, memory: 0, disk: 0 };
  for (const one of overview.sandboxes) {
    there.add(one.id);
    const used = one.used;
    if (!used) continue;
    totals.cpu += used.cpu_percent;
    totals.memory += used.memory_bytes;
    totals.disk += used.disk_bytes;
    keep(one.id, { cpu: used.cpu_percent, memory: used.memory_bytes, disk: used.disk_bytes }, used.at);
  }
  keep('', totals, overview.at);
  for (const id of histories.keys()) if (id !== '' && !there.has(id)) histories.delete(id);
  latest = { ...overview, totals };
}

function keep(id, values, at) {
  let lists = histories.get(id);
  if (!lists) histories.set(id, (lists = { cpu: [], memory: [], disk: [], at: null }));
  // One sample is one point, however often it is looked at.
  if (lists.at === at) return;
  lists.at = at;
  for (const [name, value] of Object.entries(values)) {
    lists[name].push(value);
    if (lists[name].length > MOMENTS) lists[name].shift();
  }
}

document.addEventListener('visibilitychange', () => {
  if (document.visibilityState === 'visible' && watchers.size) refresh();
});
