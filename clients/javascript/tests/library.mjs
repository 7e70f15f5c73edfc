// The library against a server that it starts itself; says which cases failed.
//
// Arguments: the library's `index.js`, then documents whose examples are run, too.

import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import {
  chmodSync,
  chownSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import http from 'node:http'
import net from 'node:net'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'

const [library, ...documents] = process.argv.slice(2)
const offleash = await import(pathToFileURL(library))
const { Sandbox, approvals, run, tool, volumes } = offleash

const cases = []
const equal = assert.deepEqual

// Cases that want a sandbox share one.
let shared
function inSandbox(name, body) {
  cases.push([
    name,
    async () => {
      shared ??= await Sandbox.create({ timeoutMs: 600_000 })
      await body(shared)
    },
  ])
}

async function raises(kind, promise) {
  try {
    await promise
  } catch (error) {
    assert(error instanceof kind, `${error.stack} is no ${kind.name}`)
    return error
  }
  assert.fail(`${kind.name} was not thrown`)
}

async function eventually(condition) {
  const deadline = Date.now() + 30_000
  for (;;) {
    const answer = await condition()
    if (answer) return answer
    assert(Date.now() < deadline, 'never')
    await new Promise((resolve) => setTimeout(resolve, 20))
  }
}

cases.push([
  'programs of a user share one server',
  async () => {
    const code = `import { run } from ${JSON.stringify(pathToFileURL(library))}; console.log((await run('echo hi')).stdout)`
    const started = () =>
      new Promise((resolve) => {
        execFile(process.execPath, ['--input-type=module', '-e', code], (_, stdout, stderr) => resolve(stdout + stderr))
      })
    equal(await Promise.all([started(), started()]), ['hi\n\n', 'hi\n\n'])
  },
])

cases.push([
  "a server is started in a directory of one's own alone",
  async () => {
    const { ensure } = await import(new URL('daemon.js', pathToFileURL(library)))
    const before = process.env.XDG_STATE_HOME
    const here = mkdtempSync(join(tmpdir(), 'library-'))
    const state = join(here, 'offleash-library')
    mkdirSync(state, { mode: 0o700 })
    writeFileSync(join(here, 'precious'), 'mine')
    symlinkSync(join(here, 'precious'), join(state, 'serve.log'))
    process.env.XDG_STATE_HOME = here
    try {
      await raises(offleash.DaemonError, ensure())
      chmodSync(state, 0o770)
      assert.match((await raises(offleash.DaemonError, ensure())).message, /can be written to/)
      if (process.geteuid() === 0) {
        chmodSync(state, 0o700)
        chownSync(state, 4242, 4242)
        assert.match((await raises(offleash.DaemonError, ensure())).message, /belongs to user 4242/)
        chownSync(here, 4242, 4242)
        process.env.XDG_STATE_HOME = join(here, 'new')
        await raises(offleash.DaemonError, ensure())
      }
      equal([readdirSync(here), readFileSync(join(here, 'precious'), 'utf8')], [['offleash-library', 'precious'], 'mine'])
    } finally {
      process.env.XDG_STATE_HOME = before
      rmSync(here, { recursive: true })
    }
  },
])

inSandbox('commands are those of E2B', async (sandbox) => {
  const heard = []
  const onStdout = (text) => heard.push(text)
  const result = await sandbox.commands.run('echo out; echo err >&2; pwd', { cwd: '/tmp', onStdout })
  equal([result.stdout, result.stderr, result.exitCode, heard.join('')], ['out\n/tmp\n', 'err\n', 0, 'out\n/tmp\n'])
  const failed = await raises(offleash.CommandExitError, sandbox.commands.run('echo before; exit 3'))
  equal([failed.exitCode, failed.stdout, failed.error], [3, 'before\n', 'exit status 3'])
  await raises(offleash.TimeoutError, sandbox.commands.run('sleep 9', { timeoutMs: 200 }))
  equal((await sandbox.commands.run("printf 'é%.0s' $(seq 40000)")).stdout, 'é'.repeat(40000))
  const handle = await sandbox.commands.run('read line; echo got $line', { background: true, stdin: true })
  await handle.sendStdin('word\n')
  equal((await handle.wait()).stdout, 'got word\n')
  const left = await sandbox.commands.run('sleep 99', { background: true, timeoutMs: 0 })
  await left.disconnect()
  await raises(offleash.SandboxError, left.wait())
  const again = await sandbox.commands.connect(left.pid)
  assert((await sandbox.commands.list()).some(({ pid }) => pid === left.pid))
  assert(await sandbox.commands.kill(left.pid))
  equal((await raises(offleash.CommandExitError, again.wait())).error, 'signal: killed')
  equal(await sandbox.commands.kill(left.pid), false)
})

inSandbox('one request runs a command', async (sandbox) => {
  const result = await sandbox.run(['sh', '-c', 'cat; exit 3'], { stdin: 'in' })
  equal([result.stdout, result.exitCode, result.ok], ['in', 3, false])
  equal((await sandbox.run('sleep 9', { timeoutMs: 200 })).timedOut, true)
})

inSandbox('terminals are there', async (sandbox) => {
  const shown = []
  const terminal = await sandbox.pty.create({ cols: 80, rows: 24, onData: (data) => shown.push(Buffer.from(data)) })
  await sandbox.pty.resize(terminal.pid, { cols: 100, rows: 30 })
  await sandbox.pty.sendInput(terminal.pid, 'stty size; exit\n')
  await terminal.wait()
  assert(Buffer.concat(shown).includes('30 100'))
})

inSandbox('files are those of E2B', async ({ files }) => {
  const written = await files.write('/home/user/dir/a.txt', 'text')
  equal([written.name, written.path, written.type], ['a.txt', '/home/user/dir/a.txt', 'file'])
  await files.write([
    { path: 'dir/b', data: new Uint8Array([0, 255]) },
    { path: 'dir/c', data: new Blob(['c']) },
  ])
  equal(await files.read('dir/a.txt'), 'text')
  equal(await files.read('dir/b', { format: 'bytes' }), new Uint8Array([0, 255]))
  equal((await files.list('dir')).map(({ name }) => name).sort(), ['a.txt', 'b', 'c'])
  equal([await files.exists('dir/c'), await files.exists('none')], [true, false])
  equal((await files.getInfo('dir/a.txt')).size, 4)
  equal((await files.rename('dir/a.txt', 'dir/d.txt')).name, 'd.txt')
  equal([await files.makeDir('made'), await files.makeDir('made')], [true, false])
  await files.remove('dir')
  await raises(offleash.FileNotFoundError, files.read('dir/d.txt'))
  const events = []
  const handle = await files.watchDir('/home/user', (event) => events.push(event))
  await files.write('new', 'x')
  await eventually(() => events.some(({ name, type }) => name === 'new' && type === 'write'))
  await handle.stop()
})

inSandbox('code keeps its state', async (sandbox) => {
  await sandbox.runCode('x = 41')
  const heard = []
  const execution = await sandbox.runCode("print('hi')\nx + 1", { onStdout: ({ line }) => heard.push(line) })
  equal([execution.text, heard, execution.outcome], ['42', ['hi\n'], 'done'])
  equal((await sandbox.runCode('1 / 0')).error.name, 'ZeroDivisionError')
  await raises(offleash.TimeoutError, sandbox.runCode('while True: pass', { timeoutMs: 300 }))
  const context = await sandbox.createCodeContext({ cwd: '/tmp', language: 'bash' })
  equal((await sandbox.runCode('pwd', { context })).logs.stdout, ['/tmp\n'])
  assert((await sandbox.listCodeContexts()).some(({ id }) => id === context.id))
  await sandbox.removeCodeContext(context)
  await raises(offleash.NotFoundError, sandbox.runCode('true', { context }))
})

inSandbox('checkpoints and forks are there', async (sandbox) => {
  await sandbox.files.write('state', 'one')
  const checkpoint = await sandbox.checkpoints.create('before')
  await sandbox.files.write('state', 'two')
  const [fork] = await sandbox.fork()
  equal(await fork.files.read('state'), 'two')
  await fork.kill()
  await sandbox.restore(checkpoint)
  equal(await sandbox.files.read('state'), 'one')
  equal((await sandbox.checkpoints.list()).map(({ name }) => name), ['before'])
  const snapshot = await sandbox.createSnapshot({ name: 'ready' })
  const copy = await Sandbox.create(snapshot.snapshotId)
  equal(await copy.files.read('state'), 'one')
  await copy.kill()
  const again = await Sandbox.importSnapshot(await Sandbox.exportSnapshot('ready'), { name: 'again' })
  equal([again.name, again.sandboxId], ['again', undefined])
  await raises(offleash.InvalidArgumentError, Sandbox.importSnapshot('no archive'))
  equal(await Sandbox.deleteSnapshot('again'), true)
  equal([await Sandbox.deleteSnapshot('ready'), await Sandbox.deleteSnapshot('ready')], [true, false])
})

cases.push([
  'lives are those of E2B',
  async () => {
    const options = { name: 'called', metadata: { a: 'b&c' }, cpus: 1, memoryMib: 256, level: 'process', timeoutMs: 100_000 }
    const network = { allowOut: ['example.com'], denyOut: ({ allTraffic }) => [allTraffic] }
    const sandbox = await Sandbox.create({ ...options, network, lifecycle: { onTimeout: 'pause' } })
    const info = await sandbox.getInfo()
    equal([info.name, info.cpuCount, info.memoryMB, info.level, info.state], ['called', 1, 256, 'process', 'running'])
    equal(info.raw.policy.deny, ['0.0.0.0/0'])
    const found = await Sandbox.list({ query: { metadata: { a: 'b&c' } } }).nextItems()
    equal(found.map(({ sandboxId }) => sandboxId), [sandbox.sandboxId])
    await sandbox.setTimeout(200_000)
    equal([await sandbox.pause(), await sandbox.pause()], [true, false])
    const same = await Sandbox.connect(sandbox.sandboxId)
    equal((await same.commands.run('echo back')).stdout, 'back\n')
    assert(await same.isRunning())
    await sandbox.updateNetwork({ allowInternetAccess: false })
    equal((await Sandbox.getInfo(sandbox.sandboxId)).raw.policy.internet, false)
    equal((await sandbox.setMetadata({ a: 'changed' })).metadata.a, 'changed')
    equal((await Sandbox.getInfo(sandbox.sandboxId)).name, 'called')
    assert(Array.isArray(await sandbox.getMetrics()))
    equal([await sandbox.kill(), await Sandbox.kill(sandbox.sandboxId)], [true, false])
    equal(await sandbox.isRunning(), false)
    await raises(offleash.SandboxNotRunningError, sandbox.commands.run('true'))
    equal((await raises(offleash.NotFoundError, Sandbox.create('no-such-template'))).code, 404)
    await raises(offleash.DaemonError, Sandbox.create({ url: 'http://127.0.0.1:9' }))
  },
])

cases.push([
  'functions of the program are tools',
  async () => {
    const parameters = { type: 'object', required: ['word'], properties: { word: { type: 'string' } } }
    const lookUp = tool('look-up', { parameters, call: async ({ word }) => word.length })
    const pay = tool('pay', { grant: 'ask', call: () => 'paid' })
    const sandbox = await Sandbox.create({ tools: [lookUp, pay] })
    equal((await sandbox.commands.run('look-up hello')).stdout.trim(), '5')
    const asked = sandbox.run('pay')
    const [question] = await eventually(async () => {
      const open = await approvals.list()
      return open.length && open
    })
    equal(question.tool, 'pay')
    await approvals.deny(question)
    equal((await asked).exitCode, 126)
    await sandbox.kill()
  },
])

cases.push([
  'volumes outlive sandboxes',
  async () => {
    const volume = await volumes.create('data', { sizeMib: 16 })
    const sandbox = await Sandbox.create({ volumeMounts: { '/data': volume } })
    await sandbox.files.write('/data/kept', 'kept')
    await sandbox.kill()
    await eventually(async () => !(await volumes.get('data')).inUse)
    equal((await run('cat /data/kept', { volumeMounts: { '/data': 'data' } })).stdout, 'kept')
    await eventually(async () => !(await volumes.get('data')).inUse)
    await volumes.remove(volume)
    assert(!(await volumes.list()).some(({ name }) => name === 'data'))
  },
])

inSandbox('ports are reached', async (sandbox) => {
  await sandbox.files.write('index.html', 'served')
  await sandbox.commands.run('python3 -m http.server 8000', { background: true, timeoutMs: 0 })
  const served = async () => (await fetch(sandbox.getUrl(8000)).catch(() => null))?.text()
  await eventually(async () => (await served()) === 'served')
  assert(sandbox.getHost(8000).startsWith(`8000-${sandbox.sandboxId}.`))
  equal(await (await fetch(await sandbox.downloadUrl('/home/user/index.html'))).text(), 'served')
})

// The names of `@vercel/sandbox`.
const vercel = await import(pathToFileURL(join(dirname(library), 'vercel.js')))

cases.push([
  'commands and files are those of Vercel',
  async () => {
    const sandbox = await vercel.Sandbox.create({ env: { A: 'a' }, tags: { of: 'tests' }, ports: [8000], resources: { vcpus: 1 }, timeout: 60_000 })
    equal([sandbox.vcpus, sandbox.memory, sandbox.tags, sandbox.status], [1, 2048, { of: 'tests' }, 'running'])
    const done = await sandbox.runCommand({ cmd: 'sh', args: ['-c', 'pwd; echo $A $B; echo err >&2; exit 3'], env: { B: 'b' } })
    equal([done.exitCode, await done.stdout(), await done.stderr()], [3, '/vercel/sandbox\na b\n', 'err\n'])
    assert(done instanceof vercel.CommandFinished)
    // A server of an ordinary user has one user for all.
    const root = process.geteuid() === 0 ? 'root' : 'user'
    equal((await (await sandbox.runCommand({ cmd: 'id', args: ['-un'], sudo: true })).stdout()).trim(), root)
    equal((await sandbox.runCommand('sleep', ['99'], { timeoutMs: 100 })).exitCode, 137)
    await raises(offleash.InvalidArgumentError, sandbox.runCommand('no-such-program'))
    const detached = await sandbox.runCommand({ cmd: 'sh', args: ['-c', 'echo one; exec sleep 99'], detached: true })
    equal((await detached.logs().next()).value, { stream: 'stdout', data: 'one\n' })
    equal(detached.exitCode, null)
    const again = await sandbox.getCommand(detached.cmdId)
    await again.kill()
    equal([(await detached.wait()).exitCode, (await again.wait()).exitCode], [143, 143])
    const aborted = await sandbox.runCommand({ cmd: 'sleep', args: ['99'], signal: AbortSignal.timeout(50) }).catch((error) => error)
    equal(aborted.name, 'TimeoutError')
    await sandbox.writeFiles([{ path: 'a/run.sh', content: '#!/bin/sh\necho ran', mode: 0o755 }, { path: '/tmp/b', content: Buffer.from([255]) }])
    equal(await (await sandbox.runCommand('./a/run.sh')).stdout(), 'ran\n')
    equal([await sandbox.readFile({ path: 'none' }), [...(await sandbox.readFileToBuffer({ path: '/tmp/b' }))]], [null, [255]])
    // What is there is replaced, and a link is not followed.
    const here = mkdtempSync(join(tmpdir(), 'library-'))
    symlinkSync('/etc/passwd', join(here, 'b'))
    equal(await sandbox.downloadFile({ path: '/tmp/b' }, { path: 'b', cwd: here }), join(here, 'b'))
    equal([readdirSync(here), lstatSync(join(here, 'b')).mode & 0o777, [...readFileSync(join(here, 'b'))]], [['b'], 0o600, [255]])
    rmSync(here, { recursive: true })
    const read = await sandbox.readFile({ path: 'run.sh', cwd: 'a' })
    equal(Buffer.concat(await read.toArray()).toString(), '#!/bin/sh\necho ran')
    equal([await sandbox.fs.readdir('a'), (await sandbox.fs.stat('a')).isDirectory()], [['run.sh'], true])
    equal((await sandbox.fs.readFile('none').catch((error) => error)).code, 'ENOENT')
    await sandbox.fs.appendFile('log', 'x')
    await sandbox.fs.rename('log', 'other')
    equal(await sandbox.fs.readFile('other', 'utf8'), 'x')
    await sandbox.fs.rm('a', { recursive: true })
    assert(!(await sandbox.fs.exists('a')))
    assert.match(sandbox.domain(8000), /\/_port\/.*\/8000$/)
    assert.throws(() => sandbox.domain(9000), offleash.InvalidArgumentError)
    await sandbox.delete()
  },
])

cases.push([
  'sandboxes of Vercel are stopped and go on',
  async () => {
    const sandbox = await vercel.Sandbox.getOrCreate({ name: 'kept', onCreate: (made) => made.writeFiles([{ path: 'a', content: 'kept' }]) })
    equal((await sandbox.stop()).status, 'stopped')
    equal(await (await sandbox.runCommand('cat', ['a'])).stdout(), 'kept')
    const same = await vercel.Sandbox.getOrCreate({ name: 'kept', onCreate: () => assert.fail('it is there') })
    equal([same.sandboxId, (await vercel.Sandbox.list({ namePrefix: 'ke' })).sandboxes.map(({ name }) => name)], [sandbox.sandboxId, ['kept']])
    const before = sandbox.expiresAt
    await sandbox.extendTimeout(60_000)
    assert(sandbox.expiresAt > before)
    await sandbox.updateNetworkPolicy({ allow: ['example.com'] })
    equal((await Sandbox.getInfo(sandbox.sandboxId)).raw.policy.allow, ['example.com'])
    await sandbox.update({ tags: { a: 'b' } })
    equal([sandbox.tags, sandbox.persistent], [{ a: 'b' }, true])
    await raises(offleash.UnsupportedError, sandbox.update({ resources: { vcpus: 1 } }))
    const snapshot = await sandbox.snapshot()
    equal(sandbox.status, 'stopped')
    const copy = await vercel.Sandbox.create({ source: { type: 'snapshot', snapshotId: snapshot.snapshotId }, persistent: false })
    equal((await copy.readFileToBuffer({ path: 'a' })).toString(), 'kept')
    await copy.stop()
    await raises(offleash.NotFoundError, vercel.Sandbox.get({ name: copy.name }))
    await snapshot.delete()
    await raises(offleash.NotFoundError, vercel.Snapshot.get({ snapshotId: snapshot.snapshotId }))
    await sandbox.delete()
  },
])

cases.push([
  'what Vercel has and we have not is an error',
  async () => {
    for (const options of [
      { region: 'iad1' },
      { mounts: {} },
      { image: 'vercel/sandbox/universal' },
      { networkPolicy: { allow: { 'a.example': [{ transform: [] }] } } },
      { networkPolicy: { allow: ['a.example'], subnets: { deny: ['10.0.0.0/8'] } } },
    ]) {
      await raises(offleash.UnsupportedError, vercel.Sandbox.create(options))
    }
    for (const options of [{ nothing: 1 }, { runtime: 'perl' }, { ports: [0] }, { tags: { 'offleash.level': 'process' } }, { resources: { vcpus: 0.5 } }]) {
      await raises(offleash.InvalidArgumentError, vercel.Sandbox.create(options))
    }
    await raises(offleash.NotFoundError, vercel.Sandbox.create({ runtime: 'node22' }))
    const closed = await vercel.Sandbox.create({ networkPolicy: 'deny-all', persistent: false })
    equal((await Sandbox.getInfo(closed.sandboxId)).raw.policy.internet, false)
    assert.throws(() => closed.asUser('root'), offleash.UnsupportedError)
    await raises(offleash.UnsupportedError, closed.snapshot({ expiration: 1000 }))
    await closed.stop()
    await raises(offleash.SandboxNotRunningError, closed.runCommand('true'))
  },
])

async function listening(server) {
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  return `http://127.0.0.1:${server.address().port}`
}

// Runs with other variables.
async function withVariables(variables, body) {
  const before = Object.keys(variables).map((name) => [name, process.env[name]])
  Object.assign(process.env, variables)
  try {
    return await body()
  } finally {
    for (const [name, value] of before) {
      if (value === undefined) delete process.env[name]
      else process.env[name] = value
    }
  }
}

cases.push([
  'a server that never answers is not waited for long',
  async () => {
    const sockets = []
    const silent = net.createServer((socket) => sockets.push(socket))
    const there = { url: await listening(silent), apiKey: 'e2b_0', requestTimeoutMs: 100 }
    await raises(offleash.TimeoutError, Sandbox.create(there))
    await raises(offleash.TimeoutError, Array.fromAsync?.(Sandbox.list(there)) ?? Sandbox.list(there).nextItems())
    await raises(offleash.TimeoutError, Sandbox.kill('sandbox', there))
    for (const socket of sockets) socket.destroy()
    silent.close()
  },
])

cases.push([
  'the server and the key of the command line are used',
  async () => {
    let shown
    const server = http.createServer((request, response) => {
      shown = request.headers['x-api-key']
      response.end('{"sandboxes": [], "next": null}')
    })
    const host = await listening(server)
    const config = mkdtempSync(join(tmpdir(), 'offleash-'))
    const keys = join(config, 'offleash', 'keys.json')
    mkdirSync(dirname(keys))
    const listed = async () => {
      equal(await Sandbox.list().nextItems(), [])
      return shown
    }
    await withVariables({ OFFLEASH_HOST: `${host}/`, XDG_CONFIG_HOME: config }, async () => {
      await raises(offleash.AuthenticationError, listed())
      writeFileSync(keys, JSON.stringify({ [host]: 'e2b_kept' }), { mode: 0o600 })
      equal(await listed(), 'e2b_kept')
      await withVariables({ OFFLEASH_API_KEY: 'e2b_said' }, async () => equal(await listed(), 'e2b_said'))
      chmodSync(keys, 0o640)
      await raises(offleash.PermissionDeniedError, listed())
      // The other variable goes before it.
      await withVariables({ OFFLEASH_URL: 'nothing' }, () => raises(offleash.InvalidArgumentError, listed()))
      for (const refused of ['box:3000', 'http://box.example.com', `${host}/path`, 'https://secret@box.example.com']) {
        const error = await withVariables({ OFFLEASH_HOST: refused }, () => raises(offleash.InvalidArgumentError, listed()))
        assert(!error.message.includes('secret'), error.message)
      }
    })
    rmSync(config, { recursive: true })
    server.closeAllConnections()
    server.close()
  },
])

cases.push([
  'a server without a place for its state is told of',
  async () => {
    const error = await withVariables({ XDG_STATE_HOME: `${library}/below` }, () => raises(offleash.DaemonError, Sandbox.create()))
    assert(error.hint.includes('XDG_STATE_HOME') && error.message.includes(library), error.message)
  },
])

cases.push([
  'types name what is there',
  async () => {
    const types = readFileSync(join(dirname(library), 'index.d.ts'), 'utf8')
    for (const name of Object.keys(offleash).filter((name) => name !== 'default')) {
      assert.match(types, new RegExp(`export (class|function|const) ${name}\\b`), name)
    }
    const methods = Object.getOwnPropertyNames(Sandbox.prototype).filter((name) => name !== 'constructor')
    for (const name of methods) assert.match(types, new RegExp(`\\b${name}\\b`), name)
    const others = readFileSync(join(dirname(library), 'vercel.d.ts'), 'utf8')
    for (const name of Object.keys(vercel)) {
      // Methods that are not there throw, and are in no type.
      assert.match(others, new RegExp(`\\b${name}\\b`), name)
    }
  },
])

for (const document of documents) {
  const blocks = readFileSync(document, 'utf8').matchAll(/^```js\n(.*?)^```/gms)
  let number = 0
  for (const [, code] of blocks) {
    const file = join(dirname(fileURLToPath(import.meta.url)), `example_${++number}.mjs`)
    writeFileSync(file, code.replaceAll(/from 'offleash(\/vercel)?'/g, (_, other) => `from ${JSON.stringify(pathToFileURL(other ? join(dirname(library), 'vercel.js') : library))}`))
    cases.push([`example ${number}`, () => import(pathToFileURL(file))])
  }
}

let failed = 0
for (const [name, body] of cases) {
  const began = performance.now()
  try {
    await body()
    console.log(`ok ${name} ${((performance.now() - began) / 1000).toFixed(2)} s`)
  } catch (error) {
    failed += 1
    console.log(`FAILED ${name}\n${error.stack}`)
  }
}
for await (const { sandboxId } of Sandbox.list()) await Sandbox.kill(sandboxId)
for (const volume of await volumes.list()) {
  await eventually(async () => !(await volumes.get(volume)).inUse)
  await volumes.remove(volume)
}
console.log(`${cases.length} cases, ${failed} failed`)
process.exitCode = failed ? 1 : 0
