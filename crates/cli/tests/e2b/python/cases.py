"""Runs the cases of the modules that are named, each by itself, and says which failed.

A case is a function with a sandbox as its only parameter, or with none; one that cannot run here raises `Skip`.
"""

import asyncio
import faulthandler
import importlib
import inspect
import os
import sys
import time
import traceback
from importlib.metadata import version

CASES = []
# What a case may take at most; a healthy one takes a hundredth of it.
PATIENCE = 120


class Skip(Exception):
    """A case that cannot run here, and why."""


def case(function):
    CASES.append(function)
    return function


def sdk_at_least(*wanted):
    return tuple(int(part) for part in version("e2b").split(".")[: len(wanted)]) >= wanted


def raises(kind, call, *arguments, **named):
    """Calls, and answers the exception, which must be of this kind and name nothing of the host."""
    try:
        answer = call(*arguments, **named)
    except kind as error:
        return nothing_of_the_host(error)
    raise AssertionError(f"{kind} was not raised, but this answered: {answer!r}")


async def raises_later(kind, awaitable):
    try:
        answer = await awaitable
    except kind as error:
        return nothing_of_the_host(error)
    raise AssertionError(f"{kind} was not raised, but this answered: {answer!r}")


def nothing_of_the_host(error):
    # The state directory of the server is below it.
    assert os.environ["HOME"] not in str(error), error
    return error


def says(error, *words):
    for word in words:
        assert word in str(error), f"{word!r} is not in {error}"


def eventually(what, condition):
    """Asks until the answer is true."""
    deadline = time.monotonic() + PATIENCE / 2
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"never: {what()}"
        time.sleep(0.05)
    return answer


async def eventually_later(what, condition):
    deadline = time.monotonic() + PATIENCE / 2
    while not (answer := await condition()):
        assert time.monotonic() < deadline, f"never: {what()}"
        await asyncio.sleep(0.05)
    return answer


def equal(is_value, wanted):
    assert is_value == wanted, f"{is_value!r} instead of {wanted!r}"


def run(function):
    from e2b import AsyncSandbox, Sandbox

    wants_sandbox = bool(inspect.signature(function).parameters)
    if inspect.iscoroutinefunction(function):

        async def in_sandbox():
            if not wants_sandbox:
                return await function()
            async with await AsyncSandbox.create() as sandbox:
                await function(sandbox)

        asyncio.run(asyncio.wait_for(in_sandbox(), PATIENCE))
    elif wants_sandbox:
        with Sandbox.create() as sandbox:
            function(sandbox)
    else:
        function()


def main():
    for module in sys.argv[1:]:
        importlib.import_module(module)
    failed = 0
    for function in CASES:
        name = f"{function.__module__}.{function.__name__}"
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        try:
            run(function)
            print(f"ok {name}", flush=True)
        except Skip as reason:
            print(f"SKIP: {name}: {reason}", flush=True)
        except BaseException:
            failed += 1
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
        finally:
            faulthandler.cancel_dump_traceback_later()
    print(f"{len(CASES)} cases, {failed} failed", flush=True)
    # The SDK's client has native threads of its own, which abort the program if they are late when the interpreter goes.
    sys.stderr.flush()
    os._exit(1 if failed or not CASES else 0)


if __name__ == "__main__":
    # The modules of cases import this file by its name.
    import cases

    cases.main()
