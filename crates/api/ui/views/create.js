// A new sandbox.

import { post } from '../api.js';
import { ask, field, h, notify } from '../dom.js';
import { refresh } from '../live.js';

/** Reads `NAME=VALUE` lines. */
export function pairs(text, what) {
  const all = {};
  for (const line of text.split('\n').filter((one) => one.trim())) {
    const place = line.indexOf('=');
    if (place < 1) throw new Error(`${what}: each line is NAME=VALUE`);
    all[line.slice(0, place).trim()] = line.slice(place + 1);
  }
  return all;
}

/** The words of a text, by line or comma. */
export function words(text) {
  return text.split(/[\n,]/).map((one) => one.trim()).filter(Boolean);
}

const number = (input) => (input.value === '' ? undefined : Number(input.value));

export async function createSandbox(given = {}) {
  const name = h('input', { type: 'text', maxlength: 63, spellcheck: 'false', autocomplete: 'off' });
  const template = h('input', { type: 'text', value: given.template ?? 'base', maxlength: 300, spellcheck: 'false', autocomplete: 'off' });
  const timeout = h('input', { type: 'number', min: 1, value: 3600 });
  const cpus = h('input', { type: 'number', min: 1, placeholder: 'as usual' });
  const memory = h('input', { type: 'number', min: 64, placeholder: 'as usual' });
  const disk = h('input', { type: 'number', min: 64, placeholder: 'as usual' });
  const internet = h('input', { type: 'checkbox', checked: true });
  const allow = h('textarea', { rows: 2, spellcheck: 'false' });
  const labels = h('textarea', { rows: 2, spellcheck: 'false' });
  const env = h('textarea', { rows: 2, spellcheck: 'false' });
  const pauses = h('input', { type: 'checkbox' });
  const content = h('div', {},
    given.snapshot ? h('p', {}, `Of snapshot ${given.snapshot}.`) : field('Template or image', template, 'base, a template, or image:NAME'),
    field('Name', name, 'Optional; letters, digits, . _ -'),
    field('Lives for, seconds', timeout),
    h('div', { class: 'split' }, field('CPUs', cpus), field('Memory, MiB', memory)),
    field('Disk, MiB', disk),
    h('div', { class: 'field' }, h('label', {}, internet, ' May reach every public address')),
    field('May reach', allow, 'Hosts, one a line; HOST:PORT only where not every address may be reached'),
    field('Labels', labels, 'NAME=VALUE, one a line'),
    field('Variables', env, 'NAME=VALUE, one a line; every command sees them'),
    h('div', { class: 'field' }, h('label', {}, pauses, ' Paused, not killed, when its time is up')));
  const made = await ask('New sandbox', content, {
    confirm: 'Create',
    read: () => post('/v1/sandboxes', {
      ...(given.snapshot ? { snapshot: given.snapshot } : { template: template.value.trim() || 'base' }),
      name: name.value.trim() || undefined,
      timeout_seconds: number(timeout),
      limits: { cpus: number(cpus), memory_mib: number(memory), disk_mib: number(disk) },
      policy: { internet: internet.checked, allow: words(allow.value) },
      metadata: pairs(labels.value, 'Labels'),
      env: pairs(env.value, 'Variables'),
      pause_on_timeout: pauses.checked,
    }),
  });
  if (!made) return;
  notify(`Sandbox ${made.id} runs.`);
  refresh();
  location.hash = `#/sandboxes/${encodeURIComponent(made.id)}`;
}

