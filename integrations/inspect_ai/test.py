"""An evaluation with a solver that uses the environment; Inspect's own mock stands in for the model."""

import tempfile

import offleash_inspect  # noqa: F401
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import solver
from inspect_ai.util import sandbox


async def refused(kind, awaitable):
    try:
        await awaitable
    except kind:
        return
    raise AssertionError(f"{kind} was not raised")


@solver
def uses_the_sandbox():
    async def solve(state, generate):
        box = sandbox()
        result = await box.exec(["sh", "-c", "read word; echo got $word; pwd; exit 3"], input="x\n")
        assert (result.returncode, result.stdout) == (3, "got x\n/home/user/work\n"), result
        await refused(TimeoutError, box.exec(["sleep", "9"], timeout=1))
        await box.write_file("a/b.txt", "one\r\n")
        assert await box.read_file("a/b.txt") == "one\r\n"
        await box.write_file("c", b"\xff")
        assert await box.read_file("c", text=False) == b"\xff"
        await refused(FileNotFoundError, box.read_file("none"))
        await refused(IsADirectoryError, box.read_file("a"))
        await refused(UnicodeDecodeError, box.read_file("c"))
        await refused(IsADirectoryError, box.write_file("a", "x"))
        state.output.completion = "42"
        return state

    return solve


task = Task(dataset=[Sample("?", target="42")], solver=uses_the_sandbox(), scorer=includes(), sandbox="offleash")
with tempfile.TemporaryDirectory() as logs:
    log = eval(task, model="mockllm/model", log_dir=logs, display="none")[0]
assert log.status == "success", log.error.message + log.error.traceback[-1000:]
assert log.results.scores[0].metrics["accuracy"].value == 1
print("ok")
