"""A trial of Harbor's own command line with its oracle agent, and what an environment has beside it. Needs Python 3.12."""

import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

from offleash import Sandbox
from offleash_harbor import OffleashEnvironment

TASK = """\
version = "1.0"
[metadata]
[agent]
timeout_sec = 120.0
[verifier]
timeout_sec = 120.0
[environment]
cpus = 1
memory_mb = 512
"""


def task_in(place):
    task = Path(place) / "task"
    for name, text in {
        "task.toml": TASK,
        "instruction.md": "Write `hi` to /home/user/answer.",
        "environment/Dockerfile": "FROM scratch\n",
        "solution/solve.sh": "#!/bin/bash\necho hi > /home/user/answer\n",
        "tests/test.sh": "#!/bin/bash\ngrep -qx hi /home/user/answer; echo $((1 - $?)) > /logs/verifier/reward.txt\n",
    }.items():
        path = task / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return task


async def environment(place):
    task = task_in(place)
    arguments = dict(
        environment_dir=task / "environment",
        environment_name="task",
        session_id="task__1__env",
        trial_paths=TrialPaths(trial_dir=Path(place) / "trial"),
        logger=logging.getLogger("test"),
        network_policy=NetworkPolicy(network_mode=NetworkMode.NO_NETWORK),
    )
    inside = OffleashEnvironment(template="base", task_env_config=EnvironmentConfig(memory_mb=256), **arguments)
    await inside.start(force_build=False)
    ended = await inside.exec("echo $A; id -un; pwd; exit 3", env={"A": "it's"}, cwd="/tmp")
    assert (ended.return_code, ended.stdout) == (3, "it's\nroot\n/tmp\n"), ended
    assert (await inside.exec("id -un", user="user")).stdout == "user\n"
    try:
        await inside.exec("sleep 9", timeout_sec=1)
    except RuntimeError as error:
        assert "timed out" in str(error)
    else:
        raise AssertionError("its time was up")
    here = Path(place) / "files"
    (here / "dir").mkdir(parents=True)
    (here / "dir" / "a").write_text("a")
    await inside.upload_dir(here, "/srv/files")
    await inside.upload_file(here / "dir" / "a", "/srv/files/b")
    await inside.download_dir("/srv/files", Path(place) / "back")
    assert sorted(path.name for path in (Path(place) / "back").rglob("*")) == ["a", "b", "dir"]
    await inside.download_file("/srv/files/b", Path(place) / "b")
    assert (Path(place) / "b").read_text() == "a" and await inside.is_dir("/srv/files")
    info = Sandbox.get_info(inside._sandbox.sandbox_id)
    assert (info.memory_mb, info.raw["policy"]["internet"]) == (256, False), info
    await inside.stop(delete=True)
    try:
        OffleashEnvironment(task_env_config=EnvironmentConfig(), **{**arguments, "environment_dir": Path(place)})
    except FileNotFoundError:
        pass
    else:
        raise AssertionError("there is no Dockerfile")


def trial(place):
    words = [sys.executable, "-m", "harbor.cli.main", "trial", "start", "-p", task_in(place), "-a", "oracle"]
    words += ["-e", "offleash_harbor:OffleashEnvironment", "--environment-kwarg", "template=base", "--trials-dir", Path(place) / "trials"]
    variables = {**os.environ, "HOME": place, "HARBOR_TELEMETRY": "0", "NO_COLOR": "1"}
    ended = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended
    (result,) = Path(place).glob("trials/*/result*.json")
    told = json.loads(result.read_text())
    assert told["verifier_result"]["rewards"] == {"reward": 1.0}, told


with tempfile.TemporaryDirectory() as place:
    asyncio.run(environment(place))
with tempfile.TemporaryDirectory() as place:
    trial(place)
assert not list(Sandbox.list())
print("ok")
