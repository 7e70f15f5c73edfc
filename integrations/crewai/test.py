"""The tools as a crew calls them, with a script in the model's place."""

import os

from scripted_model import ScriptedModel

os.environ.update(CREWAI_DISABLE_TELEMETRY="true", OTEL_SDK_DISABLED="true", CREWAI_TRACING_ENABLED="false", CREWAI_TESTING="true")

import offleash
from crewai import LLM, Agent, Crew, Task
from offleash_crewai import offleash_tools

with offleash.Sandbox.create(allow_internet_access=False) as sandbox:
    run_code, run_command = offleash_tools(sandbox)
    assert run_code.run(code="x = 20\nprint('hi')\nx + 1") == "hi\n21"
    assert "ZeroDivisionError" in run_code.run(code="1 / 0")
    assert run_command.run(command="echo $((40 + 2)); exit 3") == "42\n\nexit code 3"

    def second(body):
        # What the tool answered is in what the model is asked.
        return {"text": f"Final Answer: the tool said {'40' if '40' in str(body['messages'][-1]) else 'nothing'}"}

    with ScriptedModel([{"tool": "run_code", "input": {"code": "x * 2"}}, second]) as model:
        llm = LLM(model="openai/gpt-4o", base_url=f"{model.url}/v1", api_key="none")
        agent = Agent(role="analyst", goal="compute", backstory="-", tools=[run_code, run_command], llm=llm)
        task = Task(description="What is twice x?", expected_output="a number", agent=agent)
        answer = Crew(agents=[agent], tasks=[task]).kickoff().raw
        assert "the tool said 40" in answer, (answer, model.requests)
print("ok")
