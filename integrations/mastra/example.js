// An agent whose code runs in a sandbox.

import { Agent } from '@mastra/core/agent'
import { Sandbox } from 'offleash'
import { offleashTools } from './index.js'

const sandbox = await Sandbox.create({ allowInternetAccess: false })
const agent = new Agent({ name: 'analyst', instructions: 'Compute by running code.', model: 'openai/gpt-5', tools: offleashTools(sandbox) })
console.log((await agent.generate('What is the 30th Fibonacci number?')).text)
await sandbox.kill()
