// Sandboxes come, are looked at, are listed, wait and go.

import { deepStrictEqual as equal, ok } from 'node:assert'
import { AuthenticationError, NotFoundError, Sandbox, SandboxError } from 'e2b'
import { eventually, failure } from './cases.mjs'

async function all(paginator) {
  const found = []
  while (paginator.hasNext) found.push(...(await paginator.nextItems()))
  return found.map((sandbox) => sandbox.sandboxId)
}

export const cases = {
  async livesAndDies() {
    const before = Date.now()
    const sandbox = await Sandbox.create({ metadata: { js: 'a=b&c ü' }, envs: { A: 'b' }, timeoutMs: 600_000 })
    ok(await sandbox.isRunning())
    const info = await sandbox.getInfo()
    equal([info.sandboxId, info.state, info.metadata], [sandbox.sandboxId, 'running', { js: 'a=b&c ü' }])
    ok(info.cpuCount >= 1 && info.memoryMB >= 64 && Math.abs(info.startedAt - before) < 120_000, JSON.stringify(info))
    equal((await sandbox.commands.run('echo $A')).stdout, 'b\n')
    equal((await sandbox.commands.run('echo $A', { envs: { A: 'c' } })).stdout, 'c\n')
    await sandbox.setTimeout(60_000)
    ok((await sandbox.getInfo()).endAt < info.endAt)
    equal(await sandbox.kill(), true)
    equal(await sandbox.isRunning(), false)
    equal(await Sandbox.kill(sandbox.sandboxId), false)
    await failure(sandbox.commands.run('true'), SandboxError)
    await failure(sandbox.setTimeout(60_000), NotFoundError)
    await failure(Sandbox.getInfo(sandbox.sandboxId), NotFoundError)
    await failure(Sandbox.connect(sandbox.sandboxId), NotFoundError)
  },

  async isMadeOfASnapshot() {
    const sandbox = await Sandbox.create()
    await sandbox.files.write('/home/user/one', 'first')
    const snapshot = await sandbox.createSnapshot()
    const paginator = Sandbox.listSnapshots({ sandboxId: sandbox.sandboxId })
    const listed = await paginator.nextItems()
    equal([listed.map((found) => found.snapshotId), paginator.hasNext], [[snapshot.snapshotId], false])
    equal(await sandbox.kill(), true)
    const made = await Promise.all([1, 2].map(() => Sandbox.create(snapshot.snapshotId)))
    for (const one of made) {
      equal(await one.files.read('/home/user/one'), 'first')
      equal(await one.kill(), true)
    }
    equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), true)
    equal(await Sandbox.deleteSnapshot(snapshot.snapshotId), false)
    await failure(Sandbox.create(snapshot.snapshotId), SandboxError)
  },

  async diesWhenItsTimeIsOver() {
    const sandbox = await Sandbox.create({ timeoutMs: 1000 })
    await eventually(() => 'its end', async () => !(await sandbox.isRunning()))
    equal(await sandbox.kill(), false)
  },

  async isNotMadeOfWhatIsNotThere() {
    await failure(Sandbox.create({ apiKey: 'e2b_' + '0'.repeat(40) }), AuthenticationError)
    await failure(Sandbox.create('no-such-template'), SandboxError)
    await failure(Sandbox.create({ network: { denyOut: ['not an address'] } }), SandboxError)
  },

  async isListedInPages() {
    const made = []
    for (let number = 0; number < 3; number++) made.push(await Sandbox.create({ metadata: { pages: 'js', n: `${number}` } }))
    try {
      const paginator = Sandbox.list({ limit: 2, query: { metadata: { pages: 'js' }, state: ['running'] } })
      const found = [await paginator.nextItems(), await paginator.nextItems()]
      equal(found.map((page) => page.length), [2, 1])
      equal(paginator.hasNext, false)
      equal(found.flat().map(({ sandboxId }) => sandboxId), made.map(({ sandboxId }) => sandboxId).reverse())
      equal(await all(Sandbox.list({ query: { metadata: { pages: 'js', n: '1' } } })), [made[1].sandboxId])
      equal(await all(Sandbox.list({ query: { metadata: { pages: 'js' }, state: ['paused'] } })), [])
    } finally {
      for (const sandbox of made) await sandbox.kill()
    }
  },

  async pausesAndGoesOn(sandbox) {
    await sandbox.files.write('note', 'kept')
    const sleep = await sandbox.commands.run('sleep 3600', { background: true })
    await sandbox.pause()
    equal((await sandbox.getInfo()).state, 'paused')
    const again = await Sandbox.connect(sandbox.sandboxId)
    equal((await again.getInfo()).state, 'running')
    equal(await again.files.read('note'), 'kept')
    ok((await again.commands.list()).some((process) => process.pid === sleep.pid))
  },

  async pausesWithoutMemoryAndGoesOnWithItsFiles(sandbox) {
    await sandbox.files.write('note', 'kept')
    const sleep = await sandbox.commands.run('sleep 3600', { background: true })
    equal(await sandbox.pause({ keepMemory: false }), true)
    equal((await sandbox.getInfo()).state, 'paused')
    const again = await Sandbox.connect(sandbox.sandboxId)
    equal(again.sandboxId, sandbox.sandboxId)
    equal((await again.getInfo()).state, 'running')
    equal(await again.files.read('note'), 'kept')
    ok(!(await again.commands.list()).some((process) => process.pid === sleep.pid))
    equal(await sandbox.files.read('note'), 'kept')
  },

  async sleepsWhenNobodyUsesItAndIsWokenByItsNextUse() {
    const sandbox = await Sandbox.create({ metadata: { 'offleash.idle': '1s' } })
    try {
      await sandbox.files.write('note', 'kept')
      await eventually(() => 'its sleep', async () => (await sandbox.getInfo()).state === 'paused')
      equal(await sandbox.files.read('note'), 'kept')
      equal((await sandbox.getInfo()).state, 'running')
    } finally {
      await sandbox.kill()
    }
  },

  async isForkedWithItsFiles(sandbox) {
    // Older ones know nothing of it.
    if (!Sandbox.fork) return
    await sandbox.files.write('note', 'of the source')
    const forks = await sandbox.fork({ count: 2 })
    try {
      for (const fork of forks) {
        ok(fork instanceof Sandbox && fork.sandboxId !== sandbox.sandboxId, String(fork))
        equal(await fork.files.read('note'), 'of the source')
        await fork.files.write('note', fork.sandboxId)
      }
      equal(await forks[0].files.read('note'), forks[0].sandboxId)
      equal(await sandbox.files.read('note'), 'of the source')
    } finally {
      for (const fork of forks) await fork.kill()
    }
    await failure(Sandbox.fork('inobody'), NotFoundError)
  },

  async isMeasured(sandbox) {
    const metrics = await eventually(() => 'metrics', async () => {
      const found = await sandbox.getMetrics()
      return found.length > 0 && found
    })
    const last = metrics.at(-1)
    ok(last.memTotal > 0 && last.memUsed <= last.memTotal && last.cpuCount >= 1 && last.diskTotal > 0, JSON.stringify(last))
  },
}
