"""The hook as a program, with an event as Claude Code writes it, and what it answers run by a shell as Claude Code does."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HOOK = Path(__file__).with_name("offleash_hook.py")


def asked(event):
    said = subprocess.run([sys.executable, HOOK], input=json.dumps(event), capture_output=True, text=True, check=True)
    return json.loads(said.stdout)


with tempfile.TemporaryDirectory() as place:
    project = Path(place) / "project"
    project.mkdir()
    secret = Path(place) / "secret"
    secret.write_text("secret")
    event = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "cwd": str(project), "session_id": "s"}
    command = f"echo made > made.txt; cat {secret}; echo \"it's $((40 + 2))\""
    event["tool_input"] = {"command": command, "description": "d"}
    updated = asked(event)["hookSpecificOutput"]["updatedInput"]
    assert updated["description"] == "d"
    ran = subprocess.run(["/bin/sh", "-c", updated["command"]], capture_output=True, text=True, cwd=project, env=dict(os.environ))
    assert "it's 42" in ran.stdout, ran
    assert "secret" not in ran.stdout, ran
    assert (project / "made.txt").read_text() == "made\n", ran
    assert asked({"tool_name": "Read", "tool_input": {"file_path": "x"}}) == {}
# Only 2 keeps a command from being run.
for given, options in [("no event", ""), (json.dumps(event), "--allow 'x")]:
    env = {**os.environ, "OFFLEASH_HOOK_OPTIONS": options}
    refused = subprocess.run([sys.executable, HOOK], input=given, capture_output=True, text=True, env=env)
    assert (refused.returncode, refused.stdout) == (2, ""), refused
    assert "was not run" in refused.stderr, refused
print("ok")
