"""A sandbox environment of Inspect: `Task(sandbox="offleash")`, or `sandbox=("offleash", "image:python:3.12-slim")`."""

import posixpath

from inspect_ai.util import ExecResult, SandboxEnvironment, sandboxenv
from inspect_ai.util import OutputLimitExceededError

import offleash

#: Most that is read of a file, bytes.
MAX_READ = 100 * 1024 * 1024
WORK = "/home/user/work"


@sandboxenv(name="offleash")
class OffleashSandboxEnvironment(SandboxEnvironment):
    """One sandbox for each sample. What stands behind the name is a template."""

    @classmethod
    async def sample_init(cls, task_name, config, metadata):
        template = config if isinstance(config, str) and config else None
        labels = {"task": task_name}
        sandbox = await offleash.AsyncSandbox.create(template, timeout=86_400, metadata=labels)
        await sandbox.files.make_dir(WORK)
        return {"default": cls(sandbox)}

    @classmethod
    async def sample_cleanup(cls, task_name, config, environments, interrupted):
        for environment in environments.values():
            await environment.as_type(cls).sandbox.kill()

    def __init__(self, sandbox):
        super().__init__()
        self.sandbox = sandbox

    async def exec(
        self, cmd, input=None, cwd=None, env=None, user=None, timeout=None, timeout_retry=True, concurrency=True
    ):
        text = input.decode() if isinstance(input, bytes) else input
        where = posixpath.join(WORK, cwd) if cwd else WORK
        result = await self.sandbox.run(cmd, envs=env, cwd=where, user=user, stdin=text, timeout=timeout)
        if result.timed_out:
            raise TimeoutError(f"the command was killed after {timeout} s")
        if result.truncated:
            raise OutputLimitExceededError(limit_str="1 MiB", truncated_output=result.stdout)
        code = result.exit_code if result.exit_code is not None else 128 + (result.signal or 0)
        if code == 126 and result.stderr.startswith("offleash: "):
            raise PermissionError(result.stderr)
        return ExecResult(code == 0, code, result.stdout, result.stderr)

    async def write_file(self, file, contents):
        path = posixpath.join(WORK, file)
        if await self.sandbox.files.exists(path) and (await self._is_directory(path)):
            raise IsADirectoryError(path)
        try:
            await self.sandbox.files.write(path, contents)
        except offleash.PermissionDeniedException as error:
            raise PermissionError(path) from error

    async def read_file(self, file, text=True):
        path = posixpath.join(WORK, file)
        try:
            info = await self.sandbox.files.get_info(path)
            if info.type is offleash.FileType.DIR:
                raise IsADirectoryError(path)
            if info.size > MAX_READ:
                raise OutputLimitExceededError(limit_str="100 MiB", truncated_output=None)
            content = bytes(await self.sandbox.files.read(path, "bytes"))
        except offleash.FileNotFoundException as error:
            raise FileNotFoundError(path) from error
        except offleash.PermissionDeniedException as error:
            raise PermissionError(path) from error
        return content.decode() if text else content

    async def _is_directory(self, path):
        return (await self.sandbox.files.get_info(path)).type is offleash.FileType.DIR
