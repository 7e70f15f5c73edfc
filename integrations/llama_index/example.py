"""An agent whose code runs in a sandbox."""

import asyncio

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai import OpenAI

from offleash_llama_index import OffleashToolSpec

tools = OffleashToolSpec(allow_internet_access=False)
agent = FunctionAgent(tools=tools.to_tool_list(), llm=OpenAI(model="gpt-5-mini"))
print(asyncio.run(agent.run("What is the 30th Fibonacci number?")))
tools.close()
