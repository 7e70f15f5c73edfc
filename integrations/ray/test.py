"""The adapter on a cluster of two nodes, which are two raylets of this machine with a state directory each."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import offleash_ray
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

RAY = [sys.executable, "-s", "-m", "ray.scripts.scripts"]
#: For the event that is waited for, seconds.
PATIENCE = 300
#: How often a node is started that gave up: a raylet has 30 seconds, whatever the machine does meanwhile.
ATTEMPTS = 5


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start_node(place, *options):
    """A node, with a state directory of its own."""
    place.mkdir()
    for _ in range(ATTEMPTS):
        node = spawn_node(place, *options)
        log = place / "ray.log"
        wait_until(lambda: node.poll() is not None or "Ray runtime started" in log.read_text(), "a node")
        if node.poll() is None:
            return node
        end_node(node)
    raise AssertionError(f"no node started in {ATTEMPTS} attempts")


def spawn_node(place, *options):
    """A raylet in the foreground of a process group of its own."""
    environment = {**os.environ, "XDG_STATE_HOME": str(place), "RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}
    words = [*RAY, "start", "--block", "--num-cpus=2", "--object-store-memory=80000000", "--disable-usage-stats", *options]
    log = open(place / "ray.log", "wb")
    return subprocess.Popen(words, env=environment, stdout=log, stderr=log, start_new_session=True)


def end_node(node):
    for how in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(node.pid, how)
            node.wait(timeout=30)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def wait_until(true, what):
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.2)


def alive():
    return [node for node in ray.nodes() if node["Alive"]]


def refused(kind, reference):
    try:
        ray.get(reference, timeout=PATIENCE)
    except ray.exceptions.RayTaskError as error:
        assert isinstance(error.cause, kind), repr(error.cause)
        return error.cause
    raise AssertionError(f"{kind} was not raised")


FACTOR = 3


@offleash_ray.sandboxed
def host():
    import os

    return os.uname().nodename, os.getpid()


@offleash_ray.sandboxed(timeout=60, sandbox={"allow_internet_access": False})
def scaled(number, by=1):
    print("inside", number)
    return {"value": number * FACTOR * by, "parts": (1, [b"\x00\xff", None, 2.5])}


@offleash_ray.sandboxed
def fails():
    raise KeyError("a")


@offleash_ray.sandboxed
def answers_an_object():
    return {1, 2}


@offleash_ray.sandboxed
def dies():
    import os

    os._exit(7)


@offleash_ray.sandboxed
def reads_the_host(path):
    import os

    return os.path.exists(path)


@offleash_ray.sandboxed
def lies():
    # As code does that knows where answers are.
    import glob
    import os

    (place,) = glob.glob("/tmp/offleash-call-*")
    with open(place + "/answer.json", "w") as file:
        file.write('{"value": {"pickle": "gASVAAAA"}}')
    os._exit(0)


@offleash_ray.sandboxed(timeout=1)
def sleeps():
    import time

    time.sleep(600)


def state_of(nodes):
    """Which node of Ray has which state directory."""

    @ray.remote(num_cpus=0)
    def state():
        return os.environ["XDG_STATE_HOME"]

    where = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    return ray.get([state.options(scheduling_strategy=strategy).remote() for strategy in where], timeout=PATIENCE)


def on(node, function):
    return function.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False))


def functions(first, second, place):
    secret = place / "secret"
    secret.write_text("of the host")
    # References are resolved by Ray, globals and defaults go along, and every call has a sandbox of its own.
    told = ray.get(on(second, scaled).remote(ray.put(14), by=2), timeout=PATIENCE)
    assert told == {"value": 84, "parts": (1, [b"\x00\xff", None, 2.5])}, told
    assert ray.get([on(node, reads_the_host).remote(str(secret)) for node in (first, second)], timeout=PATIENCE) == [False, False]
    told = refused(offleash_ray.FunctionRaised, on(first, fails).remote())
    assert told.name == "KeyError" and "in fails" in told.traceback, told
    assert "set" in str(refused(offleash_ray.ResultRefused, on(second, answers_an_object).remote()))
    assert "exit code 7" in str(refused(offleash_ray.CallDied, on(first, dies).remote()))
    assert "pickle" in str(refused(offleash_ray.ResultRefused, on(second, lies).remote()))
    refused(offleash_ray.CallTimedOut, on(first, sleeps).remote())
    try:
        scaled(1)
        raise AssertionError("it was called here")
    except TypeError as error:
        assert "scaled.remote" in str(error)


def sandboxes_of(state):
    words = [os.environ.get("OFFLEASH_BINARY", "offleash"), "ls", "--state", f"{state}/offleash-library"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def pool(states):
    with offleash_ray.SandboxPool(2, sandbox={"allow_internet_access": False}) as made:
        ids = ray.get([actor.sandbox_id.remote() for actor in made.actors], timeout=PATIENCE)
        # One on each node, by the servers of the two.
        listed = [sandboxes_of(state) for state in states]
        for identity in ids:
            assert sum(identity in text for text in listed) == 1, listed
        assert sum(identity in listed[0] for identity in ids) == 1, listed
        assert list(made.map(lambda number: number * FACTOR, range(5))) == [0, 3, 6, 9, 12]
        assert sorted(made.map_unordered(len, ["a", "bb"])) == [1, 2]
        assert [ended.exit_code for ended in made.run("echo kept > /tmp/kept")] == [0, 0]
        assert {ended.stdout for ended in made.run("cat /tmp/kept")} == {"kept\n"}
        cells = ray.get([made.actors[0].run_code.remote(code) for code in ("x = 20", "x + 1")], timeout=PATIENCE)
        assert cells[1].text == "21"
    assert made.actors == []


def lost_node(first, second, node):
    """What ran on a node that dies runs again on another, which is Ray's doing; only a call that must be there fails."""
    slow = scaled.options(max_retries=3, scheduling_strategy=NodeAffinitySchedulingStrategy(second["NodeID"], soft=True))
    assert ray.get(slow.remote(1), timeout=PATIENCE)["value"] == 3
    end_node(node)
    wait_until(lambda: len(alive()) == 1, "the end of a node")
    assert ray.get(slow.remote(2), timeout=PATIENCE)["value"] == 6
    try:
        ray.get(on(second, host).remote(), timeout=PATIENCE)
        raise AssertionError("a node that is gone ran it")
    except (ray.exceptions.RayError, ValueError):
        pass
    assert ray.get(on(first, host).remote(), timeout=PATIENCE)[0]


