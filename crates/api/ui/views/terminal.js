// A terminal in the sandbox: xterm.js at one end, a shell at a pseudo-terminal at the other.

import { button, h, notify, say } from '../dom.js';
import { unbase64 } from '../inside.js';

// The best shell that there is, as a login would start it.
const SHELL = 'command -v bash >/dev/null 2>&1 && exec bash -il; exec sh -i';
const MAX_WAITING = 1 << 20;

/**
 * xterm.js puts styles into elements and attributes, of which the page's policy takes neither. While a terminal is there,
 * a style element is one whose rules go into a sheet of ours, and a style attribute is set as a property. Gives what ends that.
 */
function guardStyles() {
  const sheets = [];
  const make = (tag, ...rest) => Document.prototype.createElement.call(document, tag, ...rest);
  document.createElement = (tag, ...rest) => {
    if (tag === 'style') {
      const sheet = new CSSStyleSheet();
      sheets.push(sheet);
      document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
      const element = make('span');
      element.hidden = true;
      Object.defineProperty(element, 'textContent', { set: (text) => sheet.replaceSync(text), get: () => '' });
      return element;
    }
    const element = make(tag, ...rest);
    if (tag !== 'span') return element;
    element.setAttribute = (name, value) => {
      if (name === 'style') element.style.cssText = value;
      else Element.prototype.setAttribute.call(element, name, value);
    };
    return element;
  };
  return () => {
    delete document.createElement;
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((sheet) => !sheets.includes(sheet));
  };
}

function theme() {
  return { background: '#0c0f11', foreground: '#e6ebee', cursor: '#5fd0a5', selectionBackground: '#33505f' };
}

export async function terminalTab(context) {
  const [{ Terminal }, { FitAddon }] = await Promise.all([
    import('/ui/vendor/xterm/xterm.mjs'), import('/ui/vendor/xterm-addon-fit/addon-fit.mjs'),
  ]);
  if (context.signal.aborted) return null;
  const unguard = guardStyles();
  const terminal = new Terminal({
    theme: theme(), fontSize: 14, scrollback: 5000, cursorBlink: false, screenReaderMode: true,
    fontFamily: 'ui-monospace, "Liberation Mono", Menlo, monospace',
    // Addresses that a program writes lead nowhere: where they seem to lead is not where they do.
    linkHandler: { activate() {}, allowNonHttpProtocols: false },
  });
  const fit = new FitAddon();
  terminal.loadAddon(fit);
  const place = h('div', { class: 'terminal', role: 'group', 'aria-label': 'Terminal' });
  const status = h('span', { class: 'faint', role: 'status' }, 'Starting…');
  const tools = h('div', { class: 'tools' }, status, h('span', { class: 'grow' }),
    h('span', { class: 'faint' }, 'Ctrl+Shift+Esc leaves the terminal'));
  const ending = new AbortController();
  context.onEnd(() => {
    ending.abort();
    size.disconnect();
    terminal.dispose();
    unguard();
  });
  let pid = null;
  let waiting = [];
  let waits = 0;
  let sending = false;

  // What is typed while something is on its way goes with the next request, so that keys keep their order.
  async function send(data) {
    if (pid === null || waits + data.length > MAX_WAITING) return;
    waits += data.length;
    waiting.push(data);
    if (sending) return;
    sending = true;
    try {
      while (waiting.length && pid !== null) {
        const all = new Uint8Array(waits);
        let place = 0;
        for (const piece of waiting) {
          all.set(piece, place);
          place += piece.length;
        }
        [waiting, waits] = [[], 0];
        await context.inside.input(pid, all);
      }
    } catch (error) {
      if (pid !== null) notify(error.message, 'bad');
    } finally {
      [waiting, waits, sending] = [[], 0, false];
    }
  }

  terminal.onData((text) => send(new TextEncoder().encode(text)));
  terminal.onBinary((text) => send(Uint8Array.from(text, (one) => one.charCodeAt(0) & 255)));
  terminal.onResize(({ cols, rows }) => pid !== null && context.inside.resize(pid, cols, rows).catch(() => {}));
  terminal.attachCustomKeyEventHandler((event) => {
    if (!(event.key === 'Escape' && event.ctrlKey && event.shiftKey)) return true;
    if (event.type === 'keydown') context.main.focus();
    return false;
  });
  const size = new ResizeObserver(() => place.isConnected && fit.fit());

  async function run() {
    const { cols, rows } = terminal;
    await context.inside.start(
      {
        process: { cmd: '/bin/sh', args: ['-c', SHELL], envs: { TERM: 'xterm-256color', COLORTERM: 'truecolor', LANG: 'C.UTF-8' } },
        pty: { size: { cols, rows } },
      },
      (event) => {
        if (event.start) {
          pid = event.start.pid;
          say(status, `Process ${pid}`);
          if (terminal.cols !== cols || terminal.rows !== rows) context.inside.resize(pid, terminal.cols, terminal.rows).catch(() => {});
        } else if (event.data?.pty) {
          // A program that floods the terminal waits for it.
          return new Promise((taken) => terminal.write(unbase64(event.data.pty), taken));
        } else if (event.end) {
          say(status, `It has ended: ${event.end.status}`);
        }
        return null;
      },
      ending.signal,
      { 'Offleash-Ends-With-Client': 'true' });
  }

  async function begin() {
    try {
      await run();
    } catch (error) {
      if (!ending.signal.aborted) say(status, error.message);
    }
    pid = null;
    if (ending.signal.aborted) return;
    const again = button('Start again', () => {
      again.remove();
      terminal.reset();
      begin();
    });
    tools.append(again);
  }

  // It has a size once it is in the page.
  setTimeout(() => {
    if (ending.signal.aborted) return;
    terminal.open(place);
    fit.fit();
    size.observe(place);
    terminal.focus();
    begin();
  });
  return [tools, place];
}

