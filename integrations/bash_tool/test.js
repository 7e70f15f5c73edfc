// The tools as the AI SDK calls them, without a model.

import assert from 'node:assert/strict'
import { createBashTool } from 'bash-tool'
import { Sandbox } from 'offleash'
import { bashSandbox } from './index.js'

const sandbox = await Sandbox.create()
try {
  const files = { 'src/a.txt': 'alpha\n' }
  const { tools } = await createBashTool({ sandbox: bashSandbox(sandbox), destination: '/home/user/workspace', files })
  const call = { toolCallId: '1', messages: [] }
  const listed = await tools.bash.execute({ command: 'cat src/a.txt; echo err >&2; exit 3' }, call)
  assert.equal(listed.stdout, 'alpha\n')
  assert.equal(listed.stderr, 'err\n')
  assert.equal(listed.exitCode, 3)
  await tools.writeFile.execute({ path: 'b.txt', content: 'beta' }, call)
  assert.equal((await tools.readFile.execute({ path: 'b.txt' }, call)).content, 'beta')
} finally {
  await sandbox.kill()
}
console.log('ok')
