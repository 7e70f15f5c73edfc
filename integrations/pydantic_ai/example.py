"""An agent whose code runs in a sandbox."""

from pydantic_ai import Agent

from offleash_pydantic_ai import OffleashToolset

agent = Agent("anthropic:claude-sonnet-4-5", toolsets=[OffleashToolset(allow_internet_access=False)])
print(agent.run_sync("What is the 30th Fibonacci number? Run code.").output)
