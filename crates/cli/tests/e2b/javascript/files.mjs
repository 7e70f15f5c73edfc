// Files in a sandbox.

import { deepStrictEqual as equal, ok } from 'node:assert'
import { FilesystemEventType, FileType, InvalidArgumentError, NotFoundError, Sandbox } from 'e2b'
import { eventually, failure } from './cases.mjs'

export const cases = {
  async areReadAsTheyWereWritten(sandbox) {
    const bytes = new Uint8Array(3_000_000).map((_, index) => index % 251)
    equal((await sandbox.files.write('a.bin', bytes.buffer)).path, '/home/user/a.bin')
    equal(await sandbox.files.read('a.bin', { format: 'bytes' }), bytes)
    equal((await (await sandbox.files.read('a.bin', { format: 'blob' })).arrayBuffer()).byteLength, bytes.length)
    const strange = 'new/deep/é 中 "q".bin'
    await sandbox.files.write(strange, new Blob([bytes]), { gzip: true })
    equal(await sandbox.files.read(strange, { format: 'bytes' }), bytes)
    const info = await sandbox.files.write('/home/user/a.txt', 'hello')
    equal([info.name, info.type, info.path], ['a.txt', 'file', '/home/user/a.txt'])
    equal([await sandbox.files.read('a.txt'), await sandbox.files.read('~/a.txt')], ['hello', 'hello'])
    await failure(sandbox.files.read('/gone'), NotFoundError)
    await failure(sandbox.files.read('/home/user'), InvalidArgumentError)
  },

  async areWrittenSeveralAtOnce(sandbox) {
    const names = Array.from({ length: 50 }, (_, index) => `many/${index} é.txt`)
    const written = await sandbox.files.write(names.map((path) => ({ path, data: path })))
    equal(written.map(({ path }) => path), names.map((name) => `/home/user/${name}`))
    equal(await sandbox.files.read(names[33]), names[33])
    const far = await sandbox.files.write([{ path: 'one', data: '1' }, { path: '/tmp/x/two', data: '2' }])
    equal(far.map(({ name, type, path }) => [name, type, path]), [
      ['one', 'file', '/home/user/one'], ['two', 'file', '/tmp/x/two'],
    ])
  },

  async areListedMovedAndRemoved(sandbox) {
    equal([await sandbox.files.makeDir('d/e'), await sandbox.files.makeDir('d/e')], [true, false])
    await sandbox.files.write('d/e/f', '12345')
    const [entry] = await sandbox.files.list('d/e')
    equal([entry.name, entry.type, entry.size, entry.permissions], ['f', FileType.FILE, 5, '-rw-r--r--'])
    equal((await sandbox.files.list('d', { depth: 2 })).map(({ path }) => path), ['/home/user/d/e', '/home/user/d/e/f'])
    equal((await sandbox.files.rename('d/e/f', 'd/g')).path, '/home/user/d/g')
    equal([await sandbox.files.exists('d/e/f'), (await sandbox.files.getInfo('d/g')).size], [false, 5])
    await sandbox.files.remove('d')
    equal(await sandbox.files.exists('d'), false)
    await failure(sandbox.files.read('d/g'), NotFoundError)
    await failure(sandbox.files.list('d'), NotFoundError)
    await failure(sandbox.files.getInfo('d/g'), NotFoundError)
  },

  async haveMetadata(sandbox) {
    await sandbox.files.write('m', 'x', { metadata: { Author: 'ann lee', b: '2' } })
    equal((await sandbox.files.getInfo('m')).metadata, { author: 'ann lee', b: '2' })
    await sandbox.files.write('m', 'y', { metadata: { b: '3' } })
    equal((await sandbox.files.getInfo('m')).metadata, { b: '3' })
  },

  async areSentBySignedUrls() {
    const sandbox = await Sandbox.create({ secure: true })
    try {
      await sandbox.files.write('signed', 'by url')
      const url = await sandbox.downloadUrl('signed', { useSignatureExpiration: 600 })
      equal(await (await fetch(url)).text(), 'by url')
      equal((await fetch(url.replace('signed', 'other'))).status, 401)
      equal((await fetch(await sandbox.downloadUrl('signed', { useSignatureExpiration: -10 }))).status, 401)
      const form = new FormData()
      form.append('file', new Blob(['up']), 'up')
      equal((await fetch(await sandbox.uploadUrl('up'), { method: 'POST', body: form })).status, 200)
      equal(await sandbox.files.read('up'), 'up')
    } finally {
      await sandbox.kill()
    }
  },

  async areWatched(sandbox) {
    await sandbox.files.makeDir('w')
    const seen = []
    const watch = await sandbox.files.watchDir('w', (event) => seen.push([event.name, event.type]), { recursive: true })
    await sandbox.files.write('w/a', 'x')
    await eventually(() => seen, () => seen.length >= 3)
    const { CREATE, CHMOD, WRITE, REMOVE } = FilesystemEventType
    equal(seen, [['a', CREATE], ['a', CHMOD], ['a', WRITE]])
    await sandbox.files.remove('w/a')
    await eventually(() => seen, () => seen.length >= 4)
    equal(seen[3], ['a', REMOVE])
    await sandbox.files.write('w/sub/deep', 'x')
    await eventually(() => seen, () => seen.some(([name]) => name === 'sub/deep'))
    await watch.stop()
    await failure(sandbox.files.watchDir('not-there', () => {}), NotFoundError)
    ok(await sandbox.isRunning())
  },
}
