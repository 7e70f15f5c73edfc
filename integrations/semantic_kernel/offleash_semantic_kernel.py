"""A plugin of Semantic Kernel: code and commands of its agents run in a sandbox of offleash."""

from typing import Annotated

from semantic_kernel.functions import kernel_function

from offleash import AsyncSandbox


class OffleashPlugin:
    """`kernel.add_plugin(OffleashPlugin(…), "sandbox")`; options are those of `AsyncSandbox.create`. `close` ends its sandbox."""

    def __init__(self, **options):
        self._options, self._sandbox = options, None

    async def _open(self):
        if self._sandbox is None:
            self._sandbox = await AsyncSandbox.create(**self._options)
        return self._sandbox

    @kernel_function(description="Runs Python that keeps its variables, and answers with what it printed and its last value.")
    async def run_code(self, code: Annotated[str, "the Python to run"]) -> str:
        execution = await (await self._open()).run_code(code)
        said = "".join(execution.logs.stdout + execution.logs.stderr)
        return said + (execution.error.traceback if execution.error else execution.text or "")

    @kernel_function(description="Runs a line of bash, and answers with what it wrote.")
    async def run_command(self, command: Annotated[str, "a line of bash"]) -> str:
        result = await (await self._open()).run(command, timeout=300)
        said = result.stdout + result.stderr
        return said if result.ok else f"{said}\nexit code {result.exit_code}"

    async def close(self):
        if self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            await sandbox.kill()
