"""An agent that runs the code of messages in a sandbox."""

import asyncio

from autogen_agentchat.agents import CodeExecutorAgent
from autogen_agentchat.messages import TextMessage

from offleash_autogen import OffleashExecutor


async def main():
    async with OffleashExecutor(allow_internet_access=False) as executor:
        agent = CodeExecutorAgent("runner", code_executor=executor)
        print((await agent.run(task=TextMessage(content="```python\nprint(6 * 7)\n```", source="user"))).messages[-1].content)


asyncio.run(main())
