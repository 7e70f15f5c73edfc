"""What runs cases against a server that the library starts itself; says which failed, and ends the server."""

import asyncio
import inspect
import os
import re
import sys
import time
import traceback

import offleash
from offleash import Sandbox, volumes

CASES = []

#: Who `root` is inside: a server of an ordinary user has one user for all.
ROOT = ("root", 0) if os.geteuid() == 0 else ("user", 1000)


def case(function):
    CASES.append(function)
    return function


def equal(value, wanted):
    assert value == wanted, f"{value!r} instead of {wanted!r}"


def raises(kind, call, *arguments, **named):
    try:
        answer = call(*arguments, **named)
    except kind as error:
        return error
    raise AssertionError(f"{kind} was not raised, but this answered: {answer!r}")


def eventually(condition):
    deadline = time.monotonic() + 30
    while not (answer := condition()):
        assert time.monotonic() < deadline, "never"
        time.sleep(0.02)
    return answer


def examples(path):
    """The examples of a document, each a case of its own."""
    with open(path) as document:
        text = document.read()
    for number, found in enumerate(re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S), 1):
        line = text[: found.start()].count("\n") + 1

        def example(code="\n" * line + found.group(1)):
            exec(compile(code, path, "exec"), {"__name__": "example"})

        example.__name__ = f"example_{number}_of_{os.path.basename(path)}"
        CASES.append(example)


def run(function, shared=[]):
    """Runs a case; those that want a sandbox share one."""
    wants_sandbox = any(parameter.default is parameter.empty for parameter in inspect.signature(function).parameters.values())
    if inspect.iscoroutinefunction(function):
        asyncio.run(asyncio.wait_for(function(), 60))
    elif wants_sandbox:
        shared or shared.append(Sandbox.create(timeout=600))
        function(shared[0])
    else:
        function()


def main():
    for path in sys.argv[1:]:
        examples(path)
    failed = 0
    only = os.environ.get("ONLY")
    for function in CASES:
        if only and only not in function.__name__:
            continue
        began = time.monotonic()
        try:
            run(function)
            print(f"ok {function.__name__} {time.monotonic() - began:.2f} s", flush=True)
        except BaseException:
            failed += 1
            print(f"FAILED {function.__name__}\n{traceback.format_exc()}", flush=True)
    for left in list(Sandbox.list()):
        Sandbox.kill(left.sandbox_id)
    for left in list(Sandbox.list_snapshots()):
        Sandbox.delete_snapshot(left.snapshot_id)
    for left in volumes.list():
        eventually(lambda: not volumes.get(left).in_use)
        volumes.remove(left)
    offleash.daemon.stop()
    print(f"{len(CASES)} cases, {failed} failed", flush=True)
    sys.exit(1 if failed else 0)
