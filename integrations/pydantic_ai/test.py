"""The toolset as an agent calls it, with Pydantic AI's own function in the model's place."""

import asyncio

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

from offleash import Sandbox
from offleash_pydantic_ai import OffleashToolset

SCRIPT = [
    ("run_code", {"code": "x = 20\nprint('hi')"}),
    ("run_code", {"code": "1 / 0"}),
    ("run_code", {"code": "x + 22"}),
    ("run_command", {"command": "echo $((40 + 2)); exit 3"}),
]
heard = []


def model(messages, info):
    assert {tool.name for tool in info.function_tools} == {"run_code", "run_command"}
    heard.extend(part for part in messages[-1].parts if isinstance(part, ToolReturnPart))
    if len(heard) == len(SCRIPT):
        return ModelResponse(parts=[TextPart("done")])
    name, arguments = SCRIPT[len(heard)]
    return ModelResponse(parts=[ToolCallPart(name, arguments)])


async def main():
    toolset = OffleashToolset(allow_internet_access=False)
    agent = Agent(FunctionModel(model), toolsets=[toolset])
    assert (await agent.run("compute")).output == "done"
    said = [part.content for part in heard]
    assert "ZeroDivisionError" in said.pop(1)
    assert said == ["hi\n", "42", "42\n\nexit code 3"], said
    assert toolset._sandbox is None


asyncio.run(main())
assert not list(Sandbox.list()), "its sandbox goes with the agent's run"
print("ok")
