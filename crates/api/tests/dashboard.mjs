// What the dashboard reads and writes, without a browser: its modules are imported as they are. The one argument is their folder.

import assert from 'node:assert/strict';

globalThis.document = { addEventListener() {} };
const folder = process.argv[2];
const load = (name) => import(`${folder}/${name}`);
const [dom, inside, plot, create, network, ports, checkpoints, machine, changes, processes, browsers, recording] = await Promise.all(
  ['dom.js', 'inside.js', 'plot.js', 'views/create.js', 'views/network.js', 'views/ports.js', 'views/checkpoints.js', 'views/machine.js', 'changes.js', 'views/processes.js', 'views/browsers.js', 'views/recording.js'].map(load));

// Nothing that is hidden stays hidden, and nothing else changes.
for (const [given, expected] of [
  ['plain é 日本 🙂', 'plain é 日本 🙂'],
  ['a\u202eb', 'a\\u{202e}b'],
  ['\u001b[31m', '\\u{1b}[31m'],
  ['\u0085\u009b', '\\u{85}\\u{9b}'],
  ['a\nb\tc\r', 'a\\u{a}b\\u{9}c\\u{d}'],
  ['\u2066\u2069\u200f\u061c\u200b\u2060\ufeff\u00ad', '\\u{2066}\\u{2069}\\u{200f}\\u{61c}\\u{200b}\\u{2060}\\u{feff}\\u{ad}'],
  ['\u{e0041}', '\\u{e0041}'],
  ['\ud800x', '\\u{d800}x'],
  ['\u0000', '\\u{0}'],
  ['<b>&amp;', '<b>&amp;'],
]) assert.equal(dom.shown(given), expected);
for (let code = 0; code < 0x20; code += 1) assert.notEqual(dom.shown(String.fromCharCode(code)), String.fromCharCode(code));
assert.equal(dom.shownLines('a\r\nb\tc\rd\u001b'), 'a\nb\tc\\u{d}d\\u{1b}');
assert.equal(dom.cut('x'.repeat(300), 200).length, 201);
assert.equal(dom.cut('🙂🙂🙂', 2), '🙂🙂…');
assert.deepEqual([0, 1023, 1024, 1536, 20 * 1048576].map(dom.bytes), ['0 B', '1023 B', '1.0 KiB', '1.5 KiB', '20 MiB']);
assert.deepEqual([-5, 59000, 61000, 3660000, 90000000].map(dom.span), ['0 s', '59 s', '1 min 1 s', '1 h 1 min', '1 d 1 h']);

const data = Uint8Array.from({ length: 70000 }, (_, index) => index & 255);
assert.deepEqual(inside.unbase64(inside.base64(data)), data);
assert.equal(inside.base64(data), Buffer.from(data).toString('base64'));

assert.equal(plot.points([0, 100, 300], 100, 59, 20, 60), '57.0,19.0 58.0,1.0 59.0,1.0');
assert.equal(plot.points([], 0, 59, 20, 60), '');

assert.deepEqual(create.pairs('a=1\n\n b = c=d', 'Labels'), { a: '1', b: ' c=d' });
for (const wrong of ['a', '=1']) assert.throws(() => create.pairs(wrong, 'Labels'), /Labels/);
assert.deepEqual(create.words(' a, b\nc,\n'), ['a', 'b', 'c']);

assert.deepEqual(network.refusal('network: `example.com:443` was refused: no rule allows it'), { place: 'example.com:443', why: 'no rule allows it' });
assert.equal(network.refusal('command 3 started as user: network: `x` was refused: y'), null);
for (const place of ['example.com:443', 'example.com', '*.example.com', '192.0.2.1:80', '[2001:db8::1]:443']) assert.equal(network.ruleFor(place), place);
for (const place of ['', 'a b', 'example.com:443\n0.0.0.0/0', '0.0.0.0/0', 'a,b', 'x"y', '*', '\u202eexample.com']) assert.equal(network.ruleFor(place), null, place);

