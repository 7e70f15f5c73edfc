"""AG2's sandbox: its tools for code and shells run what they run in a sandbox of offleash."""

import shlex
from contextlib import asynccontextmanager
from pathlib import PurePosixPath

from ag2.tools.sandbox.base import ExecResult, SandboxBase

from offleash import AsyncSandbox


class OffleashSandbox(SandboxBase):
    """A sandbox, made when it is entered, or when something is first run in it; options are those of `AsyncSandbox.create`."""

    workdir = PurePosixPath("/home/user")
    host_workdir = None

    def __init__(self, timeout=60, **options):
        self._timeout, self._options, self._sandbox = timeout, options, None

    async def __aenter__(self):
        if self._sandbox is None:
            self._sandbox = await AsyncSandbox.create(**self._options)
        return self

    async def exec(self, argv, *, env=None, timeout=None):
        await self.__aenter__()
        seconds = self._timeout if timeout is None else timeout
        # One stream, as AG2 has it.
        line = f"{shlex.join(argv)} 2>&1"
        result = await self._sandbox.run(line, envs=env, cwd=str(self.workdir), timeout=seconds)
        code = 124 if result.timed_out else result.exit_code if result.exit_code is not None else 128 + (result.signal or 0)
        return ExecResult(output=result.stdout, exit_code=code)

    def _inside(self, path):
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"`{path}` is not in the working directory")
        return str(self.workdir / path)

    async def put_file(self, path, content):
        await self.__aenter__()
        await self._sandbox.files.write(self._inside(path), content)

    async def aclose(self):
        if self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            await sandbox.kill()


class OffleashEnvironment:
    """`SandboxCodeTool(OffleashEnvironment(…))`; one sandbox for all calls, which `aclose` ends."""

    workdir = OffleashSandbox.workdir

    def __init__(self, timeout=60, **options):
        self.sandbox = OffleashSandbox(timeout, **options)

    @asynccontextmanager
    async def open(self, context=None):
        yield await self.sandbox.__aenter__()

    async def aclose(self):
        await self.sandbox.aclose()
