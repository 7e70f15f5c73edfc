"""Tools of CrewAI: code and commands of its agents run in a sandbox of offleash."""

from crewai.tools import BaseTool
from pydantic import Field

import offleash


class _InSandbox(BaseTool):
    sandbox: object = Field(exclude=True)


class RunCode(_InSandbox):
    name: str = "run_code"
    description: str = "Runs Python that keeps its variables, and answers with what it printed and its last value."

    def _run(self, code: str) -> str:
        execution = self.sandbox.run_code(code)
        said = "".join(execution.logs.stdout + execution.logs.stderr)
        return said + (execution.error.traceback if execution.error else execution.text or "")


class RunCommand(_InSandbox):
    name: str = "run_command"
    description: str = "Runs a line of bash, and answers with what it wrote."

    def _run(self, command: str) -> str:
        result = self.sandbox.run(command, timeout=300)
        said = result.stdout + result.stderr
        return said if result.ok else f"{said}\nexit code {result.exit_code}"


def offleash_tools(sandbox=None, **options):
    """`Agent(tools=offleash_tools(…))`; takes a sandbox, or what `offleash.Sandbox.create` takes. `tools[0].sandbox.kill()` ends it."""
    sandbox = sandbox or offleash.Sandbox.create(**options)
    return [RunCode(sandbox=sandbox), RunCommand(sandbox=sandbox)]
