"""The executor as an agent calls it; the model is a script."""

import io
import sys
import tarfile
from pathlib import Path

from smolagents import CodeAgent, tool
from smolagents.models import ChatMessage, MessageRole, Model
from smolagents.utils import AgentError

from offleash_smolagents import OffleashExecutor


class Script(Model):
    def __init__(self, *steps):
        super().__init__()
        self.steps = list(steps)

    def generate(self, messages, **named):
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"<code>\n{self.steps.pop(0)}\n</code>")


@tool
def double(number: int) -> int:
    """Doubles a number.

    Args:
        number: What is doubled.
    """
    return 2 * number


def bring_packages(sandbox):
    """What code of tools needs, from here: a sandbox of template `base` has neither, and a test asks no registry."""
    import numpy
    import PIL

    sites = [Path(module.__file__).parents[1] for module in (numpy, PIL)]
    version = sandbox.run("python3 -c 'import sys; print(sys.version_info[:2])'").stdout.strip()
    assert version == str(sys.version_info[:2]), f"run this with the sandbox's Python, {version}"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in ("numpy", "numpy.libs"):
            tar.add(sites[0] / name, name)
        for name in ("PIL", "pillow.libs"):
            tar.add(sites[1] / name, name)
    sandbox.files.write("/tmp/packages.tar", packed.getvalue())
    sandbox.commands.run('site=$(python3 -m site --user-site) && mkdir -p "$site" && tar -xf /tmp/packages.tar -C "$site"')
    executor.installed_packages += ["numpy", "pillow"]


executor = OffleashExecutor(memory_mib=1024)
try:
    bring_packages(executor.sandbox)
    assert executor("x = 20\nprint('hi')\nx + 1").output == "21"
    try:
        executor("1 / 0")
    except AgentError as error:
        assert "ZeroDivisionError" in str(error)
    else:
        raise AssertionError("an error of the code was none")
    executor.send_variables({"given": [1, 2]})
    assert executor("sum(given)").output == "3"
    agent = CodeAgent(tools=[double], model=Script("y = double(21)", "final_answer(y)"), executor=executor, verbosity_level=0)
    assert agent.run("Double 21.") == 42
finally:
    executor.cleanup()
print("ok")
