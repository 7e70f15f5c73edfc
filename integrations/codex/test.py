"""Codex itself, with a script in the model's place: the tools of `offleash mcp`, and its own shell with the hook."""

import json
import os
import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path

from scripted_model import ScriptedModel

HERE = Path(__file__).parent
(CODEX,) = [path for path in Path(os.environ["OFFLEASH_NODE_MODULES"]).glob("@openai/codex-*/vendor/*/**/codex") if path.is_file()]
OFFLEASH = shutil.which(os.environ.get("OFFLEASH_BINARY", "offleash"))
PROVIDER = """\
model = "scripted"
model_provider = "scripted"

[model_providers.scripted]
name = "scripted"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "SCRIPTED_KEY"

"""


def ran(home, turn, configuration, *flags):
    """What a tool was said to have answered."""
    project = Path(home) / "project"
    project.mkdir()
    with ScriptedModel([turn, {"text": "made it"}]) as model:
        (Path(home) / ".codex" / "config.toml").write_text(PROVIDER.format(url=model.url) + configuration)
        path = f"{Path(OFFLEASH).parent}{os.pathsep}{os.environ['PATH']}"
        variables = {"PATH": path, "HOME": home, "SCRIPTED_KEY": "none", "OFFLEASH_BINARY": OFFLEASH}
        asked = [CODEX, "exec", "--skip-git-repo-check", *flags, "make it"]
        ended = subprocess.run(asked, cwd=project, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180)
        assert ended.returncode == 0 and "made it" in ended.stdout, ended
        answers = [item for item in model.requests[-1]["input"] if item["type"] == "function_call_output"]
    assert (project / "made.txt").read_text() == "made\n", answers
    return json.dumps(answers)


def checked(answer):
    assert "answer 42" in answer and "a secret" not in answer and "No such file" in answer, answer


with tempfile.TemporaryDirectory() as place:
    secret = Path(place) / "secret"
    secret.write_text("a secret of the machine")
    line = f"echo made > made.txt; cat {secret}; echo answer $((40 + 2))"
    for way in ("mcp", "hook"):
        (Path(place) / way / ".codex").mkdir(parents=True)
    turn = {"tool": "run_command", "namespace": "mcp__offleash", "input": {"command": line}}
    checked(ran(f"{place}/mcp", turn, (HERE / "config.toml").read_text()))
    tomllib.loads((HERE / "config.toml").read_text())

    codex = Path(place) / "hook" / ".codex"
    shutil.copy(HERE.parent / "claude_code" / "offleash_hook.py", codex)
    shutil.copy(HERE / "hooks.json", codex)
    # Codex has a person trust new hooks; here there is none.
    turn = {"tool": "exec_command", "input": {"cmd": line}}
    checked(ran(f"{place}/hook", turn, "", "--sandbox", "danger-full-access", "--dangerously-bypass-hook-trust"))
print("ok")
