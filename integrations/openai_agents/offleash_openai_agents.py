"""Tools of the OpenAI Agents SDK: a shell and a code interpreter whose commands run in a sandbox of offleash."""

from agents import ShellCallOutcome, ShellCommandOutput, ShellResult, ShellTool, function_tool

import offleash


def shell_tool(sandbox, **options):
    """`Agent(tools=[shell_tool(sandbox)])` with an `offleash.AsyncSandbox`."""

    async def execute(request):
        action = request.data.action
        limit = (action.timeout_ms or 0) / 1000
        outputs = [await _run(sandbox, command, limit) for command in action.commands]
        return ShellResult(output=outputs, max_output_length=action.max_output_length)

    return ShellTool(executor=execute, **options)


async def _run(sandbox, command, limit):
    result = await sandbox.run(command, timeout=limit)
    code = result.exit_code if result.exit_code is not None else 128 + (result.signal or 0)
    outcome = ShellCallOutcome("timeout") if result.timed_out else ShellCallOutcome("exit", code)
    return ShellCommandOutput(stdout=result.stdout, stderr=result.stderr, outcome=outcome, command=command)


def code_tool(sandbox):
    """A tool that any model can call: Python that keeps its variables."""

    @function_tool
    async def run_python(code: str) -> str:
        """Runs Python that keeps its variables, and answers with what it printed and its last value.

        Args:
            code: The Python to run.
        """
        execution = await sandbox.run_code(code)
        said = "".join(execution.logs.stdout + execution.logs.stderr)
        return said + (execution.error.traceback if execution.error else execution.text or "")

    return run_python


__all__ = ["code_tool", "offleash", "shell_tool"]
