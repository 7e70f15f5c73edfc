// The list of sandboxes: as many rows as can be seen, whatever their number.

import { may } from '../api.js';
import { bytes, cut, h, percent, replace, say, shown, span } from '../dom.js';
import { MOMENTS, history, refresh, watch } from '../live.js';
import { plot, spark } from '../plot.js';
import { createSandbox } from './create.js';

const ROW = 40;
const AROUND = 6;
const STATES = { running: 'good', paused: 'dull' };

export function stateBadge(state, asleep) {
  return h('span', { class: `badge ${STATES[state] ?? 'warn'}` }, asleep ? 'asleep' : state);
}

export function sandboxesView(context) {
  const filter = h('input', { type: 'search', placeholder: 'Filter by id, name, template  ( / )', 'aria-label': 'Filter', maxlength: 200 });
  const order = h('select', { 'aria-label': 'Order' },
    [['new', 'Newest first'], ['old', 'Oldest first'], ['cpu', 'Most CPU'], ['memory', 'Most memory'], ['disk', 'Most disk'], ['name', 'By name']]
      .map(([value, word]) => h('option', { value }, word)));
  const count = h('span', { class: 'faint', role: 'status' });
  const failure = h('p', { class: 'failure', role: 'alert' });
  const plots = [
    ['CPU', 'cpu', plot('CPU of all', percent, MOMENTS)],
    ['Memory', 'memory', plot('Memory of all', bytes, MOMENTS)],
    ['Disk', 'disk', plot('Disk of all', bytes, MOMENTS)],
  ];
  const space = h('div', { class: 'space', role: 'presentation' });
  const scroller = h('div', { class: 'window', tabindex: 0, role: 'rowgroup', 'aria-label': 'Rows' }, space);
  const heads = [['Sandbox'], ['State'], ['Template', 'wide'], ['Level', 'wide'], ['CPU'], ['Memory'], ['Disk', 'wide'], ['Time left', 'wide']];
  const list = h('div', { class: 'list', role: 'table', 'aria-label': 'Sandboxes' },
    h('div', { role: 'rowgroup' }, h('div', { class: 'row head', role: 'row' },
      heads.map(([word, kind]) => h('div', { role: 'columnheader', class: kind }, word)))),
    scroller);
  const empty = h('p', { class: 'empty', hidden: true }, 'There is no sandbox here.');

  let all = [];
  let found = [];
  let chosen = -1;
  const rows = new Map();

  function matches(one, words) {
    const text = `${one.id} ${one.name ?? ''} ${one.template} ${one.state} ${one.level}`.toLowerCase();
    return words.every((word) => text.includes(word));
  }

  const orders = {
    new: () => 0,
    old: () => 0,
    cpu: (a, b) => (b.used?.cpu_percent ?? -1) - (a.used?.cpu_percent ?? -1),
    memory: (a, b) => (b.used?.memory_bytes ?? -1) - (a.used?.memory_bytes ?? -1),
    disk: (a, b) => (b.used?.disk_bytes ?? -1) - (a.used?.disk_bytes ?? -1),
    name: (a, b) => (a.name ?? a.id).localeCompare(b.name ?? b.id),
  };

  function sort() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    found = all.filter((one) => matches(one, words));
    if (order.value === 'old') found.reverse();
    else found.sort(orders[order.value]);
    draw();
  }

  function draw() {
    space.style.height = `${found.length * ROW}px`;
    list.setAttribute('aria-rowcount', String(found.length + 1));
    empty.hidden = found.length > 0;
    list.hidden = found.length === 0;
    const first = Math.max(0, Math.floor(scroller.scrollTop / ROW) - AROUND);
    const last = Math.min(found.length, Math.ceil((scroller.scrollTop + (scroller.clientHeight || 600)) / ROW) + AROUND);
    const seen = new Set();
    for (let place = first; place < last; place += 1) {
      const one = found[place];
      seen.add(one.id);
      let row = rows.get(one.id);
      if (!row) {
        rows.set(one.id, (row = newRow(one)));
        space.append(row.element);
      }
      row.element.style.transform = `translateY(${place * ROW}px)`;
      row.element.setAttribute('aria-rowindex', String(place + 2));
      row.element.classList.toggle('chosen', place === chosen);
      row.set(one);
    }
    for (const [id, row] of rows) {
      if (!seen.has(id)) {
        row.element.remove();
        rows.delete(id);
      }
    }
  }

  function choose(place) {
    if (!found.length) return;
    chosen = Math.min(found.length - 1, Math.max(0, place));
    const top = chosen * ROW;
    if (top < scroller.scrollTop) scroller.scrollTop = top;
    else if (top + ROW > scroller.scrollTop + scroller.clientHeight) scroller.scrollTop = top + ROW - scroller.clientHeight;
    draw();
    rows.get(found[chosen].id)?.element.querySelector('a').focus({ preventScroll: true });
  }

  scroller.addEventListener('scroll', () => requestAnimationFrame(draw), { passive: true });
  filter.addEventListener('input', () => {
    chosen = -1;
    scroller.scrollTop = 0;
    sort();
  });
  order.addEventListener('change', sort);
  list.addEventListener('keydown', (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 12, PageUp: -12, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    choose(chosen + step);
  });
  context.shortcut('/', 'Filter', () => filter.focus());
  context.shortcut('j', 'Next sandbox', () => choose(chosen + 1));
  context.shortcut('k', 'Sandbox before', () => choose(chosen - 1));
  const creates = may('create');
  if (creates) context.shortcut('c', 'New sandbox', () => createSandbox());
  const size = new ResizeObserver(() => draw());
  size.observe(scroller);
  context.onEnd(() => size.disconnect());
  context.onEnd(watch((overview) => {
    all = overview.sandboxes;
    failure.textContent = overview.failure ? shown(overview.failure) : '';
    const running = all.filter((one) => one.state === 'running').length;
    const more = overview.total > all.length ? `, the newest ${all.length} are shown` : '';
    const drained = overview.draining ? '; the server is drained and takes no new ones' : '';
    say(count, `${overview.total} ${overview.total === 1 ? 'sandbox' : 'sandboxes'}, ${running} running${more}${drained}`);
    const sums = history('');
    for (const [, name, one] of plots) one.set(sums[name]);
    sort();
  }));

  return [
    h('h1', {}, 'Sandboxes'),
    h('div', { class: 'figures' }, plots.map(([, , one]) => one.element)),
    h('div', { class: 'tools' },
      h('div', { class: 'grow' }, filter), order, count,
      h('button', { type: 'button', onclick: () => refresh() }, 'Refresh'),
      creates && h('button', { type: 'button', class: 'primary', onclick: () => createSandbox() }, 'New sandbox')),
    failure, list, empty,
  ];
}

