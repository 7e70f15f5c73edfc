"""An agent of the Claude Agent SDK whose Bash runs in a sandbox."""

import asyncio

from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, query

from offleash_hook import pre_tool_use


async def main():
    hooks = {"PreToolUse": [HookMatcher(matcher="Bash", hooks=[pre_tool_use])]}
    async for message in query(prompt="Run the tests.", options=ClaudeAgentOptions(hooks=hooks)):
        print(message)


asyncio.run(main())
