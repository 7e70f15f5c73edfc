// Templates that are built, and sandboxes of them.

import { deepStrictEqual as equal, ok } from 'node:assert'
import { randomUUID } from 'node:crypto'
import { mkdtempSync, mkdirSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { BuildError, Sandbox, SandboxError, Template, waitForFile, waitForPort } from 'e2b'
import { eventually, failure } from './cases.mjs'

const IMAGE = process.env.OFFLEASH_TEST_IMAGE
const name = () => `t-${randomUUID().slice(0, 12)}`

// A directory with these files.
function context(files) {
  const directory = mkdtempSync(join(tmpdir(), 'context-'))
  for (const [path, text] of Object.entries(files)) {
    mkdirSync(join(directory, path, '..'), { recursive: true })
    writeFileSync(join(directory, path), text)
  }
  return directory
}

// What a command says in a sandbox of a template.
async function run(wanted, command, options) {
  const sandbox = await Sandbox.create(wanted)
  try {
    return (await sandbox.commands.run(command, options)).stdout
  } finally {
    await sandbox.kill()
  }
}

export const cases = {
  async aTemplateHasWhatItsStepsLeft() {
    const [wanted, lines] = [name(), []]
    const fileContextPath = context({ 'app/main.js': '1\n', 'app/sub/data': 'data\n', 'one.txt': 'one\n' })
    const template = Template({ fileContextPath })
      .fromImage(IMAGE)
      .setEnvs({ COLOUR: 'blue' })
      .runCmd('echo $COLOUR >/opt/colour')
      .runCmd(['echo a >/opt/list', 'echo b >>/opt/list'], { user: 'root' })
      .setWorkdir('/srv/app')
      .copy('app', '/srv/app')
      .copy('one.txt', '/opt/', { mode: 0o600, user: 'root' })
      .makeDir('/opt/made', { user: 'root' })
      .makeSymlink('/opt/list', '/opt/link', { user: 'root' })
      .rename('/opt/colour', '/opt/renamed', { user: 'root' })
      .aptInstall(['vim'])
      .pipInstall('requests')
      .npmInstall('left-pad', { g: true })
      .gitClone('https://git.test/a.git', '/opt/a', { user: 'root' })
    const info = await Template.build(template, wanted, {
      cpuCount: 1,
      memoryMB: 256,
      onBuildLogs: (entry) => lines.push(entry.message),
    })
    equal([info.name, info.tags], [wanted, ['default']])
    ok(lines.some((line) => line.includes('RUN echo $COLOUR')), lines)
    const said = await run(wanted, 'pwd; cat main.js sub/data /opt/renamed /opt/link; id -un; cat /opt/called')
    ok(said.startsWith('/srv/app\n1\ndata\nblue\na\nb\nuser\n'), said)
    for (const called of ['vim', 'pip install requests', 'npm install -g left-pad', 'git clone']) {
      ok(said.includes(called), said)
    }
    ok(await Template.exists(wanted))
    ok(!(await Template.exists(name())))
  },

  async aDockerfileIsUnderstoodAndATemplateIsBuiltUpon() {
    const fileContextPath = context({ file: 'of the context\n' })
    const text = `FROM ${IMAGE}\nENV KEY=value\nWORKDIR /work\nCOPY file copied\nRUN echo $KEY >made\n`
    const below = await Template.build(Template({ fileContextPath }).fromDockerfile(text), name())
    const above = await Template.build(Template().fromTemplate(below.name).runCmd('cat /work/made >/tmp/above'), name())
    equal(await run(above.name, 'cat /work/copied /work/made; echo $KEY'), 'of the context\nvalue\nvalue\n')
  },

  async aFailureIsToldWithItsStep() {
    const template = Template().fromImage(IMAGE).runCmd('echo one').runCmd('echo it broke; exit 3')
    const error = await failure(Template.build(template, name()), BuildError)
    ok(error.message.includes('exit code 3') && error.message.includes('it broke'), error.message)
    const info = await Template.buildInBackground(template, name())
    const found = await eventually(
      () => 'the end of the build',
      async () => {
        const found = await Template.getBuildStatus(info, { logsOffset: 0 })
        return found.status === 'error' && found
      },
    )
    equal(found.reason.step, '2')
    await failure(Sandbox.create(info.name), SandboxError)
  },

  async tagsMeanBuilds() {
    const wanted = name()
    const version = (number) => Template().fromImage(IMAGE).runCmd(`echo ${number} >/opt/version`)
    const first = await Template.build(version(1), `${wanted}:v1`)
    const second = await Template.build(version(2), wanted, { tags: ['default', 'v2'] })
    equal(second.templateId, first.templateId)
    equal(await run(`${wanted}:v1`, 'cat /opt/version'), '1\n')
    equal(await run(wanted, 'cat /opt/version'), '2\n')
    equal((await Template.assignTags(`${wanted}:v1`, 'stable')).buildId, first.buildId)
    equal((await Template.getTags(wanted)).map(({ tag }) => tag).sort(), ['default', 'stable', 'v1', 'v2'])
    await Template.removeTags(wanted, ['v1', 'stable'])
    await failure(Sandbox.create(`${wanted}:v1`), SandboxError)
  },

  async whatATemplateStartsRunsWhenASandboxIsHandedOut() {
    const site = 'mkdir -p /tmp/www; echo up >/tmp/www/index.html; exec httpd -f -p 8000 -h /tmp/www'
    const served = await Template.build(Template().fromImage(IMAGE).setStartCmd(site, waitForPort(8000)), name())
    equal(await run(served.name, 'wget -q -O - http://127.0.0.1:8000/'), 'up\n')
    const start = 'sleep 1; echo $WHAT >/tmp/ready; sleep 1000'
    const template = Template().fromImage(IMAGE).setEnvs({ WHAT: 'x' }).setStartCmd(start, waitForFile('/tmp/ready'))
    equal(await run((await Template.build(template, name())).name, 'cat /tmp/ready'), 'x\n')
  },

  async aStepIsMadeOnceUnlessThatIsNotWanted() {
    const wanted = name()
    const stamped = (template) => template.runCmd('cat /proc/sys/kernel/random/uuid >/opt/stamp')
    const of = () => run(wanted, 'cat /opt/stamp')
    await Template.build(stamped(Template().fromImage(IMAGE)), wanted)
    const first = await of()
    await Template.build(stamped(Template().fromImage(IMAGE)), wanted)
    equal(await of(), first)
    await Template.build(stamped(Template().fromImage(IMAGE).skipCache()), wanted)
    ok((await of()) !== first)
  },
}
