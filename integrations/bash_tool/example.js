// An agent of the AI SDK whose shell is a sandbox.

import { generateText, stepCountIs } from 'ai'
import { createBashTool } from 'bash-tool'
import { Sandbox } from 'offleash'
import { bashSandbox } from './index.js'

const sandbox = await Sandbox.create({ allowInternetAccess: false })
const { tools } = await createBashTool({ sandbox: bashSandbox(sandbox), destination: '/home/user/workspace' })
const { text } = await generateText({
  model: 'anthropic/claude-sonnet-5',
  tools,
  stopWhen: stepCountIs(10),
  prompt: 'Which files are here?',
})
console.log(text)
await sandbox.kill()
