"""An agent whose code runs in a sandbox."""

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage

from offleash_haystack import OffleashToolset

tools = OffleashToolset(allow_internet_access=False)
agent = Agent(chat_generator=OpenAIChatGenerator(), tools=tools)
print(agent.run(messages=[ChatMessage.from_user("What is the 30th Fibonacci number?")])["last_message"].text)
tools.close()
