#!/usr/bin/env python3
"""A hook of Claude Code, of the Claude Agent SDK and of Codex: what the tool Bash is to run, runs in a sandbox of offleash.

As a program it is a `PreToolUse` hook of Claude Code's settings (`settings.json`), and with `--codex` of Codex's
(`../codex/hooks.json`). The SDK takes `pre_tool_use` itself.
Changes of the workspace are written back as the mode says: `OFFLEASH_HOOK_MODE` is `rw` (the default), `overlay` or `ro`.
"""

import json
import os
import shlex
import sys


def sandboxed(command, cwd):
    """The same command, in a sandbox whose workspace is the directory."""
    mode = os.environ.get("OFFLEASH_HOOK_MODE", "rw")
    options = shlex.split(os.environ.get("OFFLEASH_HOOK_OPTIONS", ""))
    program = os.environ.get("OFFLEASH_BINARY", "offleash")
    return shlex.join([program, "run", "--quiet", "--workspace", f"{cwd}:{mode}", *options, "--", "bash", "-c", "--", command])


def answer(event):
    """What the hook says to an event."""
    given = event.get("tool_input", {})
    if event.get("tool_name") != "Bash" or not given.get("command"):
        return {}
    updated = {**given, "command": sandboxed(given["command"], event.get("cwd") or os.getcwd())}
    # Who asks before commands is still asked: this only says what is run.
    return {"hookSpecificOutput": {"hookEventName": "PreToolUse", "updatedInput": updated}}


async def pre_tool_use(event, tool_use_id, context):
    """`ClaudeAgentOptions(hooks={"PreToolUse": [HookMatcher(matcher="Bash", hooks=[pre_tool_use])]})`."""
    return answer(event)


def main():
    """Answers on standard output. What it cannot answer is not run: exit code 2 says so, any other would let it pass."""
    try:
        said = answer(json.load(sys.stdin))
        if said and "--codex" in sys.argv:
            # Codex takes another command only with its permission.
            said["hookSpecificOutput"]["permissionDecision"] = "allow"
    except Exception as error:
        print(f"offleash: the command was not run, since it cannot be put in a sandbox: {error}", file=sys.stderr)
        sys.exit(2)
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main()
