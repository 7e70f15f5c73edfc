// What the services of a sandbox do for E2B's SDK for JavaScript, as released.

import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import {
  AuthenticationError,
  CommandExitError,
  FilesystemEventType,
  InvalidArgumentError,
  NotFoundError,
  Sandbox,
  TimeoutError,
} from 'e2b'

async function eventually(condition, what) {
  for (let tries = 0; tries < 300; tries++) {
    if (await condition()) return
    await new Promise((resolve) => setTimeout(resolve, 100))
  }
  assert.fail(`never: ${what}`)
}

const cases = {
  async commandsRun(sbx) {
    const result = await sbx.commands.run('echo out; echo err >&2')
    assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['out\n', 'err\n', 0])
    const failed = await sbx.commands.run('echo x; exit 3').catch((error) => error)
    assert(failed instanceof CommandExitError, failed)
    assert.deepEqual([failed.exitCode, failed.stdout], [3, 'x\n'])
    assert.equal((await sbx.commands.run('echo $A$OF_ALL; pwd', { envs: { A: 'b' }, cwd: '/tmp' })).stdout, 'beverywhere\n/tmp\n')
    assert.equal((await sbx.commands.run('echo $USER', { user: 'root' })).stdout, 'root\n')
    await assert.rejects(sbx.commands.run('true', { cwd: '/nowhere' }), InvalidArgumentError)
    await assert.rejects(sbx.commands.run('true', { user: 'nobody-here' }), AuthenticationError)
    await assert.rejects(sbx.commands.run('sleep 1001', { timeoutMs: 500 }), TimeoutError)
  },

  async commandsInTheBackground(sbx) {
    const handle = await sbx.commands.run('cat; echo end', { background: true, stdin: true })
    await sbx.commands.sendStdin(handle.pid, 'hé\n')
    if (sbx.commands.closeStdin) {
      await sbx.commands.closeStdin(handle.pid)
      assert.equal((await handle.wait()).stdout, 'hé\nend\n')
    } else {
      await handle.kill()
    }
    const sleeper = await sbx.commands.run('sleep 1000', { background: true })
    await sleeper.disconnect()
    const again = await sbx.commands.connect(sleeper.pid)
    assert.equal(await again.kill(), true)
    const killed = await again.wait().catch((error) => error)
    assert(killed instanceof CommandExitError, killed)
    assert.equal(killed.exitCode, -1)
    assert.equal(await sbx.commands.kill(sleeper.pid), false)
    await assert.rejects(sbx.commands.connect(999999), NotFoundError)
  },

  async terminalsWork(sbx) {
    let output = ''
    const decoder = new TextDecoder()
    const handle = await sbx.pty.create({ cols: 90, rows: 20, onData: (data) => (output += decoder.decode(data)) })
    await sbx.pty.resize(handle.pid, { cols: 100, rows: 30 })
    await sbx.pty.sendInput(handle.pid, new TextEncoder().encode('stty size; exit\n'))
    await handle.wait()
    assert.match(output, /30 100/)
  },

  async filesAreWrittenAndRead(sbx) {
    const info = await sbx.files.write('/home/user/a.txt', 'hello')
    assert.deepEqual([info.name, info.type, info.path], ['a.txt', 'file', '/home/user/a.txt'])
    assert.equal(await sbx.files.read('a.txt'), 'hello')
    const data = randomBytes(3_000_000)
    await sbx.files.write('new/deep/é 中 "q".bin', new Blob([data]))
    const read = await sbx.files.read('new/deep/é 中 "q".bin', { format: 'bytes' })
    assert.equal(createHash('sha256').update(read).digest('hex'), createHash('sha256').update(data).digest('hex'))
    const names = Array.from({ length: 50 }, (_, index) => `many/${index} é.txt`)
    const written = await sbx.files.write(names.map((path) => ({ path, data: path })))
    assert.deepEqual(written.map(({ path }) => path), names.map((name) => `/home/user/${name}`))
    assert.equal(await sbx.files.read(names[33]), names[33])
    await assert.rejects(sbx.files.read('/gone'), NotFoundError)
    await assert.rejects(sbx.files.read('/home/user'), InvalidArgumentError)
  },

  async filesAreListedMovedAndRemoved(sbx) {
    assert.equal(await sbx.files.makeDir('tree/one'), true)
    assert.equal(await sbx.files.makeDir('tree/one'), false)
    await sbx.files.write('tree/one/b.txt', '12345')
    const [entry] = await sbx.files.list('tree/one')
    assert.deepEqual([entry.name, entry.type, entry.size, entry.permissions], ['b.txt', 'file', 5, '-rw-r--r--'])
    assert.equal((await sbx.files.rename('tree/one/b.txt', 'tree/c.txt')).path, '/home/user/tree/c.txt')
    assert.equal(await sbx.files.exists('tree/one/b.txt'), false)
    await sbx.files.remove('tree')
    assert.equal(await sbx.files.exists('tree'), false)
    await assert.rejects(sbx.files.list('tree'), NotFoundError)
  },

  async directoriesAreWatched(sbx) {
    await sbx.files.makeDir('watched')
    const seen = []
    const handle = await sbx.files.watchDir('watched', (event) => seen.push(event))
    await sbx.files.write('watched/new.txt', 'x')
    await eventually(() => seen.length >= 3, 'three events')
    assert.deepEqual(
      seen.map(({ name, type }) => [name, type]),
      [FilesystemEventType.CREATE, FilesystemEventType.CHMOD, FilesystemEventType.WRITE].map((type) => ['new.txt', type])
    )
    await handle.stop()
    await assert.rejects(sbx.files.watchDir('nowhere', () => {}), NotFoundError)
  },
}

const wanted = process.argv.slice(2)
const sbx = await Sandbox.create({ envs: { OF_ALL: 'everywhere' }, timeoutMs: 900_000 })
let failed = 0
try {
  for (const [name, work] of Object.entries(cases)) {
    if (wanted.length && !wanted.includes(name)) continue
    try {
      await work(sbx)
      console.log(`${name}: ok`)
    } catch (error) {
      failed += 1
      console.log(`${name}: ${error.stack}`)
    }
  }
} finally {
  await sbx.kill()
}
assert.equal(await sbx.isRunning(), false)
process.exit(failed ? 1 : 0)
