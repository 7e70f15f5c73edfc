// The tools as an agent of Mastra calls them, with the AI SDK's mock in the model's place.

import assert from 'node:assert/strict'
import { Agent } from '@mastra/core/agent'
import { MockLanguageModelV2 } from 'ai/test'
import { Sandbox } from 'offleash'
import { offleashTools } from './index.js'

const usage = { inputTokens: 1, outputTokens: 1, totalTokens: 2 }
const asked = []
const script = [
  ['run_code', { code: "x = 20\nprint('hi')\nx + 1" }],
  ['run_code', { code: '1 / 0' }],
  ['run_command', { command: 'echo $((40 + 2)); exit 3' }],
]

async function doGenerate({ prompt }) {
  asked.push(prompt)
  const next = script[asked.length - 1]
  const call = next && { type: 'tool-call', toolCallId: `call-${asked.length}`, toolName: next[0], input: JSON.stringify(next[1]) }
  const content = [call ?? { type: 'text', text: 'done' }]
  return { content, finishReason: call ? 'tool-calls' : 'stop', usage, warnings: [] }
}

const sandbox = await Sandbox.create({ allowInternetAccess: false })
try {
  const model = new MockLanguageModelV2({ doGenerate })
  const agent = new Agent({ id: 'analyst', name: 'analyst', instructions: '-', model, tools: offleashTools(sandbox) })
  const answer = await agent.generate('compute')
  assert.equal(answer.text, 'done')
  const heard = asked.at(-1).filter(({ role }) => role === 'tool').flatMap(({ content }) => content.map(({ output }) => output.value))
  assert.equal(heard[0], 'hi\n21')
  assert.match(heard[1], /ZeroDivisionError/)
  assert.equal(heard[2], '42\n\nexit code 3')
} finally {
  await sandbox.kill()
}
console.log('ok')
