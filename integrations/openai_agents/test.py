"""The tools as the SDK calls them; a script stands in for the model."""

import asyncio
import json

from agents import Agent, ModelResponse, RunConfig, Runner, Usage
from agents.models.interface import Model
from agents.tool import ShellActionRequest, ShellCallData, ShellCommandRequest
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from offleash_openai_agents import code_tool, offleash, shell_tool


class Script(Model):
    """Calls the tool once, and says what it answered."""

    async def get_response(self, system_instructions, input, *rest, **named):
        said = [item for item in input if isinstance(item, dict) and item.get("type") == "function_call_output"]
        if said:
            text = ResponseOutputText(annotations=[], text=str(said[0]["output"]), type="output_text")
            item = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
        else:
            arguments = json.dumps({"code": "x = 41\nprint('hi')\nx + 1"})
            item = ResponseFunctionToolCall(arguments=arguments, call_id="c", name="run_python", type="function_call")
        return ModelResponse(output=[item], usage=Usage(), response_id=None)

    def stream_response(self, *rest, **named):
        raise NotImplementedError


async def main():
    async with await offleash.AsyncSandbox.create() as sandbox:
        shell = shell_tool(sandbox)
        action = ShellActionRequest(commands=["echo out; echo err >&2; exit 3", "sleep 9"], timeout_ms=1000)
        result = await shell.executor(ShellCommandRequest(None, ShellCallData("1", action)))
        first, second = result.output
        assert (first.stdout, first.stderr, first.exit_code) == ("out\n", "err\n", 3), first
        assert second.status == "timeout", second
        agent = Agent(name="a", tools=[code_tool(sandbox)], model=Script())
        run = await Runner.run(agent, "?", run_config=RunConfig(tracing_disabled=True))
        assert run.final_output == "hi\n42", run.final_output


asyncio.run(main())
print("ok")