function newRow(one) {
  const name = h('a', { href: `#/sandboxes/${encodeURIComponent(one.id)}`, title: `${one.name ?? ''} ${one.id}` },
    h('bdi', { class: 'name' }, cut(one.name ?? one.id, 60)));
  const [state, left] = [h('div', { role: 'cell' }), h('div', { role: 'cell', class: 'wide' })];
  const disk = h('div', { role: 'cell', class: 'wide' });
  const [cpu, memory] = [spark(MOMENTS), spark(MOMENTS)];
  const [cpuText, memoryText] = [h('span'), h('span')];
  let told = '';
  const element = h('div', { class: 'row', role: 'row' },
    h('div', { role: 'cell' }, name),
    state,
    h('div', { role: 'cell', class: 'wide' }, h('bdi', { class: 'name', title: one.template }, cut(one.template, 40))),
    h('div', { role: 'cell', class: 'wide' }, one.level),
    h('div', { role: 'cell' }, h('div', { class: 'meter' }, cpu.element, cpuText)),
    h('div', { role: 'cell' }, h('div', { class: 'meter' }, memory.element, memoryText)),
    disk, left);
  return {
    element,
    set(now) {
      const word = `${now.state} ${now.asleep}`;
      if (word !== told) replace(state, stateBadge(now.state, now.asleep));
      told = word;
      const past = history(now.id);
      cpu.set(past.cpu, now.limits.cpus * 100);
      memory.set(past.memory, now.limits.memory_mib * 1048576);
      say(cpuText, now.used ? percent(now.used.cpu_percent) : '–');
      say(memoryText, now.used ? bytes(now.used.memory_bytes) : '–');
      say(disk, now.used ? bytes(now.used.disk_bytes) : '–');
      say(left, now.state === 'running' ? span(new Date(now.ends_at) - Date.now()) : '–');
    },
  };
}
