// Tests of the driver of JavaScript contexts, spoken to as its host does. Run with the Node that it is to run in.

"use strict";

const { test, afterEach, beforeEach } = require("node:test");
const assert = require("node:assert");
const { execSync, spawn } = require("node:child_process");
const { once } = require("node:events");
const fs = require("node:fs");
const os = require("node:os");
const path = require("node:path");

const source = fs.readFileSync(path.join(__dirname, "javascript.js"));

// The line that the host starts the driver with.
function bootstrap() {
  const text = fs.readFileSync(path.join(__dirname, "..", "src", "language.rs"), "utf8");
  return text.match(/const NODE: &str = "\\\n([^]*?\n)";/)[1].replaceAll("\\\\", "\\");
}

class Driver {
  constructor(language = "javascript") {
    this.directory = fs.mkdtempSync(path.join(os.tmpdir(), "offleash-driver-"));
    this.process = spawn(process.execPath, ["--expose-internals", "-e", bootstrap(), language], {
      cwd: this.directory,
      detached: true,
      env: { ...process.env, NODE_TEST_CONTEXT: undefined, KEPT: "before" },
    });
    this.number = 0;
    this.received = Buffer.alloc(0);
    this.frames = [];
    this.errors = "";
    this.wake = () => {};
    this.ended = once(this.process, "close").then((end) => {
      this.end = end;
      this.wake();
      return end;
    });
    this.process.stdin.on("error", () => {});
    this.process.stderr.on("data", (data) => (this.errors += data));
    this.process.stdout.on("data", (data) => this.receive(data));
    this.give("source", "0".repeat(32), source);
  }

  receive(data) {
    this.received = Buffer.concat([this.received, data]);
    for (;;) {
      const end = this.received.indexOf(10);
      if (end < 0) break;
      const line = this.received.toString("latin1", 0, end);
      assert.match(line, /^[a-z_]+ [0-9a-f]{32} \d{1,8}$/);
      const [kind, id, length] = line.split(" ");
      const rest = end + 1 + Number(length);
      if (this.received.length < rest) break;
      this.frames.push([kind, id, this.received.subarray(end + 1, rest)]);
      this.received = this.received.subarray(rest);
    }
    this.wake();
  }

  give(kind, id, payload = Buffer.alloc(0)) {
    this.process.stdin.write(`${kind} ${id} ${payload.length}\n`);
    this.process.stdin.write(payload);
  }

  fresh() {
    this.number += 1;
    return this.number.toString(16).padStart(32, "0");
  }

  async frame() {
    while (!this.frames.length) {
      if (this.end) throw new Error(`it ended with ${this.end}: ${this.errors}`);
      await new Promise((resolve) => (this.wake = resolve));
    }
    return this.frames.shift();
  }

  async sync() {
    const id = this.fresh();
    this.give("sync", id);
    for (;;) {
      const [kind, of, payload] = await this.frame();
      if (kind === "sync" && of === id) return Number(payload);
    }
  }

  async run(code, { env = {}, room = 1 << 26, onOutput = () => {} } = {}) {
    const id = this.fresh();
    for (const [name, value] of Object.entries(env)) this.give("env", id, Buffer.from(`${name}=${value}`));
    const bytes = Buffer.from(code);
    for (let at = 0; at < bytes.length; at += 1 << 19) this.give("code", id, bytes.subarray(at, at + (1 << 19)));
    this.give("run", id, Buffer.from(`${room} ${1 << 25}`));
    const cell = { stdout: "", stderr: "", all: "", results: [], errors: [], truncated: 0, omitted: {} };
    let forms = {};
    const error = {};
    for (;;) {
      const [kind, of, payload] = await this.frame();
      if (of !== id) continue;
      const text = payload.toString();
      const [mime, ...rest] = text.split("\n");
      if (kind === "done") return cell;
      if (kind === "count") cell.count = Number(text);
      else if (kind === "stdout" || kind === "stderr") {
        cell[kind] += text;
        cell.all += text;
        onOutput(cell);
      } else if (kind === "text") forms[mime] = rest.join("\n");
      else if (kind === "json") forms[mime] = JSON.parse(rest.join("\n"));
      else if (kind === "omitted") cell.omitted[mime] = Number(rest[0]);
      else if (kind === "result") {
        cell.results.push([text, forms]);
        if (text === "main") cell.text = forms["text/plain"];
        forms = {};
        onOutput(cell);
      } else if (kind === "error_name" || kind === "error_value") error[kind.slice(6)] = text;
      else if (kind === "error") cell.errors.push({ ...error, stack: text });
      else if (kind === "truncated") cell.truncated = Number(text);
      else throw new Error(kind);
    }
  }

