"""An agent whose commands run in a sandbox."""

import asyncio

from agents import Agent, Runner

from offleash import AsyncSandbox
from offleash_openai_agents import code_tool, shell_tool


async def main():
    async with await AsyncSandbox.create(allow_internet_access=False) as sandbox:
        agent = Agent(name="Helper", tools=[shell_tool(sandbox), code_tool(sandbox)])
        print((await Runner.run(agent, "Which Python is installed?")).final_output)


asyncio.run(main())
