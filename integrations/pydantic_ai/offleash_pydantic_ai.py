"""A toolset of Pydantic AI: code and commands of its agents run in a sandbox of offleash."""

from pydantic_ai.toolsets import FunctionToolset

from offleash import AsyncSandbox


class OffleashToolset(FunctionToolset):
    """`Agent(toolsets=[OffleashToolset(…)])`; options are those of `AsyncSandbox.create`.

    There is a sandbox from the first call on until the agent's run, or what is around `async with agent`, has ended.
    """

    def __init__(self, **options):
        super().__init__(id="offleash")
        self._options, self._sandbox, self._entered = options, None, 0
        self.add_function(self.run_code)
        self.add_function(self.run_command)

    async def __aenter__(self):
        self._entered += 1
        return self

    async def __aexit__(self, *_):
        self._entered -= 1
        if self._entered == 0 and self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            await sandbox.kill()

    async def _open(self):
        if self._sandbox is None:
            self._sandbox = await AsyncSandbox.create(**self._options)
        return self._sandbox

    async def run_code(self, code: str) -> str:
        """Runs Python that keeps its variables, and answers with what it printed and its last value.

        Args:
            code: The Python to run.
        """
        execution = await (await self._open()).run_code(code)
        said = "".join(execution.logs.stdout + execution.logs.stderr)
        # No `ModelRetry`: an agent has one of these, and code fails more often.
        return said + (execution.error.traceback if execution.error else execution.text or "")

    async def run_command(self, command: str) -> str:
        """Runs a line of bash, and answers with what it wrote.

        Args:
            command: A line of bash.
        """
        result = await (await self._open()).run(command, timeout=300)
        said = result.stdout + result.stderr
        return said if result.ok else f"{said}\nexit code {result.exit_code}"
