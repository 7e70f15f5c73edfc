"""What the library and adapters take beside a bare client that sends the same requests: medians, in milliseconds.

    PYTHONPATH=clients/python/src:integrations/ag2:integrations/pydantic_ai python3 clients/python/scripts/measure.py [TIMES]

All ask one server, which runs or is started as the library does it. What is compared is done in turns, so that what the machine
does beside changes all alike. An adapter whose framework is not installed is left out, and that is said.
"""

import statistics
import sys
import time
import uuid

import httpx

import offleash
from offleash import Sandbox, _connection


def timed(work):
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def in_turns(times, works):
    """How long each took in each round, of which a first one is not counted."""
    taken = {name: [] for name in works}
    names = list(works)
    for number in range(times + 1):
        # Another one begins each time.
        first = number % len(names)
        for name in names[first:] + names[:first]:
            took = timed(works[name])
            if number:
                taken[name].append(took)
    return taken


def medians(taken):
    return {name: statistics.median(each) for name, each in taken.items()}


def between(taken, one, other, how):
    """The median of what is between two of a round, which does not change with what the machine does beside."""
    return statistics.median(map(how, taken[one], taken[other]))


def bare_client():
    """An HTTP client that knows nothing of the library, at the same socket."""
    connection = _connection.resolve()
    transport = httpx.HTTPTransport(uds=connection.socket)
    return httpx.Client(base_url=connection.base_url, headers=connection.headers, transport=transport, timeout=60)


def create_and_run(times):
    """A sandbox, its first command, and its end."""
    client = bare_client()
    made = []

    def bare():
        body = {"name": f"bare-{uuid.uuid4()}"}
        answer = client.post("/v1/sandboxes", json=body, headers={"Idempotency-Key": str(uuid.uuid4())})
        sandbox = answer.json()["id"]
        ran = client.post(f"/v1/sandboxes/{sandbox}/run", json={"shell": "echo hi"})
        assert ran.json()["stdout"] == "hi\n", ran.text
        made.append(sandbox)

    def library():
        sandbox = Sandbox.create(name=f"library-{uuid.uuid4()}")
        assert sandbox.run("echo hi").stdout == "hi\n"
        made.append(sandbox.sandbox_id)

    found = in_turns(times, {"bare client": bare, "library": library})
    for sandbox in made:
        Sandbox.kill(sandbox)
    return found


def ag2(sandbox):
    import asyncio

    from offleash_ag2 import OffleashSandbox

    loop = asyncio.new_event_loop()
    adapter = OffleashSandbox()
    adapter._sandbox = loop.run_until_complete(offleash.AsyncSandbox.connect(sandbox.sandbox_id))
    run = adapter._sandbox.run
    return (
        lambda: loop.run_until_complete(adapter.exec(["true"])),
        lambda: loop.run_until_complete(run("true 2>&1", cwd="/home/user", timeout=60)),
    )


def pydantic_ai(sandbox):
    import asyncio

    from offleash_pydantic_ai import OffleashToolset

    loop = asyncio.new_event_loop()
    toolset = OffleashToolset()
    toolset._sandbox = loop.run_until_complete(offleash.AsyncSandbox.connect(sandbox.sandbox_id))
    return (
        lambda: loop.run_until_complete(toolset.run_code("1 + 1")),
        lambda: loop.run_until_complete(toolset._sandbox.run_code("1 + 1")),
    )


def modal(sandbox):
    import offleash.modal as names

    same = names.Sandbox.from_id(sandbox.sandbox_id)

    def adapter():
        process = same.exec("/bin/bash", "-l", "-c", "true")
        assert process.wait() == 0

    def library():
        handle = sandbox.commands.run("true", background=True, user="root")
        handle.wait()

    return adapter, library


def main():
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    taken = create_and_run(times)
    ratio = between(taken, "library", "bare client", lambda one, other: one / other)
    report = {"create and first command": {**medians(taken), "ratio": ratio}}
    with Sandbox.create(timeout=600) as sandbox:
        for made in (ag2, pydantic_ai, modal):
            try:
                adapter, library = made(sandbox)
            except ImportError as error:
                print(f"left out: {made.__name__}: {error}", file=sys.stderr)
                continue
            taken = in_turns(times, {"adapter": adapter, "library": library})
            adds = between(taken, "adapter", "library", lambda one, other: one - other)
            report[made.__name__] = {**medians(taken), "adds": adds}
    for what, numbers in report.items():
        print(f"{what}: " + ", ".join(f"{name} {number:.2f}" for name, number in numbers.items()))


if __name__ == "__main__":
    main()
