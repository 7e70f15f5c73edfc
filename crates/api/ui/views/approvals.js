// Questions that wait for a person: what is to happen, who asks, with what, and how long it waits still.

import { get, may, part, post } from '../api.js';
import { button, cut, facts, h, named, notify, pre, replace, say, span } from '../dom.js';
import { askAgain, watchQuestions } from '../questions.js';

/** What is told in its own way, or is of no use to a person. */
const OWN = new Set(['id', 'sandbox', 'name', 'key', 'tool', 'parameters', 'left_ms', 'kind', 'scopes', 'answered_by', 'rule']);
const ANSWERS = { once: 'Allow once', sandbox: 'Allow for the sandbox', always: 'Allow always' };

/** What a question is about, in a few words, whatever kind it is of. */
export function subject(question) {
  const { kind, tool, parameters } = question;
  if (kind === 'connection') return ['Connection to ', named(`${parameters?.host}:${parameters?.port}`)];
  if (kind === 'command') return ['Start of ', named(cut((parameters?.argv ?? []).map(text).join(' '), 200))];
  if (kind === 'restore') return ['Restore of checkpoint ', named(parameters?.checkpoint ?? '')];
  if (tool) return ['Call of the tool ', named(tool)];
  return ['Question: ', named(kind ?? 'of another kind')];
}

/** A value as somebody may read it. */
function text(value) {
  return typeof value === 'string' ? value : JSON.stringify(value, null, 2);
}

function card(question, names) {
  const left = h('span', {}, '–');
  const name = names.get(question.sandbox);
  const offered = question.scopes ?? ['once'];
  const needed = question.answered_by ?? 'create';
  const about = subject(question);
  const decide = async (work, told) => {
    await work();
    notify(told);
    await askAgain();
  };
  const answers = !may(needed) ? h('p', { class: 'faint' }, `Answers take a key with the scope ${needed}.`) : h('div', { class: 'tools' },
    offered.filter((scope) => ANSWERS[scope]).map((scope, index) => button(ANSWERS[scope], () => decide(
      () => post(`/v1/approvals/${part(question.id)}/approve`, { scope }), 'It is allowed.'),
    index === 0 ? { class: 'primary' } : {})),
    button('Deny', () => decide(() => post(`/v1/approvals/${part(question.id)}/deny`, {}), 'It is denied.'), { class: 'danger' }));
  const others = Object.entries(question).filter(([word, value]) => !OWN.has(word) && value !== null && value !== undefined);
  const element = h('section', { class: 'card', 'aria-label': `Question ${question.id}` },
    h('h2', {}, about),
    facts([
      ['Who asks', h('a', { href: `#/sandboxes/${part(question.sandbox)}` }, named(name ?? question.sandbox))],
      question.rule && ['Rule that asks', named(question.rule)],
      ['Denied in', left],
      ...others.map(([word, value]) => [cut(word, 40), named(text(value))]),
    ]),
    question.parameters !== undefined && [
      h('h3', {}, 'With'),
      pre(text(question.parameters), { 'aria-label': 'Parameters' }),
    ],
    answers);
  const until = Date.now() + Number(question.left_ms ?? 0);
  return { element, tick: () => say(left, span(until - Date.now())) };
}

export async function approvalsView(context) {
  const list = h('div', { class: 'cards' });
  const failure = h('p', { class: 'failure', role: 'alert' });
  const count = h('p', { class: 'faint', role: 'status' });
  const cards = new Map();
  const names = new Map();
  get('/v1/overview', { signal: context.signal }).then(({ sandboxes }) => {
    for (const one of sandboxes) if (one.name) names.set(one.id, one.name);
  }, () => {});

  context.onEnd(watchQuestions(({ approvals, failure: why }) => {
    failure.textContent = why ?? '';
    say(count, approvals.length === 1 ? 'One question waits.' : `${approvals.length} questions wait.`);
    const there = new Set(approvals.map(({ id }) => id));
    for (const [id, { element }] of cards) {
      if (there.has(id)) continue;
      element.remove();
      cards.delete(id);
    }
    // Those that are there keep their place, and the focus in them.
    for (const question of approvals) {
      if (cards.has(question.id)) continue;
      const made = card(question, names);
      made.tick();
      cards.set(question.id, made);
      list.append(made.element);
    }
    list.hidden = cards.size === 0;
  }));
  const timer = setInterval(() => cards.forEach(({ tick }) => tick()), 1000);
  context.onEnd(() => clearInterval(timer));
  return [h('h1', {}, 'Approvals'), count, failure, list,
    h('p', { class: 'faint' }, 'What waits here goes on when it is allowed, and is denied when its time is up. ', may('create') ? '' : 'Answers take a key with the scope create.')];
}

/** Shows in an element how many questions wait; gives what ends that. */
export function showCount(element) {
  return watchQuestions(({ approvals }) => {
    const count = approvals.length;
    element.hidden = count === 0;
    if (element.dataset.count === String(count)) return;
    element.dataset.count = String(count);
    replace(element, h('span', { 'aria-hidden': 'true' }, count > 99 ? '99+' : count), h('span', { class: 'unseen' }, ` ${count} wait`));
  });
}