  interrupt() {
    process.kill(-this.process.pid, "SIGINT");
  }

  async clean() {
    try {
      process.kill(-this.process.pid, "SIGKILL");
    } catch {}
    await this.ended;
    fs.rmSync(this.directory, { recursive: true });
  }
}

let driver;
const cell = (code, options) => driver.run(code, options);
const patience = { timeout: 120_000 };
const it = (name, work) => test(name, patience, work);

beforeEach(() => (driver = new Driver()));
afterEach(() => driver.clean());

it("state is kept", async () => {
  assert.equal(await driver.sync(), 0);
  const first = await cell("let x = 1; const c = 2; class A {}; function f() { return x + c }");
  assert.deepEqual([first.count, first.results, first.errors], [1, [], []]);
  const second = await cell("x += 1; [f(), typeof A, x]");
  assert.deepEqual([second.count, second.text], [2, "[ 4, 'function', 2 ]"]);
  assert.equal(await driver.sync(), 2);
});

it("the last expression is the result", async () => {
  assert.equal((await cell("1\n'it\\'s'")).text, "'it's'");
  assert.equal((await cell("{ a: 1 }")).text, "{ a: 1 }");
  assert.equal((await cell("undefined")).text, undefined);
  assert.equal((await cell("null")).text, "null");
  assert.equal((await cell("")).results.length, 0);
  assert.equal((await cell("const q = 5; q")).text, "5");
  assert.equal((await cell("_ + 1")).text, "6");
});

it("awaits at the top level, and keeps what such a cell declares", async () => {
  const first = await cell("const a = await Promise.resolve(1); let { b } = await { b: 2 }; class K {}; function g() { return a }\na + b");
  assert.deepEqual([first.errors, first.text], [[], "3"]);
  assert.equal((await cell("[a, b, g(), typeof K]")).text, "[ 1, 2, 1, 'function' ]");
  assert.equal((await cell("await new Promise((done) => setTimeout(done, 1, 'late'))")).text, "'late'");
  assert.equal((await cell("await Promise.reject(new TypeError('no'))")).errors[0].name, "TypeError");
});

it("says nothing of its own when modules are imported, and what a cell says all the same", async () => {
  const { stderr, text } = await cell("import { sep } from 'node:path'\nsep");
  assert.deepEqual([text, stderr], ["'/'", ""]);
  const warned = await cell("await import('node:os'); process.emitWarning('mine', 'ExperimentalWarning'); await new Promise((r) => setTimeout(r, 10))");
  assert.match(warned.stderr, /ExperimentalWarning: mine/);
});

it("imports modules", async () => {
  assert.equal((await cell("require('path').basename('/a/b')")).text, "'b'");
  assert.equal((await cell("(await import('node:path')).basename('/a/c')")).text, "'c'");
  const cells = ["import p, { join as j } from 'node:path'\nimport * as o from 'node:os'", "[j('a', 'b'), typeof p.sep, typeof o.cpus]"];
  assert.deepEqual((await cell(cells[0])).errors, []);
  assert.equal((await cell(cells[1])).text, "[ 'a/b', 'string', 'function' ]");
  fs.writeFileSync(path.join(driver.directory, "mine.mjs"), "export const mine = 7");
  assert.equal((await cell("import { mine } from './mine.mjs'; mine")).text, "7");
});

it("an error has name, value and stack without our frames", async () => {
  const [error] = (await cell("function f() {\n  throw new RangeError('wrong')\n}\nf()")).errors;
  assert.deepEqual([error.name, error.value], ["RangeError", "wrong"]);
  assert.match(error.stack, /at f \(<cell 1>:2:9\)/);
  assert.doesNotMatch(error.stack, /offleash|node:/);
  for (const [code, name] of [
    ["1 +", "SyntaxError"],
    ["await 1 +", "SyntaxError"],
    ["throw 'text'", "Error"],
    ["throw null", "Error"],
    ["throw { get name() { throw 1 } }", "Error"],
    ["class E extends Error { get message() { throw this } }; throw new E()", "Error"],
    ["(function f() { f() })()", "RangeError"],
    ["({ [require('util').inspect.custom]() { throw new EvalError('shown') } })", "EvalError"],
  ]) {
    const { errors } = await cell(code);
    assert.deepEqual(errors.map((one) => one.name), [name], code);
  }
  assert.equal((await cell("7")).text, "7");
});

