// The processes in a sandbox as a tree, as the kernel shows them outside, and signals for them. Where the kernel has none of them, the
// commands that were started are shown.

import { get, post } from '../api.js';
import { ask, button, bytes, cut, h, named, notify, percent, replace, say, table } from '../dom.js';

const EVERY_MS = 2000;
const STATES = { R: 'runs', S: 'waits', D: 'waits for the disk', T: 'stopped', t: 'traced', Z: 'has ended', I: 'idle' };
const COMMANDS = 'At this level the kernel outside does not see processes: these are the commands that were started through the server.';
const SIGNALS = ['SIGTERM', 'SIGKILL', 'SIGINT', 'SIGHUP', 'SIGSTOP', 'SIGCONT'];

/** Processes with their depth, each behind its parent; one whose parent is not there comes first. */
export function tree(processes) {
  const there = new Set(processes.map(({ pid }) => pid));
  const children = new Map();
  for (const one of processes) {
    const parent = there.has(one.parent) && one.parent !== one.pid ? one.parent : 0;
    children.set(parent, [...(children.get(parent) ?? []), one]);
  }
  const all = [];
  const seen = new Set();
  const waiting = (children.get(0) ?? []).map((one) => [one, 0]).reverse();
  while (waiting.length) {
    const [one, depth] = waiting.pop();
    if (seen.has(one.pid)) continue;
    seen.add(one.pid);
    all.push({ ...one, depth });
    waiting.push(...(children.get(one.pid) ?? []).map((child) => [child, depth + 1]).reverse());
  }
  return all;
}

export async function processesTab(context) {
  const place = h('div');
  const told = h('p', { class: 'faint', role: 'status' });
  const note = h('p', { class: 'faint' });
  const path = `${context.path}/processes`;
  let before = null;
  let last = '';
  let busy = false;

  async function send(one) {
    const which = h('select', { 'aria-label': 'Signal' }, SIGNALS.map((name) => h('option', { value: name }, name)));
    const sent = await ask(`Signal for process ${one.pid}`, h('div', { class: 'field' }, h('p', {}, named(one.command.join(' ') || one.name)), which), {
      confirm: 'Send', danger: true, read: async () => {
        await post(`${path}/${one.pid}/signal`, { signal: which.value, started: one.started });
        return which.value;
      },
    });
    if (!sent) return;
    notify(`${sent} is sent to process ${one.pid}.`);
    await draw();
  }

  /** What is not known of commands is left out. */
  const known = (value, words) => (value === undefined ? '–' : words(value));

  function used(one, at) {
    if (one.cpu_ms === undefined) return NaN;
    const earlier = before?.of.get(`${one.pid} ${one.started}`);
    return earlier === undefined || at <= before.at ? NaN : ((one.cpu_ms - earlier) / (at - before.at)) * 100;
  }

  async function draw() {
    if (busy) return;
    busy = true;
    try {
      const list = await get(path, { signal: context.signal });
      const at = Date.now();
      const rows = tree(list.processes).map((one) => ({ ...one, percent: used(one, at) }));
      before = { at, of: new Map(list.processes.map((one) => [`${one.pid} ${one.started}`, one.cpu_ms])) };
      const commands = list.seen_by === 'commands';
      say(note, commands ? COMMANDS : '');
      told.textContent = `${list.processes.length + list.more} ${commands ? 'commands' : 'processes'}${list.more ? `, the first ${list.processes.length} are shown` : ''}`;
      const now = JSON.stringify(rows.map((one) => [one.pid, one.state, one.command, one.memory_bytes, percent(one.percent)]));
      if (now === last) return;
      last = now;
      const focused = place.contains(document.activeElement) ? document.activeElement.getAttribute('aria-label') : null;
      replace(place, table('Processes', ['Process', 'Command', 'State', 'CPU', 'CPU time', 'Memory', 'Threads', ''], rows.map((one) => [
        h('span', { class: 'mono' }, one.pid),
        [h('span', { class: 'unseen' }, `level ${one.depth + 1} `), h('span', { class: 'mono', 'aria-hidden': 'true' }, one.depth ? `${'│ '.repeat(Math.min(one.depth, 20) - 1)}└ ` : ''),
          h('span', { class: 'mono' }, named(one.command.length ? one.command.join(' ') : `[${one.name}]`)), one.cut && ' …'],
        known(one.state, (state) => STATES[state] ?? cut(state, 4)),
        percent(one.percent),
        known(one.cpu_ms, (ms) => `${(ms / 1000).toFixed(1)} s`),
        known(one.memory_bytes, bytes),
        known(one.threads, String),
        one.pid === 1 ? '' : button('Signal', () => send(one), { class: 'small', 'aria-label': `Signal for process ${one.pid}` }),
      ]), 'There is none.'));
      // The focus stays with the process.
      if (focused) [...place.querySelectorAll('[aria-label]')].find((one) => one.getAttribute('aria-label') === focused)?.focus();
    } finally {
      busy = false;
    }
  }

  await draw();
  const timer = setInterval(() => document.visibilityState === 'visible' && draw().catch(() => {}), EVERY_MS);
  context.onEnd(() => clearInterval(timer));
  // The first look tells no CPU: that takes two.
  return [h('div', { class: 'tools' }, h('h2', { class: 'grow' }, 'Processes'), told), note, place];
}
