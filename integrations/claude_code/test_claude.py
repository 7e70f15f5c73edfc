"""Claude Code itself, with the hook in a project's settings and a script in the model's place."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from scripted_model import ScriptedModel

HERE = Path(__file__).parent
# What npm has installed; its own script, which is not run, would only link this.
CLAUDE = Path(os.environ["OFFLEASH_NODE_MODULES"]) / "@anthropic-ai" / "claude-code-linux-x64" / "claude"


def results(model):
    """What tools were said to have answered."""
    last = model.requests[-1]["messages"]
    blocks = [block for message in last if isinstance(message["content"], list) for block in message["content"]]
    return [json.dumps(block["content"]) for block in blocks if block.get("type") == "tool_result"]


def main():
    with tempfile.TemporaryDirectory() as place:
        project, secret = Path(place) / "project", Path(place) / "secret"
        (project / ".claude").mkdir(parents=True)
        shutil.copy(HERE / "offleash_hook.py", project / ".claude")
        shutil.copy(HERE / "settings.json", project / ".claude")
        secret.write_text("a secret of the machine")
        line = f"echo made > made.txt; cat {secret}; echo answer $((40 + 2)); ls -a /home"
        turns = [{"tool": "Bash", "input": {"command": line, "description": "Makes a file"}}, {"text": "made it"}]
        with ScriptedModel(turns) as model:
            variables = {
                "PATH": os.environ["PATH"],
                "HOME": place,
                "OFFLEASH_BINARY": os.environ.get("OFFLEASH_BINARY", "offleash"),
                "ANTHROPIC_BASE_URL": model.url,
                "ANTHROPIC_API_KEY": "none",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "DISABLE_AUTOUPDATER": "1",
            }
            asked = [CLAUDE, "-p", "make it", "--allowedTools", "Bash", "--output-format", "json"]
            ran = subprocess.run(asked, cwd=project, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180)
            assert ran.returncode == 0, ran
            assert json.loads(ran.stdout)["result"] == "made it", ran.stdout
            (result,) = results(model)
            assert "answer 42" in result, result
            assert "a secret" not in result and "No such file" in result, result
            assert (project / "made.txt").read_text() == "made\n"


if __name__ == "__main__":
    main()
    print("ok")