it("output comes in order, that of children too", async () => {
  const { all, stderr } = await cell(
    "const { execSync } = require('child_process')\n" +
      "for (let i = 0; i < 20; i++) { console.log('p', i); execSync(`echo c ${i}; echo d ${i} >&2`, { stdio: 'inherit' });\n" +
      "process.stdout.write(`w ${i}\\n`); console.error('e', i) }",
  );
  let expected = "";
  for (let i = 0; i < 20; i++) expected += `p ${i}\nc ${i}\nd ${i}\nw ${i}\ne ${i}\n`;
  // The two streams of one child have no order among each other.
  assert.equal(all, expected);
  assert.equal(stderr.split("\n").length, 41);
});

it("output comes while the cell runs", async () => {
  const gate = path.join(driver.directory, "gate");
  const onOutput = (came) => came.stdout === "first\n" && fs.writeFileSync(gate, "");
  const { stdout } = await cell("console.log('first'); while (!require('fs').existsSync('gate')); console.log('second')", { onOutput });
  assert.equal(stdout, "first\nsecond\n");
});

it("a forged frame is output", async () => {
  const forged = `done ${"0".repeat(31)}1 0\n`;
  const { stdout, text } = await cell(`process.stdout.write(${JSON.stringify(forged)}); require('fs').writeSync(1, ${JSON.stringify(forged)}); 5`);
  assert.deepEqual([stdout, text], [forged + forged, "5"]);
});

it("a flood is cut", async () => {
  const room = 100_000;
  let came = await cell("console.log('x'.repeat(50_000_000))", { room });
  assert.deepEqual([came.stdout.length, came.truncated], [room, 50_000_001 - room]);
  came = await cell("require('child_process').execSync('yes | head -c 20000000', { stdio: 'inherit' })", { room });
  assert.deepEqual([came.stdout.length, came.truncated], [room, 20_000_000 - room]);
  assert.equal((await cell("console.log('again')")).stdout, "again\n");
});

it("streams that a cell breaks are mended", async () => {
  for (const code of [
    "console.log = console.error = null",
    "globalThis.console = undefined",
    "process.stdout.write = () => { throw 1 }",
    "process.stdout.end(); process.stderr.destroy()",
    "process.removeAllListeners()",
    "require('fs').closeSync(0)",
    "require('fs').closeSync(1)",
    "require('fs').closeSync(2)",
    "require('fs').openSync('/dev/null', 'r+')",
  ]) {
    await cell(code);
    const { stdout, stderr, text } = await cell("console.log('a'); console.error('b'); 1");
    assert.deepEqual([stdout, stderr, text], ["a\n", "b\n", "1"], code);
  }
});

it("an interrupt ends the cell and nothing else", async () => {
  for (const code of [
    "var y = 1; console.log('on'); for (;;);",
    "var y = 1; console.log('on'); await new Promise(() => {})",
    "var y = 1; for (;;) console.log('on')",
    "var y = 1; for (;;) display('on')",
    "var y = 1; ({ [require('util').inspect.custom]() { console.log('on'); for (;;); } })",
    "var y = 1; console.log('on'); require('child_process').spawnSync('sleep', ['1000']); for (;;);",
  ]) {
    let again;
    // As the host does: what a cell is about to start when the first comes does not hear of it.
    const onOutput = () => {
      if (again) return;
      driver.interrupt();
      again = setInterval(() => driver.interrupt(), 500);
    };
    const running = cell(code, { onOutput, room: 2 ** 40 });
    const { errors } = await running.finally(() => clearInterval(again));
    assert.equal(errors[0].name, "KeyboardInterrupt", `${code}: ${errors[0].stack}`);
    driver.interrupt();
    await driver.sync();
    assert.equal((await cell("y")).text, "1", code);
  }
});

it("variables of a cell are restored", async () => {
  const { text } = await cell("[process.env.KEPT, process.env.NEW]", { env: { KEPT: "now", NEW: "a=b" } });
  assert.equal(text, "[ 'now', 'a=b' ]");
  assert.equal((await cell("[process.env.KEPT, process.env.NEW]")).text, "[ 'before', undefined ]");
});

