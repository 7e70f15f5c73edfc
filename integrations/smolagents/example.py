"""An agent whose code runs in a sandbox."""

from smolagents import CodeAgent, InferenceClientModel

from offleash_smolagents import OffleashExecutor

agent = CodeAgent(tools=[], model=InferenceClientModel(), executor=OffleashExecutor(allow_internet_access=False))
print(agent.run("What is the 30th Fibonacci number?"))
agent.cleanup()
