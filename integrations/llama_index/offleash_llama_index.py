"""Tools of LlamaIndex: code and commands of its agents run in a sandbox of offleash."""

from llama_index.core.tools.tool_spec.base import BaseToolSpec

import offleash


class OffleashToolSpec(BaseToolSpec):
    """`OffleashToolSpec(…).to_tool_list()`; takes a sandbox, or what `offleash.Sandbox.create` takes."""

    spec_functions = ["code_interpreter", "run_command"]

    def __init__(self, sandbox=None, **options):
        self.sandbox = sandbox or offleash.Sandbox.create(**options)

    def code_interpreter(self, code: str) -> str:
        """Runs Python that keeps its variables, and answers with what it printed and its last value."""
        execution = self.sandbox.run_code(code)
        said = "".join(execution.logs.stdout + execution.logs.stderr)
        if execution.error:
            return said + execution.error.traceback
        return said + (execution.text or "")

    def run_command(self, command: str) -> str:
        """Runs a line of bash, and answers with what it wrote."""
        result = self.sandbox.run(command, timeout=300)
        said = result.stdout + result.stderr
        return said if result.ok else f"{said}\nexit code {result.exit_code}"

    def close(self) -> None:
        """Ends the sandbox."""
        self.sandbox.kill()
