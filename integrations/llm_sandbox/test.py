"""The backend as llm-sandbox calls it."""

import tempfile
from pathlib import Path

import offleash_llm_sandbox  # noqa: F401
from llm_sandbox import SandboxSession

with SandboxSession(backend="offleash", lang="python") as session, tempfile.TemporaryDirectory() as place:
    result = session.run("import sys\nprint(6 * 7)\nprint('e', file=sys.stderr)")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "42\n", "e\n"), result
    assert session.run("raise SystemExit(3)").exit_code == 3
    given = Path(place) / "given.txt"
    given.write_text("there and back")
    session.copy_to_runtime(str(given), "/home/user/sandbox/deep/given.txt")
    session.copy_from_runtime("/home/user/sandbox/deep/given.txt", str(Path(place) / "back.txt"))
    assert (Path(place) / "back.txt").read_text() == "there and back"
    heard = []
    session.execute_command("echo heard", on_stdout=heard.append)
    assert heard == ["heard\n"], heard
with SandboxSession(backend="offleash", lang="javascript") as session:
    result = session.run("console.log(1 + 1)")
    assert result.stdout == "2\n" or result.exit_code == 127, result
print("ok")
