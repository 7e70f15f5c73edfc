// The library against a server that it starts itself; says which cases failed.
//
// Arguments: the library's `index.js`, then documents whose examples are run, too.

import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
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

cases.push([
  'types name what is there',
  async () => {
    const types = readFileSync(join(dirname(library), 'index.d.ts'), 'utf8')
    for (const name of Object.keys(offleash).filter((name) => name !== 'default')) {
      assert.match(types, new RegExp(`export (class|function|const) ${name}\\b`), name)
    }
    const methods = Object.getOwnPropertyNames(Sandbox.prototype).filter((name) => name !== 'constructor')
    for (const name of methods) assert.match(types, new RegExp(`\\b${name}\\b`), name)
  },
])

for (const document of documents) {
  const blocks = readFileSync(document, 'utf8').matchAll(/^```js\n(.*?)^```/gms)
  let number = 0
  for (const [, code] of blocks) {
    const file = join(dirname(fileURLToPath(import.meta.url)), `example_${++number}.mjs`)
    writeFileSync(file, code.replaceAll(/from 'offleash'/g, `from ${JSON.stringify(pathToFileURL(library))}`))
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
