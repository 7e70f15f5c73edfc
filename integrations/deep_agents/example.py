"""An agent whose commands and files are in a sandbox."""

from deepagents import create_deep_agent

from offleash_deep_agents import OffleashBackend

backend = OffleashBackend(allow_internet_access=False)
agent = create_deep_agent(model="anthropic:claude-sonnet-5", backend=backend)
print(agent.invoke({"messages": [{"role": "user", "content": "Write and run a program that prints the first 20 primes."}]}))
backend.sandbox.kill()
