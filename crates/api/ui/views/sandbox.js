// One sandbox: what it is, what is done with it, and its tabs.

import { get, may, part, post, remove } from '../api.js';
import { ask, button, bytes, clock, cut, facts, field, h, named, notify, percent, replace, say, shown, span, table } from '../dom.js';
import { Inside } from '../inside.js';
import { MOMENTS, history, refresh, watch } from '../live.js';
import { plot } from '../plot.js';
import { changesTab } from './changes.js';
import { checkpointsTab } from './checkpoints.js';
import { commandsTab } from './commands.js';
import { filesTab } from './files.js';
import { logTab } from './log.js';
import { networkTab } from './network.js';
import { portsTab } from './ports.js';
import { processesTab } from './processes.js';
import { stateBadge } from './sandboxes.js';
import { terminalTab } from './terminal.js';

// What changes something, or looks into the sandbox, needs one that runs.
const TABS = [
  ['about', 'About', aboutTab],
  ['terminal', 'Terminal', terminalTab, 'create'],
  ['commands', 'Commands', commandsTab, 'create'],
  ['processes', 'Processes', processesTab, 'create'],
  ['files', 'Files', filesTab, 'create'],
  ['changes', 'Changes', changesTab, 'create', 'any'],
  ['ports', 'Ports', portsTab, 'create'],
  ['network', 'Network', networkTab],
  ['checkpoints', 'Checkpoints', checkpointsTab],
  ['log', 'Log', logTab],
];

export async function sandboxView(context, id, tab = 'about') {
  const path = `/v1/sandboxes/${part(id)}`;
  let sandbox = await get(path);
  const tabs = TABS.filter(([, , , scope]) => !scope || may(scope));
  const [chosen, word, view, needs, state] = tabs.find(([name]) => name === tab) ?? tabs[0];
  document.title = `${word} · ${shown(cut(sandbox.metadata['offleash.name'] ?? id, 40))} · offleash`;
  const head = h('div', { class: 'tools' });
  const content = h('div');

  async function again() {
    sandbox = await get(path);
    drawHead();
  }

  function done(text) {
    notify(text);
    refresh();
    // What its parts show is another matter now.
    dispatchEvent(new Event('hashchange'));
  }

  function drawHead() {
    const paused = sandbox.state === 'paused';
    const change = may('create');
    replace(head,
      stateBadge(sandbox.state, sandbox.asleep),
      h('span', { class: 'grow mono' }, sandbox.id),
      change && !paused && button('Pause', async () => {
        await post(`${path}/pause`);
        done('It is paused.');
      }),
      change && !paused && button('Put away', async () => {
        await post(`${path}/pause`, { mode: 'filesystem' });
        done('Its files alone are kept.');
      }, { title: 'Its processes end, its files stay' }),
      change && paused && button('Resume', async () => {
        await post(`${path}/resume`);
        done('It runs.');
      }, { class: 'primary' }),
      change && button('Fork', () => fork(path)),
      change && button('Snapshot', async () => {
        const name = h('input', { type: 'text', maxlength: 63 });
        const made = await ask('Snapshot', field('Name', name, 'Optional'), {
          confirm: 'Make', read: () => post(`${path}/snapshots`, { name: name.value.trim() || undefined }),
        });
        if (made) notify(`Snapshot ${made.id} is made.`);
      }),
      change && button('Kill', async () => {
        const sure = await ask('Kill this sandbox?', h('p', {}, 'All that is in it is lost: ', named(sandbox.metadata['offleash.name'] ?? id)), {
          confirm: 'Kill', danger: true, read: async () => {
            await remove(path);
            return true;
          },
        });
        if (!sure) return;
        notify('It is killed.');
        refresh();
        location.hash = '#/sandboxes';
      }, { class: 'danger' }));
  }

  drawHead();
  const inside = new Inside(sandbox);
  const given = { ...context, path, again, inside, sandbox: () => sandbox };
  const sleeps = needs && state !== 'any' && sandbox.state !== 'running';
  Promise.resolve(sleeps ? h('p', {}, 'It is paused: this needs a sandbox that runs.') : view(given)).then(
    (element) => !context.signal.aborted && replace(content, element),
    (error) => replace(content, h('p', { class: 'failure', role: 'alert' }, error.message)));
  return [
    h('h1', {}, named(sandbox.metadata['offleash.name'] ?? sandbox.id)),
    head,
    h('nav', { class: 'tabs', 'aria-label': 'Parts of the sandbox' }, tabs.map(([name, label]) =>
      h('a', { href: `#/sandboxes/${part(id)}/${name}`, 'aria-current': name === chosen && 'page' }, label))),
    content,
  ];
}

