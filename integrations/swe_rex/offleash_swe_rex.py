"""A deployment of SWE-ReX: its shells and commands are in a sandbox of offleash."""

import asyncio
import re
from pathlib import Path

from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook
from swerex.exceptions import (
    CommandTimeoutError,
    DeploymentNotStartedError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime import abstract as rex
from swerex.utils.log import get_logger

import offleash


class OffleashRuntime(rex.AbstractRuntime):
    """A session is a context of Bash, which keeps variables, functions and its directory."""

    def __init__(self, sandbox, logger=None):
        self.sandbox = sandbox
        self.logger = logger or get_logger("rex-runtime")
        self._sessions = {}

    async def is_alive(self, *, timeout=None):
        return rex.IsAliveResponse(is_alive=await self.sandbox.is_running(timeout))

    async def create_session(self, request):
        if request.session in self._sessions:
            raise SessionExistsError(f"session {request.session} already exists")
        context = await self.sandbox.create_code_context(language="bash")
        self._sessions[request.session] = context
        said = [await self._run(context, f"source {file}", None) for file in request.startup_source]
        return rex.CreateBashSessionResponse(output="".join(output for output, _ in said))

    async def run_in_session(self, action):
        context = self._sessions.get(action.session)
        if context is None:
            raise SessionDoesNotExistError(f"session {action.session!r} does not exist")
        if isinstance(action, rex.BashInterruptAction):
            await self.sandbox.interrupt_code_context(context)
            return rex.BashObservation(exit_code=0)
        if action.is_interactive_command or action.is_interactive_quit:
            raise NotImplementedError("a context of Bash has no terminal; run the program in another way")
        output, code = await self._run(context, action.command, action.timeout)
        if action.check == "raise" and code != 0:
            raise NonZeroExitCodeError(f"Command {action.command!r} failed with exit code {code}: {output}")
        return rex.BashObservation(output=output, exit_code=None if action.check == "ignore" else code)

    async def _run(self, context, command, timeout):
        written = []
        hear = {"on_stdout": lambda said: written.append(said.line), "on_stderr": lambda said: written.append(said.line)}
        try:
            execution = await self.sandbox.run_code(command, context=context, timeout=timeout or 0, **hear)
        except offleash.TimeoutException as error:
            raise CommandTimeoutError(f"timeout after {timeout} seconds while running command {command!r}") from error
        code = 0
        if execution.error is not None:
            is_status = execution.error.name == "ExitCode" and re.fullmatch(r"\d+", execution.error.value)
            code = int(execution.error.value) if is_status else 2
            if not is_status:
                written.append(f"{execution.error.name}: {execution.error.value}\n")
        return "".join(written), code

    async def close_session(self, request):
        context = self._sessions.pop(request.session, None)
        if context is None:
            raise SessionDoesNotExistError(f"session {request.session!r} does not exist")
        await self.sandbox.remove_code_context(context)
        return rex.CloseBashSessionResponse()

    async def execute(self, command):
        words = command.command
        if isinstance(words, str) and not command.shell:
            words = [words]
        elif not isinstance(words, str) and command.shell:
            words = " ".join(words)
        result = await self.sandbox.run(words, envs=command.env, cwd=command.cwd, timeout=command.timeout)
        if result.timed_out:
            raise CommandTimeoutError(f"Timeout ({command.timeout}s) exceeded while running command")
        code = result.exit_code if result.exit_code is not None else -(result.signal or 1)
        if command.check and code != 0:
            raise NonZeroExitCodeError(f"{command.error_msg} command failed with exit code {code}: {result.stderr}")
        if command.merge_output_streams:
            return rex.CommandResponse(stdout=result.stdout + result.stderr, exit_code=code)
        return rex.CommandResponse(stdout=result.stdout, stderr=result.stderr, exit_code=code)

    async def read_file(self, request):
        content = await self.sandbox.files.read(request.path, "bytes")
        return rex.ReadFileResponse(content=content.decode(request.encoding or "utf-8", request.errors or "strict"))

    async def write_file(self, request):
        await self.sandbox.files.write(request.path, request.content)
        return rex.WriteFileResponse()

    async def upload(self, request):
        source = Path(request.source_path)
        files = [path for path in source.rglob("*") if path.is_file()] if source.is_dir() else [source]
        for path in files:
            target = request.target_path if path == source else f"{request.target_path}/{path.relative_to(source)}"
            await self.sandbox.files.write(target, await asyncio.to_thread(path.read_bytes))
        return rex.UploadResponse()

    async def close(self):
        await self.sandbox.kill()
        return rex.CloseResponse()


class OffleashDeployment(AbstractDeployment):
    """Takes what `offleash.Sandbox.create` takes."""

    def __init__(self, *, logger=None, **options):
        self.logger = logger or get_logger("rex-deploy")
        self._options = options
        self._runtime = None
        self._hooks = CombinedDeploymentHook()

    def add_hook(self, hook):
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout=None):
        return await self.runtime.is_alive(timeout=timeout)

    async def start(self):
        self._hooks.on_custom_step("Creating sandbox")
        self._runtime = OffleashRuntime(await offleash.AsyncSandbox.create(**self._options), self.logger)

    async def stop(self):
        if self._runtime is not None:
            await self._runtime.close()
            self._runtime = None

    @property
    def runtime(self):
        if self._runtime is None:
            raise DeploymentNotStartedError()
        return self._runtime
