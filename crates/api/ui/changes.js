// A list of changes and each as a diff: of a sandbox, or of a run, whose changes can be applied file by file.

import { get } from './api.js';
import { bytes, button, cut, h, named, replace, shownLines, table } from './dom.js';

/** Rows that are there at first, and with each `More`. */
const ROWS = 200;
/** Lines of a diff that are shown. */
const MAX_LINES = 4000;
const KINDS = {
  added: ['added', 'good'], modified: ['changed', 'warn'], deleted: ['removed', 'bad'], mode_changed: ['mode', 'dull'],
  symlink_changed: ['link', 'warn'], type_changed: ['type', 'warn'], replaced: ['replaced', 'warn'],
};

/** What names a path in a query: its bytes. */
export function pathQuery({ path, path_base64: encoded }) {
  if (!encoded) return encodeURIComponent(path);
  return [...atob(encoded)].map((one) => `%${one.charCodeAt(0).toString(16).padStart(2, '0')}`).join('');
}

/** The lines of a patch, each by what it says. */
export function patchLines(patch) {
  const lines = patch.split('\n');
  if (lines.at(-1) === '') lines.pop();
  return lines.slice(0, MAX_LINES).map((line) => {
    const kind = /^(\+\+\+|---|diff |index |new file|deleted file|old mode|new mode|Binary|Large|#|\\)/.test(line) ? 'meta'
      : line.startsWith('@@') ? 'hunk' : line.startsWith('+') ? 'add' : line.startsWith('-') ? 'del' : '';
    const element = h('span', { class: kind && `line-${kind}` });
    element.textContent = `${shownLines(line)}\n`;
    return element;
  });
}

function diffElement(diff) {
  const element = h('pre', { class: 'diff', tabindex: 0, role: 'region', 'aria-label': 'Difference' }, patchLines(diff.patch));
  const whole = diff.patch.split('\n').length <= MAX_LINES + 1 && !diff.cut;
  return [
    h('p', { class: 'faint' }, diff.form === 'text' ? `${diff.added_lines} lines added, ${diff.removed_lines} removed.` : `No text to compare (${diff.form}).`),
    element,
    !whole && h('p', { class: 'faint' }, 'This is the beginning.'),
  ];
}

/**
 * The list of `changes`, whose diffs are at `path`. `chosen`, where changes can be applied, is a set that holds the chosen
 * ones, and `onChoice` is told when it has changed.
 */
export function changesList({ list, path, signal, chosen = null, onChoice = () => {} }) {
  const filter = h('input', { type: 'search', placeholder: 'Filter by path', 'aria-label': 'Filter by path', maxlength: 200 });
  const kind = h('select', { 'aria-label': 'Kind of change' }, h('option', { value: '' }, 'every kind'),
    Object.entries(KINDS).filter(([word]) => list.changes.some((one) => one.kind === word)).map(([word, [told]]) => h('option', { value: word }, told)));
  const rows = h('div');
  const shownDiff = h('div', { 'aria-live': 'polite' });
  let most = ROWS;

  async function show(change) {
    replace(shownDiff, h('h2', {}, named(change.path)), h('p', { class: 'loading' }, 'Loading…'));
    try {
      const diff = await get(`${path}/diff?path=${pathQuery(change)}`, { signal });
      replace(shownDiff, h('h2', {}, named(change.path)), diffElement(diff));
    } catch (error) {
      if (signal.aborted) return;
      replace(shownDiff, h('h2', {}, named(change.path)), h('p', { class: 'failure', role: 'alert' }, error.message));
    }
    shownDiff.scrollIntoView?.({ block: 'nearest' });
  }

  function choice(change) {
    const box = h('input', { type: 'checkbox', checked: chosen.has(change), 'aria-label': `Choose ${cut(change.path, 100)}` });
    box.addEventListener('change', () => {
      if (box.checked) chosen.add(change);
      else chosen.delete(change);
      onChoice();
    });
    return box;
  }

  function draw() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = list.changes.filter((one) => (!kind.value || one.kind === kind.value) && words.every((word) => one.path.toLowerCase().includes(word)));
    const heads = ['Change', 'What', 'Path', 'Size', ''];
    const size = (one) => (one.size_before === null && one.size_after === null ? ''
      : one.size_before === null ? bytes(one.size_after)
        : one.size_after === null ? bytes(one.size_before)
          : one.size_before === one.size_after ? bytes(one.size_after) : `${bytes(one.size_before)} → ${bytes(one.size_after)}`);
    replace(rows, table('Changes', chosen ? ['Chosen', ...heads] : heads, found.slice(0, most).map((one) => {
      const [told, look] = KINDS[one.kind] ?? [one.kind, 'dull'];
      const cells = [
        h('span', { class: `badge ${look}` }, told),
        one.entry,
        [h('span', { class: 'mono' }, named(one.path)), one.held_back && h('div', { class: 'faint' }, 'held back: ', named(one.held_back))],
        size(one),
        one.entry === 'file' || one.entry === 'symlink' || one.kind === 'type_changed'
          ? button('Show', () => show(one), { class: 'small', 'aria-label': `Show the difference of ${cut(one.path, 100)}` }) : '',
      ];
      return chosen ? [choice(one), ...cells] : cells;
    }), list.changes.length ? 'No change is called so.' : 'Nothing was changed.'),
    found.length > most && h('div', { class: 'tools' }, h('span', { class: 'faint grow' }, `${most} of ${found.length} are shown.`),
      button('More', () => {
        most += ROWS;
        draw();
      })));
  }

  const again = () => {
    most = ROWS;
    draw();
  };
  filter.addEventListener('input', again);
  kind.addEventListener('change', again);
  draw();
  const element = [
    h('div', { class: 'tools' }, h('div', { class: 'grow' }, filter), kind),
    rows,
    list.more && h('p', { class: 'faint' }, 'There are more changes than are told.'),
    list.unreadable > 0 && h('p', { class: 'faint' }, `${list.unreadable} files and directories could not be looked at.`),
    shownDiff,
  ];
  return { element, draw };
}
