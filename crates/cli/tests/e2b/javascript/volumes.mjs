// Volumes: made, mounted, read and written from outside.

import { deepStrictEqual as equal, ok } from 'node:assert'
import { randomUUID } from 'node:crypto'
import { Sandbox, SandboxError, Volume, VolumeError, VolumeNotFoundError, VolumePathNotFoundError } from 'e2b'
import { failure } from './cases.mjs'

const name = () => `v-${randomUUID().slice(0, 8)}`

async function within(options, work) {
  const sandbox = await Sandbox.create(options)
  try {
    await work(sandbox)
  } finally {
    await sandbox.kill()
  }
}

export const cases = {
  async aVolumeOutlivesItsSandboxes() {
    const volume = await Volume.create(name())
    await within({ volumeMounts: { '/data': volume } }, async (sandbox) => {
      await sandbox.files.write('/data/a.txt', 'text')
      equal((await sandbox.getInfo()).volumeMounts, [{ name: volume.name, path: '/data' }])
    })
    equal(await volume.readFile('/a.txt'), 'text')
    await volume.writeFile('/b.txt', 'other')
    await within({ volumeMounts: { '/data': volume.name } }, async (sandbox) => {
      equal(await sandbox.files.read('/data/b.txt'), 'other')
      await failure(Volume.destroy(volume.volumeId), Error)
    })
    ok((await Volume.list()).some(({ volumeId }) => volumeId === volume.volumeId))
    equal(await Volume.destroy(volume.volumeId), true)
    equal(await Volume.destroy(volume.volumeId), false)
    await failure(Volume.getInfo(volume.volumeId), VolumeNotFoundError)
  },

  async filesAreReadAndWrittenFromOutside() {
    const volume = await Volume.create(name())
    const bytes = new Uint8Array(3_000_000).map((_, index) => index % 251)
    await volume.writeFile('/dir/b.bin', new Blob([bytes]), { force: true, mode: 0o600 })
    equal(await volume.readFile('/dir/b.bin', { format: 'bytes' }), bytes)
    await volume.makeDir('/x/y', { force: true })
    equal((await volume.list('/', { depth: 2 })).map(({ path }) => path), ['/dir', '/dir/b.bin', '/x', '/x/y'])
    const entry = await volume.getInfo('/dir/b.bin')
    equal([entry.type, entry.size, entry.mode & 0o777, entry.uid], ['file', bytes.length, 0o600, 1000])
    equal((await volume.updateMetadata('/dir/b.bin', { mode: 0o644 })).mode & 0o777, 0o644)
    await volume.remove('/x')
    equal(await volume.exists('/x'), false)
    await failure(volume.readFile('/none'), VolumePathNotFoundError)
    const again = await Volume.connect(volume.volumeId)
    equal(again.token, volume.token)
    equal(await Volume.destroy(volume.volumeId), true)
  },

  async whatIsNotThereIsRefused() {
    await failure(Volume.create('../x'), VolumeError)
    await failure(Sandbox.create({ volumeMounts: { '/data': 'no-such-volume' } }), SandboxError)
  },
}