const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid
   0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000 0 1
   1: 0100007F:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0 0 2
   2: 0100007F:0050 0100007F:1234 01 00000000:00000000 00:00000000 00000000     0 0 3
   3: nonsense 0A`;
assert.deepEqual([...ports.listening(table)], [[8080, { everywhere: true, uid: 1000 }], [22, { everywhere: false, uid: 0 }]]);
assert.equal(ports.listening('').size, 0);

const made = checkpoints.children([{ id: 'a', parent: 'gone' }, { id: 'b', parent: 'a' }, { id: 'c', parent: 'a' }]);
assert.deepEqual(made.get(null).map(({ id }) => id), ['a']);
assert.deepEqual(made.get('a').map(({ id }) => id), ['b', 'c']);

// Where a browser is, is said by the server; that it is at this address is not.
const token = 'ws://evil.example/_browser/i1?token=t';
assert.equal(browsers.addressOf(token, { protocol: 'https:', host: 'box.test' }), 'wss://box.test/_browser/i1?token=t');
assert.equal(browsers.addressOf(token, { protocol: 'http:', host: '127.0.0.1:3000' }), 'ws://127.0.0.1:3000/_browser/i1?token=t');
assert.equal(browsers.lineOf({ method: 'Network.requestWillBeSent', params: { method: 'GET', url: 'http://a/' } }), 'GET http://a/');
assert.equal(browsers.lineOf({ method: 'Runtime.consoleAPICalled', params: { type: 'log' } }), 'console.log: ');
assert.equal(browsers.lineOf({ method: 'other', params: null }), null);

// Pictures of a recording: what is none is passed over, and nobody waits for long.
const frames = recording.framesOf({ frames: [{ timestamp: 1, data: 'a' }, { timestamp: 'x', data: 'a' }, { timestamp: 201, data: 7 }, { timestamp: 301, data: 'b' }, { timestamp: 99999, data: 'c' }] });
assert.deepEqual(frames.map(({ data }) => data), ['a', 'b', 'c']);
assert.deepEqual([0, 1, 2].map((place) => recording.pauseAfter(frames, place)), [300, 1000, 0]);
assert.equal(recording.pauseAfter([{ timestamp: 9 }, { timestamp: 1 }], 0), 0);
assert.deepEqual(recording.framesOf({}), []);

assert.deepEqual(machine.counts('# HELP\noffleash_sandboxes{state="paused"} 3\noffleash_other 4\n'), [['that are paused', '3']]);

// What denies what was reached.
const policy = { internet: false, allow: ['a.example', 'b.example:8443'], deny: ['192.0.2.9'], public_ports: false };
assert.deepEqual(network.denial(policy, 'b.example', []), { allow: ['a.example'] });
assert.deepEqual(network.denial(policy, '192.0.2.1', []), { allow: policy.allow, deny: ['192.0.2.9', '192.0.2.1'] });
assert.deepEqual(network.denial({ ...policy, allow: ['192.0.2.1:443', '192.0.2.1', 'a.example'] }, '192.0.2.1', []),
  { allow: ['a.example'], deny: ['192.0.2.9', '192.0.2.1'] });
assert.equal(network.denial({ ...policy, allow: ['192.0.2.0/24'] }, '192.0.2.1', []), null);
assert.equal(network.denial(policy, 'c.example', []), null);
assert.equal(network.denial({ ...policy, internet: true }, 'a b\n0.0.0.0/0', []), null);
const reached = ['c.example', 'd.example', '192.0.2.1', 'a b'].map((host) => ({ host }));
assert.deepEqual(network.denial({ ...policy, internet: true }, 'c.example', reached),
  { internet: false, allow: ['a.example', 'b.example:8443', 'd.example'], narrow: true });

// Paths that are no text are named by their bytes.
assert.equal(changes.pathQuery({ path: 'a b/é&c', path_base64: null }), 'a%20b%2F%C3%A9%26c');
assert.equal(changes.pathQuery({ path: 'a\ufffd', path_base64: Buffer.from([0x61, 0xff, 0x26]).toString('base64') }), '%61%ff%26');

// Each behind its parent, whatever numbers and parents are told.
const one = (pid, parent) => ({ pid, parent });
assert.deepEqual(processes.tree([one(1, 0), one(2, 1), one(3, 1), one(4, 2), one(9, 0)]).map(({ pid, depth }) => [pid, depth]),
  [[1, 0], [2, 1], [4, 2], [3, 1], [9, 0]]);
assert.deepEqual(processes.tree([one(5, 77), one(6, 6)]).map(({ pid }) => pid), [5, 6]);
assert.deepEqual(processes.tree([one(7, 8), one(8, 7)]), []);
