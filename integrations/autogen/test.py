"""The executor by itself and as AutoGen's agent calls it, without a model."""

import asyncio

from autogen_agentchat.agents import CodeExecutorAgent
from autogen_agentchat.messages import TextMessage
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

from offleash_autogen import OffleashExecutor


async def main():
    token = CancellationToken()
    try:
        await OffleashExecutor().execute_code_blocks([], token)
    except ValueError:
        pass
    else:
        raise AssertionError("it was not started")
    async with OffleashExecutor(timeout=1, allow_internet_access=False) as executor:
        blocks = [CodeBlock("x = 20\nprint('hi')", "python"), CodeBlock("cd /tmp", "sh"), CodeBlock("x * 2", "python")]
        result = await executor.execute_code_blocks(blocks, token)
        assert (result.exit_code, result.output) == (0, "hi\n40"), result
        result = await executor.execute_code_blocks([CodeBlock("pwd", "bash"), CodeBlock("1 / 0", "python"), *blocks], token)
        assert result.exit_code == 1 and result.output.startswith("/tmp\n") and "ZeroDivisionError" in result.output, result
        result = await executor.execute_code_blocks([CodeBlock("while True: pass", "python")], token)
        assert result.exit_code == 124, result
        cancelled = CancellationToken()
        running = asyncio.ensure_future(executor.execute_code_blocks([CodeBlock("import time; time.sleep(99)", "python")], cancelled))
        await asyncio.sleep(0.1)
        cancelled.cancel()
        try:
            await running
        except asyncio.CancelledError:
            pass
        else:
            raise AssertionError("it was cancelled")
        agent = CodeExecutorAgent("runner", code_executor=executor)
        answer = await agent.run(task=TextMessage(content="```python\nprint(x + 22)\n```", source="user"))
        assert "42" in answer.messages[-1].content, answer
        await executor.restart()
        result = await executor.execute_code_blocks([CodeBlock("x", "python")], token)
        assert "NameError" in result.output, result
    loaded = OffleashExecutor.load_component(OffleashExecutor(timeout=5, level="process").dump_component())
    assert isinstance(loaded, OffleashExecutor) and loaded._options == {"level": "process"}


asyncio.run(main())
print("ok")
