"""The plugin by itself, and as an agent calls it, with a script in the model's place."""

import asyncio

from openai import AsyncOpenAI
from semantic_kernel import Kernel
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion

from offleash import Sandbox
from offleash_semantic_kernel import OffleashPlugin
from scripted_model import ScriptedModel


async def main():
    plugin = OffleashPlugin(allow_internet_access=False)
    kernel = Kernel()
    kernel.add_plugin(plugin, "sandbox")

    async def invoked(name, **arguments):
        return str(await kernel.invoke(plugin_name="sandbox", function_name=name, **arguments))

    assert await invoked("run_code", code="x = 20\nprint('hi')\nx + 1") == "hi\n21"
    assert "ZeroDivisionError" in await invoked("run_code", code="1 / 0")
    assert await invoked("run_command", command="echo $((40 + 2)); exit 3") == "42\n\nexit code 3"

    def second(body):
        return {"text": f"The tool said {'40' if '40' in str(body['messages'][-1]) else 'nothing'}."}

    with ScriptedModel([{"tool": "sandbox-run_code", "input": {"code": "x * 2"}}, second]) as model:
        client = AsyncOpenAI(base_url=f"{model.url}/v1", api_key="none")
        service = OpenAIChatCompletion(ai_model_id="scripted", async_client=client)
        agent = ChatCompletionAgent(service=service, kernel=kernel)
        answer = await agent.get_response("What is twice x?")
    assert str(answer) == "The tool said 40.", answer
    await plugin.close()
    assert not list(Sandbox.list())


asyncio.run(main())
print("ok")
