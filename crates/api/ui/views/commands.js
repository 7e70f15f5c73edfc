// Commands in a sandbox: one that is run here, with its output as it comes, and those that run.

import { button, field, h, named, notify, replace, shownLines, table } from '../dom.js';
import { unbase64 } from '../inside.js';

/** Characters of output that are kept in the page. */
const MAX_OUTPUT = 200000;

export function commandsTab(context) {
  const line = h('input', { type: 'text', spellcheck: 'false', autocomplete: 'off', placeholder: 'ls -la', class: 'mono', maxlength: 10000 });
  const directory = h('input', { type: 'text', spellcheck: 'false', autocomplete: 'off', placeholder: 'home', maxlength: 4000 });
  const output = h('pre', { tabindex: 0, role: 'log', 'aria-label': 'Output' });
  const status = h('p', { class: 'faint', role: 'status' });
  const listed = h('div');
  let running = null;
  context.onEnd(() => running?.abort());

  function write(bytes, decoder) {
    const text = shownLines(decoder.decode(bytes, { stream: true }));
    let all = output.textContent + text;
    if (all.length > MAX_OUTPUT) all = `… what came before is left out …\n${all.slice(-MAX_OUTPUT)}`;
    const atEnd = output.scrollTop + output.clientHeight >= output.scrollHeight - 8;
    output.textContent = all;
    if (atEnd) output.scrollTop = output.scrollHeight;
  }

  async function run() {
    running?.abort();
    const mine = (running = new AbortController());
    output.textContent = '';
    const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };
    status.textContent = 'Starting…';
    try {
      await context.inside.start(
        { process: { cmd: '/bin/sh', args: ['-c', line.value], cwd: directory.value.trim() || undefined }, stdin: false },
        (event) => {
          if (event.start) {
            replace(status, `Process ${event.start.pid} runs. `, button('Stop', () => context.inside.signal(event.start.pid, 'SIGNAL_SIGTERM'), { class: 'small' }));
            list();
          }
          for (const name of ['stdout', 'stderr']) if (event.data?.[name]) write(unbase64(event.data[name]), decoders[name]);
          if (event.end) replace(status, `It has ended: ${event.end.status}.`);
        },
        mine.signal);
    } catch (error) {
      if (!mine.signal.aborted) replace(status, error.message);
    }
    list();
  }

  async function list() {
    if (context.signal.aborted) return;
    const all = await context.inside.processes().catch(() => []);
    replace(listed, table('Commands that run', ['Process', 'Command', 'Directory', 'Tag', ''], all.map((one) => [
      one.pid,
      h('span', { class: 'mono' }, named([one.config?.cmd, ...(one.config?.args ?? [])].join(' '))),
      named(one.config?.cwd ?? ''),
      one.tag ? named(one.tag) : '',
      button('Kill', async () => {
        await context.inside.signal(one.pid, 'SIGNAL_SIGKILL');
        notify(`Process ${one.pid} is killed.`);
        list();
      }, { class: 'small', 'aria-label': `Kill process ${one.pid}` }),
    ]), 'No command that was started from outside runs.'));
  }

  const form = h('form', {},
    h('div', { class: 'split' }, field('Command', line, 'For /bin/sh'), field('Directory', directory)),
    h('div', { class: 'tools' }, h('button', { type: 'submit', class: 'primary' }, 'Run')));
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    if (line.value.trim()) run();
  });
  list();
  const timer = setInterval(() => document.visibilityState === 'visible' && list(), 5000);
  context.onEnd(() => clearInterval(timer));
  return [form, status, output, h('h2', {}, 'Commands that run'), listed];
}
