// Git over HTTP with a server that wants a password: `GIT_URL` leads to its repositories, each made when it is asked for.
// With `GIT_SECRET` the gateway signs in, and nobody here knows a password.

import { deepStrictEqual as equal, ok } from 'node:assert'
import { randomUUID } from 'node:crypto'
import { GitAuthError, Sandbox } from 'e2b'
import { failure } from './cases.mjs'

const [username, secret] = ['ann', process.env.GIT_SECRET]
const password = secret ? 'dummy' : 'hunter2hunter2'
const { host, hostname, protocol } = new URL(process.env.GIT_URL)

function network() {
  if (!secret) return undefined
  const headers = { Authorization: 'Basic me:${e2b.secrets.' + secret + '}' }
  return { rules: { [hostname]: [{ transform: { headers } }] } }
}

export const cases = {
  async repositoriesArePushedClonedAndPulled() {
    const url = `${process.env.GIT_URL}/${randomUUID()}.git`
    const [path, copy] = ['/home/user/repo', '/home/user/copy']
    const sandbox = await Sandbox.create({ network: network() })
    try {
      const git = sandbox.git
      await git.init(path, { initialBranch: 'main' })
      await git.configureUser('Ann', 'ann@example.com')
      await git.setConfig('pull.rebase', 'false')
      equal(await git.getConfig('pull.rebase'), 'false')
      await git.remoteAdd(path, 'origin', url)
      equal(await git.remoteGet(path, 'origin'), url)
      await sandbox.files.write('repo/a.txt', '1')
      await git.add(path)
      await git.commit(path, 'first')
      if (!secret) {
        await failure(git.push(path, { remote: 'origin', branch: 'main' }), GitAuthError)
        await failure(git.clone(url, { path: '/home/user/none', username, password: 'wrong' }), GitAuthError)
      }
      await git.push(path, { remote: 'origin', branch: 'main', username, password })
      await git.clone(url, { path: copy, username, password })
      equal(await git.remoteGet(copy, 'origin'), url)
      await sandbox.files.write('repo/a.txt', '2')
      await git.add(path)
      await git.commit(path, 'second')
      await git.push(path, { remote: 'origin', branch: 'main', username, password })
      await git.pull(copy, { remote: 'origin', branch: 'main', username, password })
      equal(await sandbox.files.read('copy/a.txt'), '2')
      await git.dangerouslyAuthenticate({ username, password, host, protocol: protocol.slice(0, -1) })
      await git.createBranch(copy, 'other')
      await git.push(copy, { remote: 'origin', branch: 'other', setUpstream: true })
      const { branches } = await git.branches(copy)
      equal(branches.sort(), ['main', 'other'])
      ok((await git.status(copy)).isClean)
    } finally {
      await sandbox.kill()
    }
  },
}
