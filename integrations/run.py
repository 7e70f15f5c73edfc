#!/usr/bin/env python3
"""Runs the tests of integrations, each with the released packages of its framework; prints what passed.

    python3 integrations/run.py [NAME…]

OFFLEASH_BINARY names the program, which is in PATH otherwise. Packages are installed once below `target/integrations`;
`--fresh` installs them anew. What cannot be installed is skipped.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "integrations"
#: How long installing, and a test, may take, seconds.
INSTALL_TIMEOUT = 600
TEST_TIMEOUT = 600


def interpreter_for(name):
    """A Python that is new enough for an integration: this one, or another in PATH."""
    asked = HERE / name / "python.txt"
    least = tuple(map(int, asked.read_text().split("."))) if asked.exists() else (3, 9)
    if sys.version_info >= least:
        return sys.executable
    found = filter(None, (shutil.which(f"python3.{minor}") for minor in range(least[1], least[1] + 8)))
    # A name may be there that starts nothing.
    python = next((path for path in found if subprocess.run([path, "-V"], capture_output=True).returncode == 0), None)
    if python is None:
        raise OSError(f"it needs Python {'.'.join(map(str, least))}")
    return python


def installed_python(name, place):
    packages = (HERE / name / "packages.txt").read_text().split()
    return installed(place, ["httpx>=0.24", *packages], lambda: interpreter_for(name))


def installed(place, packages, interpreter):
    """The Python of an environment with packages of pip, which is made once."""
    python = place / "bin" / "python"
    if not python.exists():
        # With the pip that is here, which is made once.
        subprocess.run([interpreter(), "-m", "venv", "--without-pip", place], check=True, timeout=INSTALL_TIMEOUT)
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--disable-pip-version-check", "--no-compile"]
        subprocess.run([*pip, *packages], check=True, timeout=INSTALL_TIMEOUT)
    return python


def installed_programs(name, place):
    """Packages of npm that a test in Python runs the programs of; without their scripts, as all here."""
    packages = HERE / name / "npm.txt"
    if packages.exists() and not (place / "npm").exists():
        npm = ["npm", "install", "--loglevel=error", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"]
        (place / "npm").mkdir()
        try:
            subprocess.run([*npm, "--prefix", place / "npm", *packages.read_text().split()], check=True, timeout=INSTALL_TIMEOUT)
        except BaseException:
            shutil.rmtree(place / "npm")
            raise


def installed_javascript(name, place):
    if not (place / "node_modules").exists():
        place.mkdir(parents=True, exist_ok=True)
        npm = ["npm", "install", "--loglevel=error", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock"]
        wanted = json.loads((HERE / name / "package.json").read_text())["dependencies"]
        packages = [f"{package}@{version}" for package, version in wanted.items() if package != "offleash"]
        subprocess.run([*npm, "--prefix", place, *packages], check=True, timeout=INSTALL_TIMEOUT)
        (place / "node_modules" / "offleash").symlink_to(ROOT / "clients" / "javascript")
    for file in (HERE / name).glob("*.js*"):
        shutil.copy(file, place)
    return place


def prepared(name):
    """What runs each test of an integration, or why its packages are not there."""
    place = TARGET / name
    if "--fresh" in sys.argv:
        shutil.rmtree(place, ignore_errors=True)
    try:
        if (HERE / name / "package.json").exists():
            return [["node", installed_javascript(name, place) / "test.js"]]
        python = installed_python(name, place)
        installed_programs(name, place)
        return [[python, "-s", test] for test in sorted((HERE / name).glob("test*.py"))]
    except (subprocess.SubprocessError, OSError) as error:
        shutil.rmtree(place, ignore_errors=True)
        return error


def tested(label, command, environment):
    """Whether a test is good; says so."""
    began = time.monotonic()
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TEST_TIMEOUT)
        good, said = ended.returncode == 0, ended.stdout + ended.stderr
    except subprocess.TimeoutExpired as error:
        good, said = False, f"it did not end within {error.timeout} s"
    print(f"ok {label} ({time.monotonic() - began:.1f} s)" if good else f"FAILED {label}\n{said}", flush=True)
    return good


#: Ends what tests left, and the server.
CLEAN = """
from offleash import Sandbox, daemon
socket = daemon.private_state() / "api.sock"
if daemon.answers(socket):
    for left in list(Sandbox.list()):
        Sandbox.kill(left.sandbox_id)
    daemon.stop()
"""


def cleaned(environment):
    """Whether the server that tests share has ended, and what they left."""
    try:
        # What the library needs; tests in JavaScript bring no Python of their own.
        python = installed(TARGET / "library", ["httpx>=0.24"], lambda: sys.executable)
        return subprocess.run([python, "-s", "-c", CLEAN], env=environment, check=False).returncode == 0
    except (subprocess.SubprocessError, OSError) as error:
        print(f"a server may go on, which cannot be asked to end: {error}", flush=True)
        return False


def removed(state):
    """Removes the state, in which the last processes of sandboxes may write as they end."""
    deadline = time.monotonic() + 10
    while state.exists() and time.monotonic() < deadline:
        shutil.rmtree(state, ignore_errors=True)
        time.sleep(0.1)
    if state.exists():
        print(f"`{state}` is left", flush=True)


def main():
    known = sorted({path.parent.name for path in HERE.glob("*/test*.*")})
    options = {word for word in sys.argv[1:] if word.startswith("-")} - {"--fresh"}
    if options:
        print(f"{__doc__.rstrip()}\n\nWithout a name all are run: {', '.join(known)}")
        sys.exit(0 if options <= {"-h", "--help"} else 2)
    names = [word for word in sys.argv[1:] if not word.startswith("-")]
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"there is no integration `{unknown[0]}` with tests; there are: {', '.join(known)}")
    state = Path(tempfile.mkdtemp(prefix="offleash-"))
    paths = [ROOT / "clients" / "python" / "src", HERE]
    # A server that the user has is not for tests, which end all sandboxes in the end.
    others = ("OFFLEASH_URL", "OFFLEASH_HOST", "OFFLEASH_API_KEY")
    environment = {name: value for name, value in os.environ.items() if name not in others}
    shared = {**environment, "PYTHONDONTWRITEBYTECODE": "1", "XDG_STATE_HOME": str(state), "OFFLEASH_STATE": f"{state}/nobody"}
    failed = 0
    try:
        for name in names or known:
            commands = prepared(name)
            if isinstance(commands, Exception):
                print(f"SKIP {name}: its packages are not installed: {commands}", flush=True)
                continue
            environment = {**shared, "PYTHONPATH": os.pathsep.join(map(str, [*paths, HERE / name]))}
            environment["OFFLEASH_NODE_MODULES"] = str(TARGET / name / "npm" / "node_modules")
            for command in commands:
                failed += not tested(f"{name}/{Path(command[-1]).name}", command, environment)
    finally:
        if (state / "offleash-library" / "api.sock").exists():
            failed += not cleaned({**shared, "PYTHONPATH": str(paths[0])})
        removed(state)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
