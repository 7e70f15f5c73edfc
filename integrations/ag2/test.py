"""The sandbox by itself, and as AG2's tools call it, with AG2's own script in the model's place."""

import asyncio
import json
from pathlib import PurePosixPath

from ag2 import Agent
from ag2.events import ToolCallEvent
from ag2.testing import TestConfig
from ag2.tools import SandboxCodeTool, SandboxShellTool
from ag2.tools.sandbox.base import Sandbox

import offleash
from offleash_ag2 import OffleashEnvironment


async def main():
    environment = OffleashEnvironment(allow_internet_access=False)
    async with environment.open() as sandbox:
        assert isinstance(sandbox, Sandbox)
        ended = await sandbox.exec(["sh", "-c", "echo $A; pwd; echo err >&2; exit 3"], env={"A": "it's"})
        assert (ended.exit_code, ended.output) == (3, "it's\n/home/user\nerr\n"), ended
        assert (await sandbox.exec(["sleep", "9"], timeout=0.2)).exit_code == 124
        assert (await sandbox.exec(["no-such-program"])).exit_code == 127
        await sandbox.put_file(PurePosixPath("dir/a.txt"), b"text")
        assert (await sandbox.exec(["cat", "dir/a.txt"])).output == "text"
        await sandbox.remove_file(PurePosixPath("dir/a.txt"))
        assert (await sandbox.exec(["ls", "dir"])).output == ""
        try:
            await sandbox.put_file(PurePosixPath("../out"), b"")
        except ValueError:
            pass
        else:
            raise AssertionError("it is outside of the working directory")
    code, shell = SandboxCodeTool(environment), SandboxShellTool(environment)
    call = ToolCallEvent(name="run_code", arguments=json.dumps({"code": "print(6 * 7)", "language": "python"}))
    agent = Agent("analyst", config=TestConfig(call, "It is 42."), tools=[code, shell])
    reply = await agent.ask("What is 6 times 7?")
    assert reply.body == "It is 42.", reply
    said = [event async for event in reply.history] if hasattr(reply.history, "__aiter__") else await reply.history.get_events()
    assert any("42" in str(event) for event in said if "Result" in type(event).__name__), said
    await environment.aclose()
    assert not list(offleash.Sandbox.list())


asyncio.run(main())
print("ok")