def main():
    # Sockets of Ray have paths of at most 107 bytes.
    place = Path(tempfile.mkdtemp(prefix="ofr", dir="/tmp"))
    nodes, port = [], free_port()
    try:
        head = ["--head", f"--port={port}", "--node-ip-address=127.0.0.1", "--include-dashboard=false", f"--temp-dir={place}/r"]
        nodes.append(start_node(place / "a", *head))
        nodes.append(start_node(place / "b", f"--address=127.0.0.1:{port}", "--node-ip-address=127.0.0.1"))
        ray.init(address=f"127.0.0.1:{port}", log_to_driver=False, _temp_dir=f"{place}/r")
        wait_until(lambda: len(alive()) == 2, "the second node")
        first, second = alive()
        states = state_of([first, second])
        assert len(set(states)) == 2, states
        if states[0].endswith("/b"):
            first, second, states = second, first, states[::-1]
        functions(first, second, place)
        pool(states)
        lost_node(first, second, nodes[1])
    except BaseException:
        for log in place.glob("*/ray.log"):
            print(log, log.read_text()[-3000:], sep="\n")
        raise
    finally:
        if ray.is_initialized():
            ray.shutdown()
        for node in nodes:
            end_node(node)
        for state in place.glob("*/offleash-library"):
            end_server(state.parent)
        shutil.rmtree(place, ignore_errors=True)
    print("ok")


def end_server(state):
    """Ends what a node's server left, and the server."""
    code = "from offleash import Sandbox, daemon\nif daemon.answers(daemon.private_state() / 'api.sock'):\n    for left in list(Sandbox.list()):\n        Sandbox.kill(left.sandbox_id)\n    daemon.stop()"
    subprocess.run([sys.executable, "-s", "-c", code], env={**os.environ, "XDG_STATE_HOME": str(state)}, check=False)


if __name__ == "__main__":
    main()
