// The log of a sandbox: what happened to it, what was run in it, what was refused.

import { get, part } from '../api.js';
import { clock, h, named, replace, table } from '../dom.js';

const EVERY_MS = 3000;
const LEVELS = { error: 'bad', warn: 'warn', info: 'dull', debug: 'dull' };

export async function logTab(context) {
  const listed = h('div');
  const level = h('select', { 'aria-label': 'Least level' }, ['debug', 'info', 'warn', 'error'].map((word) => h('option', { value: word }, word)));
  const search = h('input', { type: 'search', placeholder: 'Contains', 'aria-label': 'Contains', maxlength: 200 });
  let last = '';

  async function draw() {
    const query = new URLSearchParams({ limit: '500', direction: 'backward', level: level.value, search: search.value });
    const { logs } = await get(`/v2/sandboxes/${part(context.sandbox().id)}/logs?${query}`, { signal: context.signal });
    const now = JSON.stringify(logs);
    if (now === last) return;
    last = now;
    replace(listed, table('Log', ['When', 'Level', 'What'], logs.map((one) => [
      clock(one.timestamp), h('span', { class: `badge ${LEVELS[one.level] ?? 'dull'}` }, one.level), h('span', { class: 'mono' }, named(one.message)),
    ]), 'There is no such line.'));
  }

  const drawQuietly = () => draw().catch(() => {});
  level.addEventListener('change', drawQuietly);
  search.addEventListener('input', drawQuietly);
  const timer = setInterval(() => document.visibilityState === 'visible' && drawQuietly(), EVERY_MS);
  context.onEnd(() => clearInterval(timer));
  await draw();
  return [h('div', { class: 'tools' }, level, h('div', { class: 'grow' }, search)), listed];
}
