"""An agent whose code runs in a sandbox."""

import asyncio

from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion

from offleash_semantic_kernel import OffleashPlugin


async def main():
    plugin = OffleashPlugin(allow_internet_access=False)
    agent = ChatCompletionAgent(service=OpenAIChatCompletion(ai_model_id="gpt-5"), plugins=[plugin])
    print(await agent.get_response("What is the 30th Fibonacci number? Run code."))
    await plugin.close()


asyncio.run(main())
