// The cases of the JavaScript SDK, which is resolved beside this file; says which failed.

import { deepStrictEqual as equal, ok, rejects } from 'node:assert'
import {
  AuthenticationError, CommandExitError, FilesystemEventType, FileType, NotFoundError, Sandbox, SandboxError, TimeoutError,
} from 'e2b'

// What a case may take at most; a healthy one takes a hundredth of it.
const PATIENCE = 120_000
const pause = (ms) => new Promise((done) => setTimeout(done, ms))

async function all(paginator) {
  const found = []
  while (paginator.hasNext) found.push(...(await paginator.nextItems()))
  return found.map((sandbox) => sandbox.sandboxId)
}

const cases = {
  async livesAndDies() {
    const sandbox = await Sandbox.create({ metadata: { js: 'a=b&c' }, envs: { A: 'b' }, timeoutMs: 600_000 })
    ok(await sandbox.isRunning())
    const info = await sandbox.getInfo()
    equal([info.sandboxId, info.state, info.metadata], [sandbox.sandboxId, 'running', { js: 'a=b&c' }])
    equal(await all(Sandbox.list({ query: { metadata: { js: 'a=b&c' } } })), [sandbox.sandboxId])
    equal((await sandbox.commands.run('echo $A')).stdout, 'b\n')
    await sandbox.setTimeout(60_000)
    ok((await sandbox.getInfo()).endAt < info.endAt)
    equal(await sandbox.kill(), true)
    equal(await sandbox.isRunning(), false)
    equal(await Sandbox.kill(sandbox.sandboxId), false)
    await rejects(sandbox.commands.run('true'))
    await rejects(Sandbox.getInfo(sandbox.sandboxId), NotFoundError)
    await rejects(Sandbox.connect(sandbox.sandboxId), NotFoundError)
  },

  async refusesWrongKeysAndTemplates() {
    await rejects(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(40) }), AuthenticationError)
    await rejects(Sandbox.create('no-such-template'), SandboxError)
    await rejects(Sandbox.create({ network: { denyOut: ['not an address'] } }), SandboxError)
  },

  async listsInPages() {
    const made = []
    for (let number = 0; number < 3; number++) made.push(await Sandbox.create({ metadata: { pages: 'js' } }))
    const paginator = Sandbox.list({ limit: 2, query: { metadata: { pages: 'js' } } })
    equal((await paginator.nextItems()).length, 2)
    equal((await paginator.nextItems()).length, 1)
    equal(paginator.hasNext, false)
    for (const sandbox of made) await sandbox.kill()
  },

  async pausesAndGoesOn(sandbox) {
    await sandbox.files.write('note', 'kept')
    const sleep = await sandbox.commands.run('sleep 3600', { background: true })
    await sandbox.pause()
    equal((await sandbox.getInfo()).state, 'paused')
    const again = await Sandbox.connect(sandbox.sandboxId)
    equal(await again.files.read('note'), 'kept')
    ok((await again.commands.list()).some((process) => process.pid === sleep.pid))
  },

  async commandsAnswer(sandbox) {
    const { stdout, stderr, exitCode } = await sandbox.commands.run('echo out; echo err >&2')
    equal([stdout, stderr, exitCode], ['out\n', 'err\n', 0])
    await rejects(sandbox.commands.run('exit 9'), (error) => error instanceof CommandExitError && error.exitCode === 9)
    equal((await sandbox.commands.run('pwd', { cwd: '/tmp' })).stdout, '/tmp\n')
    equal((await sandbox.commands.run('echo $HOME', { user: 'root' })).stdout, '/root\n')
    equal((await sandbox.commands.run('head -c 3000000 /dev/zero | tr "\\0" x')).stdout.length, 3_000_000)
    await rejects(sandbox.commands.run('sleep 3600', { timeoutMs: 1000 }), TimeoutError)
    await rejects(sandbox.commands.run('true', { user: 'nobody-there' }), AuthenticationError)
    const many = [...Array(24).keys()].map((number) => sandbox.commands.run(`echo ${number}`))
    equal((await Promise.all(many)).map((answer) => answer.stdout), [...Array(24).keys()].map((number) => `${number}\n`))
  },

  async commandsRead(sandbox) {
    const handle = await sandbox.commands.run('cat', { background: true, stdin: true })
    await sandbox.commands.sendStdin(handle.pid, 'hello')
    await sandbox.commands.closeStdin(handle.pid)
    equal((await handle.wait()).stdout, 'hello')
  },

  async commandsGoOn(sandbox) {
    const handle = await sandbox.commands.run('echo a; until test -e go; do sleep 0.05; done; echo b', { background: true })
    await handle.disconnect()
    const again = await sandbox.commands.connect(handle.pid)
    await sandbox.files.write('go', '')
    ok((await again.wait()).stdout.endsWith('b\n'))
    const sleep = await sandbox.commands.run('sleep 3600', { background: true })
    equal(await sleep.kill(), true)
    await rejects(sleep.wait(), CommandExitError)
    equal(await sandbox.commands.kill(sleep.pid), false)
  },

  async filesAreKept(sandbox) {
    const bytes = new Uint8Array(1 << 20).map((_, index) => index % 251)
    equal((await sandbox.files.write('a.bin', bytes.buffer)).path, '/home/user/a.bin')
    equal(await sandbox.files.read('a.bin', { format: 'bytes' }), bytes)
    equal((await (await sandbox.files.read('a.bin', { format: 'blob' })).arrayBuffer()).byteLength, bytes.length)
    const written = await sandbox.files.write([{ path: 'one', data: '1' }, { path: '/tmp/x/two', data: '2' }])
    equal(written.map(({ name, type, path }) => [name, type, path]), [
      ['one', 'file', '/home/user/one'], ['two', 'file', '/tmp/x/two'],
    ])
    equal(await sandbox.files.makeDir('d'), true)
    equal(await sandbox.files.makeDir('d'), false)
    await sandbox.files.rename('one', 'd/one')
    equal((await sandbox.files.list('d')).map((entry) => [entry.name, entry.type]), [['one', FileType.FILE]])
    equal((await sandbox.files.getInfo('d/one')).size, 1)
    await sandbox.files.remove('d')
    equal(await sandbox.files.exists('d'), false)
    await rejects(sandbox.files.read('d/one'), NotFoundError)
    await rejects(sandbox.files.list('d'), NotFoundError)
  },

  async urlsAreSigned(sandbox) {
    await sandbox.files.write('signed', 'by url')
    const url = await sandbox.downloadUrl('signed', { useSignatureExpiration: 600 })
    equal(await (await fetch(url)).text(), 'by url')
    equal((await fetch(url.replace('signed', 'other'))).status, 401)
    const form = new FormData()
    form.append('file', new Blob(['up']), 'up')
    equal((await fetch(await sandbox.uploadUrl('up'), { method: 'POST', body: form })).status, 200)
    equal(await sandbox.files.read('up'), 'up')
  },

  async directoriesAreWatched(sandbox) {
    await sandbox.files.makeDir('w')
    const seen = []
    const watch = await sandbox.files.watchDir('w', (event) => seen.push([event.name, event.type]))
    await sandbox.files.write('w/a', 'x')
    while (seen.length < 3) await pause(20)
    const { CREATE, CHMOD, WRITE } = FilesystemEventType
    equal(seen.slice(0, 3), [['a', CREATE], ['a', CHMOD], ['a', WRITE]])
    await watch.stop()
  },

  async terminalsAnswer(sandbox) {
    let seen = ''
    const terminal = await sandbox.pty.create({ rows: 24, cols: 80, onData: (data) => (seen += Buffer.from(data)) })
    await sandbox.pty.resize(terminal.pid, { rows: 40, cols: 110 })
    await sandbox.pty.sendInput(terminal.pid, new TextEncoder().encode('stty size; exit\n'))
    await terminal.wait()
    ok(seen.includes('40 110'), seen)
  },

  async isMeasured(sandbox) {
    let metrics
    while ((metrics = await sandbox.getMetrics()).length === 0) await pause(200)
    ok(metrics[0].memTotal > 0 && metrics[0].cpuCount >= 1, JSON.stringify(metrics))
  },
}

async function run(function_) {
  if (function_.length === 0) return await function_()
  const sandbox = await Sandbox.create()
  try {
    await function_(sandbox)
  } finally {
    await sandbox.kill()
  }
}

let failed = 0
for (const [name, function_] of Object.entries(cases)) {
  let timer
  const tooLong = new Promise((_, fail) => (timer = setTimeout(() => fail(new Error('it hangs')), PATIENCE)))
  try {
    await Promise.race([run(function_), tooLong])
    console.log(`ok ${name}`)
  } catch (error) {
    failed += 1
    console.log(`FAILED ${name}\n${error.stack}`)
  } finally {
    clearTimeout(timer)
  }
}
console.log(`${Object.keys(cases).length} cases, ${failed} failed`)
process.exit(failed === 0 ? 0 : 1)
