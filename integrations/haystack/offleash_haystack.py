"""Tools of Haystack: code and commands of its agents run in a sandbox of offleash."""

from typing import Annotated

from haystack.tools import Toolset, create_tool_from_function

import offleash


class OffleashToolset(Toolset):
    """`Agent(tools=OffleashToolset(…))`; takes a sandbox, or what `offleash.Sandbox.create` takes."""

    def __init__(self, sandbox=None, **options):
        self.sandbox = sandbox or offleash.Sandbox.create(**options)
        functions = (self._run_code, self._run_command)
        super().__init__([create_tool_from_function(function, name=function.__name__[1:]) for function in functions])

    def _run_code(self, code: Annotated[str, "the Python to run"]) -> str:
        """Runs Python that keeps its variables, and answers with what it printed and its last value."""
        execution = self.sandbox.run_code(code)
        said = "".join(execution.logs.stdout + execution.logs.stderr)
        if execution.error:
            return said + execution.error.traceback
        return said + (execution.text or "")

    def _run_command(self, command: Annotated[str, "a line of bash"]) -> str:
        """Runs a line of bash, and answers with what it wrote."""
        result = self.sandbox.run(command, timeout=300)
        said = result.stdout + result.stderr
        return said if result.ok else f"{said}\nexit code {result.exit_code}"

    def close(self):
        """Ends the sandbox."""
        self.sandbox.kill()
