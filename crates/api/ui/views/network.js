// What a sandbox may reach, what it reached and was refused by which rule, and rules made of that.

import { get, may, part, put } from '../api.js';
import { ask, button, bytes, clock, field, h, named, notify, replace, table } from '../dom.js';
import { words } from './create.js';

const REFUSED = /^network: `(.+)` was refused: ([\s\S]*)$/;

/** What a line of the log says of a refusal. */
export function refusal(line) {
  const found = REFUSED.exec(line);
  return found && { place: found[1], why: found[2] };
}

/** What a rule that allows it names; `null` where no rule could. */
export function ruleFor(place) {
  return /^(\*\.)?[A-Za-z0-9._-]+(:[0-9]{1,5})?$/.test(place) || /^\[?[0-9A-Fa-f:.]+\]?(:[0-9]{1,5})?$/.test(place) ? place : null;
}

function isAddress(host) {
  return /^[0-9.]+$/.test(host) || host.includes(':');
}

/** What denies a host that was reached: an address by a rule; a name by no rule that allows it. */
export function denial(policy, host, reached) {
  if (!ruleFor(host)) return null;
  const allows = (one) => one === host || one.startsWith(`${host}:`);
  if (isAddress(host)) {
    // What is allowed is allowed, whatever is denied. Of a network nothing can be taken out.
    if (policy.allow.some((one) => one.includes('/'))) return null;
    return { allow: policy.allow.filter((one) => !allows(one)), deny: [...policy.deny, host] };
  }
  if (policy.allow.some(allows)) return { allow: policy.allow.filter((one) => !allows(one)) };
  if (!policy.internet) return null;
  const others = [...new Set(reached.map((one) => one.host))].filter((one) => one !== host && !isAddress(one) && ruleFor(one));
  return { internet: false, allow: [...policy.allow, ...others.filter((one) => !policy.allow.includes(one))], narrow: true };
}

export async function networkTab(context) {
  const listed = h('div');
  const reachedList = h('div');
  const rules = h('div');
  const change = may('create');

  async function set(policy, text) {
    await put(`${context.path}/policy`, policy);
    await context.again();
    notify(text);
    drawRules();
    drawRefusals();
    drawReached();
  }

  async function edit(start, changed = {}) {
    const policy = { ...context.sandbox().policy, ...changed };
    const internet = h('input', { type: 'checkbox', checked: policy.internet });
    const ports = h('input', { type: 'checkbox', checked: policy.public_ports });
    const allow = h('textarea', { rows: 5, spellcheck: 'false' });
    const deny = h('textarea', { rows: 3, spellcheck: 'false' });
    allow.value = [...policy.allow, ...(start ? [start] : [])].join('\n');
    deny.value = policy.deny.join('\n');
    const made = await ask('What it may reach', h('div', {},
      changed.narrow && h('p', {}, 'A name is denied by allowing others alone: here all other names that it reached.'),
      h('div', { class: 'field' }, h('label', {}, internet, ' Every public address')),
      field('Allowed', allow, 'Hosts and networks, one a line; HOST:PORT where not every address may be reached'),
      field('Denied', deny, 'Addresses and networks, one a line'),
      h('div', { class: 'field' }, h('label', {}, ports, ' Its ports are open to whoever reaches the server')),
      h('p', { class: 'faint' }, 'This replaces all rules of the sandbox, headers and proxies that an SDK set included.')), {
      confirm: 'Replace',
      read: async () => {
        await set({ internet: internet.checked, allow: words(allow.value), deny: words(deny.value), public_ports: ports.checked }, 'The rules hold from now on.');
        return true;
      },
    });
    return made;
  }

  function drawRules() {
    const { policy } = context.sandbox();
    const rows = [
      ...policy.allow.map((one) => [h('span', { class: 'badge good' }, 'allow'), named(one)]),
      ...policy.deny.map((one) => [h('span', { class: 'badge bad' }, 'deny'), named(one)]),
      [h('span', { class: `badge ${policy.internet ? 'good' : 'bad'}` }, policy.internet ? 'allow' : 'deny'), 'every other public address'],
    ];
    replace(rules, table('Rules', ['Rule', 'What'], rows),
      h('p', { class: 'faint' }, policy.public_ports ? 'Its ports are open to whoever can reach the server and knows its id.' : 'Its ports ask for its traffic token.'));
  }

  async function drawRefusals() {
    const query = new URLSearchParams({ limit: '1000', direction: 'backward', search: 'network:' });
    const { logs } = await get(`/v2/sandboxes/${part(context.sandbox().id)}/logs?${query}`, { signal: context.signal });
    const seen = new Map();
    for (const { timestamp, message } of logs) {
      const told = refusal(message) ?? { place: '', why: message };
      const key = `${told.place} ${told.why}`;
      const before = seen.get(key);
      if (before) before.count += 1;
      else seen.set(key, { ...told, at: timestamp, count: 1 });
    }
    const allowed = new Set(context.sandbox().policy.allow);
    replace(listed, table('Refused', ['Last', 'What', 'Why', 'Times', ''], [...seen.values()].map(({ at, place, why, count }) => {
      const rule = ruleFor(place);
      const known = rule && (allowed.has(rule) || allowed.has(rule.replace(/:\d+$/, '')));
      return [clock(at), named(place), named(why), count,
        change && rule && (known ? 'allowed by now' : button('Allow', () => edit(rule), { class: 'small', 'aria-label': `Allow ${rule}` }))];
    }), 'Nothing was refused.'));
  }

  async function drawReached() {
    if (context.sandbox().state !== 'running') {
      replace(reachedList, h('p', { class: 'faint' }, 'What it reached is known while it runs.'));
      return;
    }
    const { hosts, more } = await get(`${context.path}/reached`, { signal: context.signal });
    const { policy } = context.sandbox();
    replace(reachedList, table('Reached', ['Last', 'Host', 'Method', 'Sent', 'Received', 'Times', 'Rule', ''], hosts.map((one) => {
      const changed = denial(policy, one.host, hosts);
      return [
        clock(one.last),
        [named(`${one.host}:${one.port}`), one.failure && h('div', { class: 'faint' }, named(one.failure))],
        one.methods.join(', '),
        bytes(one.sent), bytes(one.received), one.times,
        one.rule ? named(one.rule) : 'every public address',
        change && changed && button('Deny', () => edit(null, changed), { class: 'small', 'aria-label': `Deny ${one.host}` }),
      ];
    }), 'No connection has ended yet.'),
    more > 0 && h('p', { class: 'faint' }, `${more} connections more are not told.`));
  }

  drawRules();
  await Promise.all([drawReached(), drawRefusals()]);
  return [
    h('div', { class: 'tools' }, h('h2', { class: 'grow' }, 'Rules'), change && button('Change', () => edit())),
    rules,
    h('div', { class: 'tools' }, h('h2', { class: 'grow' }, 'Reached'), button('Look again', drawReached, { 'aria-label': 'Look again what was reached' })),
    reachedList,
    h('div', { class: 'tools' }, h('h2', { class: 'grow' }, 'Refused'), button('Look again', drawRefusals)),
    listed,
  ];
}
