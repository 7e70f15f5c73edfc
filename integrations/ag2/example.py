"""An agent whose code runs in a sandbox."""

import asyncio

from ag2 import Agent
from ag2.config import OpenAIConfig
from ag2.tools import SandboxCodeTool

from offleash_ag2 import OffleashEnvironment


async def main():
    environment = OffleashEnvironment(allow_internet_access=False)
    agent = Agent("analyst", config=OpenAIConfig("gpt-5"), tools=[SandboxCodeTool(environment)])
    print((await agent.ask("What is the 30th Fibonacci number?")).body)
    await environment.aclose()


asyncio.run(main())
