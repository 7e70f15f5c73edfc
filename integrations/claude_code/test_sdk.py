"""The Claude Agent SDK with the hook itself, and a script in the model's place."""

import asyncio
import os
import tempfile
from pathlib import Path

from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, ResultMessage, query

from offleash_hook import pre_tool_use
from scripted_model import ScriptedModel
from test_claude import CLAUDE, results


async def main():
    with tempfile.TemporaryDirectory() as place:
        project, secret = Path(place) / "project", Path(place) / "secret"
        project.mkdir()
        secret.write_text("a secret of the machine")
        line = f"echo made > made.txt; cat {secret}; echo answer $((40 + 2))"
        with ScriptedModel([{"tool": "Bash", "input": {"command": line}}, {"text": "made it"}]) as model:
            options = ClaudeAgentOptions(
                hooks={"PreToolUse": [HookMatcher(matcher="Bash", hooks=[pre_tool_use])]},
                allowed_tools=["Bash"],
                cli_path=CLAUDE,
                cwd=project,
                env={
                    "HOME": place,
                    "ANTHROPIC_BASE_URL": model.url,
                    "ANTHROPIC_API_KEY": "none",
                    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                    "DISABLE_AUTOUPDATER": "1",
                },
            )
            said = [message async for message in query(prompt="make it", options=options)]
        assert isinstance(said[-1], ResultMessage) and said[-1].result == "made it", said
        (result,) = results(model)
        assert "answer 42" in result and "a secret" not in result and "No such file" in result, result
        assert (project / "made.txt").read_text() == "made\n"


os.environ.setdefault("OFFLEASH_BINARY", "offleash")
asyncio.run(main())
print("ok")