async function fork(path) {
  const count = h('input', { type: 'number', min: 1, max: 20, value: 1 });
  const name = h('input', { type: 'text', maxlength: 60 });
  const made = await ask('Fork', h('div', {}, field('How many', count), field('Name', name, 'Optional')), {
    confirm: 'Fork', read: () => post(`${path}/fork`, { count: Number(count.value), name: name.value.trim() || undefined, contexts: 'possible' }),
  });
  if (!made) return;
  for (const { sandbox, error } of made.forks) {
    if (sandbox) notify(`Fork ${sandbox.id} runs.`);
    else notify(`A fork was not made: ${error.message}`, 'bad');
  }
  refresh();
}

function aboutTab(context) {
  const sandbox = context.sandbox();
  const { limits } = sandbox;
  const plots = {
    cpu: plot('CPU', percent, MOMENTS),
    memory: plot('Memory', bytes, MOMENTS),
    disk: plot('Disk', bytes, MOMENTS),
  };
  const most = { cpu: limits.cpus * 100, memory: limits.memory_mib * 1048576, disk: limits.disk_mib * 1048576 };
  const left = h('span', {}, '–');
  let before = null;
  const path = `/sandboxes/${part(sandbox.id)}/metrics`;
  // What was sampled before this page was opened.
  get(path, { signal: context.signal }).then((samples) => {
    before = samples.map((one) => ({ at: Date.parse(one.timestamp), cpu: one.cpuUsedPct, memory: one.memUsed, disk: one.diskUsed }));
    draw();
  }, () => {});

  function draw() {
    const now = history(sandbox.id);
    for (const [name, one] of Object.entries(plots)) {
      // The newest samples of the history are those that were seen live.
      const older = (before ?? []).slice(0, Math.max(0, (before ?? []).length - 1)).map((sample) => sample[name]);
      one.set([...older, ...now[name]].slice(-MOMENTS), most[name]);
    }
  }

  context.onEnd(watch((overview) => {
    const one = overview.sandboxes.find(({ id }) => id === sandbox.id);
    say(left, one ? (one.state === 'running' ? span(new Date(one.ends_at) - Date.now()) : 'its time stands still') : 'it has ended');
    draw();
  }));
  const lists = (words) => (words.length ? h('ul', {}, words.map((one) => h('li', {}, named(one)))) : 'nothing');
  return [
    h('div', { class: 'figures' }, Object.values(plots).map((one) => one.element)),
    facts([
      ['Template', named(sandbox.template)],
      sandbox.image_digest && ['Digest of the image', h('span', { class: 'mono' }, sandbox.image_digest)],
      ['Level', sandbox.level],
      ['Started', clock(sandbox.started_at)],
      ['Time is up', clock(sandbox.ends_at)],
      ['Time left', left],
      ['When it is up', sandbox.pause_on_timeout ? 'paused' : 'killed'],
      ['Limits', `${limits.cpus} CPUs, ${limits.memory_mib} MiB memory, ${limits.disk_mib} MiB disk, ${limits.pids} processes`],
      ['Python contexts', sandbox.interpreter],
      sandbox.fork_of && ['Fork of', h('a', { href: `#/sandboxes/${part(sandbox.fork_of)}` }, sandbox.fork_of)],
      sandbox.snapshot && ['Of snapshot', sandbox.snapshot],
      ['Sleeps when idle for', sandbox.lifecycle.idle_seconds ? `${sandbox.lifecycle.idle_seconds} s` : 'never'],
      ['Checkpoints by itself', sandbox.lifecycle.checkpoint_every_seconds ? `every ${sandbox.lifecycle.checkpoint_every_seconds} s` : 'never'],
    ]),
    Object.keys(sandbox.not_enforced).length > 0 && [
      h('h2', {}, 'Not enforced here'),
      table('Not enforced here', ['What', 'Why'], Object.entries(sandbox.not_enforced).map(([what, why]) => [what, named(why)])),
    ],
    h('h2', {}, 'Labels'),
    table('Labels', ['Label', 'Value'], Object.entries(sandbox.metadata).map(([name, value]) => [named(name), named(value)]), 'It has no labels.'),
    sandbox.volumes.length > 0 && [
      h('h2', {}, 'Volumes'),
      table('Volumes', ['Volume', 'Where', 'Access'], sandbox.volumes.map((one) => [named(one.volume), named(one.path), one.read_only ? 'read only' : 'read and write'])),
    ],
    sandbox.lifecycle.checkpoint_before.length > 0 && [h('h2', {}, 'Checkpoints before'), lists(sandbox.lifecycle.checkpoint_before)],
  ];
}
