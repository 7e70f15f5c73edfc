"""The task and the index as SkyPilot's own code takes them: its reader and its schema. No cloud is asked. `test_dryrun.py` has a dry run.

What `setup` does is done here, too, with the program."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent


def task():
    import sky
    import yaml

    with tempfile.TemporaryDirectory() as place:
        # What it uploads must be there.
        (Path(place) / "offleash").write_bytes(b"")
        os.chdir(place)
        text = (HERE / "server.yaml").read_text()
        key = "e2b_" + "6" * 40
        read = sky.Task.from_yaml_config(yaml.safe_load(text), None, [("OFFLEASH_KEY", key)])
        os.chdir(HERE)
    assert read.name == "offleash-server" and read.num_nodes == 1
    (resources,) = read.resources
    assert (resources.cpus, resources.memory, resources.disk_size) == ("4+", "8+", 100)
    assert not resources.ports, "a port is opened"
    # The key is a secret: it is given beside the task, and not shown with it.
    assert "OFFLEASH_KEY" in read.secrets and not re.search("e2b_[0-9a-f]{40}", text)
    assert key not in str(read.to_yaml_config(use_user_specified_yaml=True)) and key not in repr(read)
    wrong = text.replace("disk_size: 100", "disk_sizes: 100")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(wrong)
        file.flush()
        try:
            sky.Task.from_yaml(file.name)
            raise AssertionError("a key that is none was taken")
        except ValueError:
            pass
    return read


def scripts(read):
    """`setup` and `run` are programs of a shell, in which the key is named by its variable alone."""
    for script in (read.setup, read.run):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def setup_runs(read):
    """What `setup` does on a machine, with `sudo` and a home of its own here: it makes the key valid and the configuration good."""
    binary = os.environ.get("OFFLEASH_BINARY", "offleash")
    with tempfile.TemporaryDirectory() as place:
        home, bin_directory = Path(place) / "home", Path(place) / "bin"
        home.mkdir()
        bin_directory.mkdir()
        (bin_directory / "sudo").write_text("#!/bin/sh\nexit 0\n")
        (bin_directory / "sudo").chmod(0o755)
        (bin_directory / "offleash").symlink_to(subprocess.run(["which", binary], capture_output=True, text=True, check=True).stdout.strip())
        key = "e2b_" + "5" * 40
        environment = {"PATH": f"{bin_directory}:{os.environ['PATH']}", "HOME": str(home), "OFFLEASH_KEY": key, "OFFLEASH_MAX_SANDBOXES": "3"}
        done = subprocess.run(["bash", "-c", read.setup], env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done
        assert "the configuration is good" in done.stdout and key not in done.stdout + done.stderr, done
        assert (home / "offleash" / "key").stat().st_mode & 0o077 == 0
        listed = subprocess.run(["offleash", "key", "ls", "--state", home / "offleash" / "state"], env=environment, capture_output=True, text=True, check=True)
        assert "cluster" in listed.stdout, listed
        again = subprocess.run(["bash", "-c", read.setup], env=environment, capture_output=True, text=True, timeout=120)
        assert again.returncode == 0, again


def index():
    sys.path.insert(0, str(HERE))
    import servers

    up = SimpleNamespace(value="UP")
    clusters = [
        {"name": "offleash-1", "status": up, "handle": SimpleNamespace(launched_nodes=2)},
        {"name": "offleash-2", "status": SimpleNamespace(value="STOPPED"), "handle": SimpleNamespace(launched_nodes=1)},
        {"name": "other", "status": up, "handle": SimpleNamespace(launched_nodes=1)},
    ]
    assert servers.hosts(clusters) == ["offleash-1", "offleash-1-worker1"], servers.hosts(clusters)


def main():
    read = task()
    scripts(read)
    setup_runs(read)
    index()
    print("ok")


if __name__ == "__main__":
    main()