it("values are shown in every form that they have", async () => {
  const { results } = await cell(
    "display({ 'text/html': '<b>v</b>', 'application/json': { v: [1, null] }, 'image/png': Buffer.from('png') })\n" +
      "display(1, 'two');\n({ _toHtml() { return '<i>' }, [Symbol.for('Jupyter.display')]() { return { 'text/plain': 'V' } } })",
  );
  assert.deepEqual(results, [
    ["display", { "text/html": "<b>v</b>", "application/json": { v: [1, null] }, "image/png": "cG5n" }],
    ["display", { "text/plain": "1" }],
    ["display", { "text/plain": "'two'" }],
    ["main", { "text/plain": "V", "text/html": "<i>" }],
  ]);
  // These are values like any other: a result of so many forms, or of such names, would end the context.
  const paths = await cell("display(Object.fromEntries(Array.from({ length: 70 }, (_, n) => ['dir/file' + n, 1])), { ['a/' + 'b'.repeat(127)]: 1 })");
  assert.deepEqual(paths.results.map(([, forms]) => Object.keys(forms)), [["text/plain"], ["text/plain"]]);
  assert.equal((await cell("display({ ['a/' + 'b'.repeat(126)]: '1' })")).results[0][1]["a/" + "b".repeat(126)], "1");
  const large = await cell("display({ 'text/html': 'x'.repeat(17 * 2 ** 20) })");
  assert.deepEqual(large.omitted, { "text/html": 17 * 2 ** 20 });
});

it("rejections and exceptions that nobody handles are told and survived", async () => {
  const { stderr } = await cell("Promise.reject(new Error('nobody')); 1");
  assert.match(stderr, /Uncaught Error: nobody/);
  const thrown = await cell("setTimeout(() => { throw new Error('later') }); await new Promise((done) => setTimeout(done, 50))");
  assert.match(thrown.stderr, /Uncaught Error: later/);
  assert.equal((await cell("2")).text, "2");
});

it("ten megabytes of code", async () => {
  assert.equal((await cell(`z = '${"é".repeat(5_000_000)}'; z.length`)).text, "5000000");
});

it("nothing of ours is inherited", async () => {
  const { stdout } = await cell("require('child_process').execSync('ls /proc/self/fd', { stdio: 'inherit' })");
  // Whoever runs this may have left descriptors open, too.
  const others = execSync("ls /proc/self/fd").toString().split("\n");
  assert.deepEqual(stdout.split("\n").filter((name) => Number(name) > 3 && !others.includes(name)), []);
  assert.equal((await cell("require('fs').readFileSync(0, 'utf8')")).text, "''");
});

it("a child that outlives a cell does not hold it", async () => {
  await cell("var child = require('child_process').spawn('sleep', ['1000'], { stdio: 'inherit' })");
  assert.equal((await cell("child.exitCode")).text, "null");
});

it("the end of a context is that of its process", async () => {
  await driver.sync();
  await assert.rejects(cell("console.log('last'); process.exit(3)"), /it ended with 3/);
  await driver.clean();
  driver = new Driver();
  await assert.rejects(cell("process.kill(process.pid, 'SIGSEGV'); for (;;);"), /it ended with ,SIGSEGV/);
  await driver.clean();
  driver = new Driver();
  await driver.sync();
  driver.process.stdin.end();
  assert.deepEqual(await driver.ended, [0, null]);
});

it("a cell for one that was killed has not begun", async () => {
  for (let turn = 0; turn < 3; turn++) {
    const { text } = await driver.run("process.pid");
    process.kill(Number(text), "SIGKILL");
    const id = driver.fresh();
    driver.give("code", id, Buffer.from("1"));
    driver.give("run", id, Buffer.from("1000 1000"));
    assert.deepEqual(await driver.ended, [null, "SIGKILL"]);
    assert.deepEqual(driver.frames.filter(([, of]) => of === id), []);
    await driver.clean();
    driver = new Driver();
  }
});

it("types of TypeScript are taken out, or it is said what that needs", async () => {
  const typed = new Driver("typescript");
  try {
    if (await typed.sync().then(() => true, () => false)) {
      const { errors, text } = await typed.run("interface P { n: number }\nconst p: P = { n: 1 }; enum E { A = 4 }\np.n + E.A");
      assert.deepEqual([errors, text], [[], "5"]);
      const awaited = await typed.run("import { join } from 'node:path'\nconst q: number = await Promise.resolve(2)");
      assert.deepEqual(awaited.errors, []);
      assert.equal((await typed.run("join('a', String(q as number))")).text, "'a/2'");
      assert.equal((await typed.run("const : number")).errors[0].name, "SyntaxError");
    } else {
      assert.match(typed.errors, /it needs Node 22\.13 .*`npm install typescript@5`/);
      assert.equal(require("node:module").stripTypeScriptTypes, undefined);
      assert.deepEqual(await typed.ended, [127, null]);
    }
  } finally {
    await typed.clean();
  }
});
