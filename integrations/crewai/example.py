"""A crew whose code runs in a sandbox."""

from crewai import Agent, Crew, Task

import offleash
from offleash_crewai import offleash_tools

with offleash.Sandbox.create(allow_internet_access=False) as sandbox:
    agent = Agent(role="analyst", goal="compute", backstory="You compute by running code.", tools=offleash_tools(sandbox))
    task = Task(description="What is the 30th Fibonacci number?", expected_output="a number", agent=agent)
    print(Crew(agents=[agent], tasks=[task]).kickoff())
