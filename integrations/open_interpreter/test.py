"""Open Interpreter with a script in the model's place, and its terminal by itself."""

import os
import tempfile

os.environ["HOME"] = tempfile.mkdtemp(prefix="offleash-")
os.environ.update(ANONYMIZED_TELEMETRY="false", LITELLM_LOCAL_MODEL_COST_MAP="True")

from interpreter import OpenInterpreter

from offleash import Sandbox
from offleash_open_interpreter import use
from scripted_model import ScriptedModel

interpreter = OpenInterpreter(auto_run=True, offline=True, disable_telemetry=True)
use(interpreter, allow_internet_access=False)
run = interpreter.computer.terminal.run


def said(language, code):
    return "".join(piece["content"] for piece in run(language, code) if piece.get("format") == "output")


assert said("python", "x = 20\nprint('hi')").strip() == "hi"
assert said("python", "x + 22").strip() == "42"
assert "ZeroDivisionError" in said("python", "1 / 0")
assert said("shell", "cd /tmp; pwd").strip() == "/tmp"
assert said("shell", "pwd; id -un").split() == ["/tmp", "user"]
assert "Failed to install" in said("shell", "apt install no-such-package"), "that would be this machine"
assert interpreter.computer.terminal.get_language("ruby") is None, "no other language is run"

with ScriptedModel([{"tool": "execute", "input": {"language": "python", "code": "print(x * 2)"}}, {"text": "It is 40."}]) as model:
    interpreter.llm.model, interpreter.llm.api_base, interpreter.llm.api_key = "openai/scripted", f"{model.url}/v1", "none"
    interpreter.llm.supports_functions, interpreter.llm.supports_vision = True, False
    interpreter.llm.context_window, interpreter.llm.max_tokens = 8000, 1000
    messages = interpreter.chat("What is twice x?", display=False)
assert any(message.get("role") == "computer" and message["content"].strip() == "40" for message in messages), messages
assert messages[-1]["content"] == "It is 40.", messages
interpreter.computer.terminate()
assert not list(Sandbox.list())
print("ok")
