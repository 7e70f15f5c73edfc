"""The deployment as SWE-agent calls it, without a model."""

import asyncio
import tempfile
from pathlib import Path

from offleash_swe_rex import OffleashDeployment
from swerex.exceptions import CommandTimeoutError, NonZeroExitCodeError, SessionDoesNotExistError
from swerex.runtime.abstract import (
    BashAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)


async def refused(kind, awaitable):
    try:
        await awaitable
    except kind:
        return
    raise AssertionError(f"{kind} was not raised")


async def main():
    deployment = OffleashDeployment()
    await deployment.start()
    try:
        runtime = deployment.runtime
        assert await deployment.is_alive()
        await runtime.create_session(CreateBashSessionRequest())
        assert (await runtime.run_in_session(BashAction(command="cd /tmp; x=1; echo a; echo b >&2"))).exit_code == 0
        assert (await runtime.run_in_session(BashAction(command="pwd; echo $x"))).output == "/tmp\n1\n"
        await refused(NonZeroExitCodeError, runtime.run_in_session(BashAction(command="false")))
        assert (await runtime.run_in_session(BashAction(command="(exit 7)", check="silent"))).exit_code == 7
        await refused(CommandTimeoutError, runtime.run_in_session(BashAction(command="sleep 9", timeout=0.5)))
        assert (await runtime.run_in_session(BashAction(command="echo still $x"))).output == "still 1\n"
        await runtime.close_session(CloseBashSessionRequest())
        await refused(SessionDoesNotExistError, runtime.run_in_session(BashAction(command="true")))
        assert (await runtime.execute(Command(command=["echo", "hi"]))).stdout == "hi\n"
        assert (await runtime.execute(Command(command="echo $A", shell=True, env={"A": "b"}))).stdout == "b\n"
        await runtime.write_file(WriteFileRequest(path="/home/user/a", content="text"))
        assert (await runtime.read_file(ReadFileRequest(path="/home/user/a"))).content == "text"
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / "sub").mkdir()
            (Path(place) / "sub" / "f").write_text("up")
            await runtime.upload(UploadRequest(source_path=place, target_path="/home/user/up"))
        assert (await runtime.read_file(ReadFileRequest(path="/home/user/up/sub/f"))).content == "up"
    finally:
        await deployment.stop()


asyncio.run(main())
print("ok")
