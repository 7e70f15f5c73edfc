// Git and the network.

import { deepStrictEqual as equal, ok } from 'node:assert'
import { BuildError, Sandbox, Template } from 'e2b'
import { failure } from './cases.mjs'

// Addresses that nobody has: one for documentation, and a public one of a network that is assigned to nobody.
const [ONE, OTHER] = ['192.0.2.1', '2d00::7']

// Whether a connection is begun: one that no rule allows is refused, by whoever is there on the way out.
async function isLetOut(sandbox, host) {
  const script = `import socket; socket.create_connection(('${host}', 443), 30)`
  const { stdout } = await sandbox.commands.run(`python3 -c "${script}" 2>&1; echo $?`)
  ok(stdout === '0\n' || stdout.includes('refused'), stdout)
  return stdout === '0\n'
}

async function within(options, work) {
  const sandbox = await Sandbox.create(options)
  try {
    await work(sandbox)
  } finally {
    await sandbox.kill()
  }
}

export const cases = {
  async gitKnowsWhatIsNew(sandbox) {
    if ((await sandbox.commands.run('command -v git || true')).stdout === '') {
      console.log('SKIP: others.gitKnowsWhatIsNew: no git in the sandbox')
      return
    }
    await sandbox.git.init('/home/user/repo', { initialBranch: 'main' })
    await sandbox.git.configureUser('Ann', 'ann@example.com')
    await sandbox.files.write('repo/a.txt', '1')
    const status = await sandbox.git.status('/home/user/repo')
    equal([status.currentBranch, status.fileStatus.map(({ name }) => name)], ['main', ['a.txt']])
    await sandbox.git.add('/home/user/repo')
    await sandbox.git.commit('/home/user/repo', 'first')
    ok((await sandbox.git.status('/home/user/repo')).isClean)
    await sandbox.git.createBranch('/home/user/repo', 'other')
    const branches = await sandbox.git.branches('/home/user/repo')
    equal([branches.currentBranch, branches.branches.sort()], ['other', ['main', 'other']])
    await sandbox.git.checkoutBranch('/home/user/repo', 'main')
    await sandbox.git.clone('/home/user/repo', { path: '/home/user/copy' })
    equal(await sandbox.files.read('copy/a.txt'), '1')
  },

  async rulesOfTheNetworkAreKept() {
    await within({ allowInternetAccess: false }, async (sandbox) => {
      equal(await isLetOut(sandbox, ONE), false)
    })
    await within({ network: { denyOut: ['0.0.0.0/0'], allowOut: [OTHER] } }, async (sandbox) => {
      equal([await isLetOut(sandbox, ONE), await isLetOut(sandbox, OTHER)], [false, true])
      await sandbox.updateNetwork({ denyOut: [OTHER] })
      equal([await isLetOut(sandbox, ONE), await isLetOut(sandbox, OTHER)], [true, false])
    })
  },

  async whatIsNotThereSaysSo(sandbox) {
    const keys = { accessKeyId: 'key', secretAccessKey: 'secret', region: 'region' }
    const template = Template().fromAWSRegistry('a', keys)
    const error = await failure(Template.build(template, 'a-of-tests'), BuildError)
    ok(String(error).includes('501'), error)
    ok(await sandbox.isRunning())
  },
}
