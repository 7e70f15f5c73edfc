"""A client of Piston's, unchanged, against the door that speaks its API."""

import asyncio
import os

from piston_rspy import Client, Executor, File

client = Client.with_url_and_key(f"{os.environ['E2B_API_URL']}/api/v2", os.environ["E2B_API_KEY"])


def executor(language, content, version="*", name="main"):
    return Executor().set_language(language).set_version(version).add_file(File(name=name, content=content))


async def main():
    runtimes = {runtime.language: runtime for runtime in await client.fetch_runtimes()}
    python = runtimes["python"]
    assert "py" in python.aliases and python.version.startswith("3."), python
    # Its version is the one that programs see, and another is not there.
    program = "import sys; print('%d.%d.%d' % sys.version_info[:3]); print(sys.argv[1:], input(), file=sys.stderr)"
    wanted = executor("py", program, python.version).set_stdin("read").add_args(["a", "b c"])
    told = await client.execute(wanted)
    assert told.is_ok() and told.language == "python", told
    assert (told.run.stdout, told.run.code) == (python.version + "\n", 0), told
    assert told.run.stderr == "['a', 'b c'] read\n", told
    assert sorted(told.run.output.splitlines()) == sorted([python.version, "['a', 'b c'] read"]), told
    for language, version in [("brainfuck", "*"), ("python", "2.x"), ("python", "latest")]:
        told = await client.execute(executor(language, "1", version))
        assert told.is_err() and told.status == 400, (language, version, told)
    told = await client.execute(executor("python", "import time; time.sleep(60)").set_run_timeout(500))
    assert told.run.signal == "SIGKILL", told
    # Nothing of one run is there in the next, and nothing of the network.
    program = "import os; print(os.path.exists('left')); open('left', 'w'); print(len(os.listdir('/sys/class/net')))"
    for _ in range(2):
        told = await client.execute(executor("python", program))
        assert told.run.stdout.startswith("False\n"), told
    if "c" in runtimes:
        whole = '#include <stdio.h>\nint main(void) { puts("compiled"); return 3; }\n'
        told = await client.execute(executor("c", whole, name="a.c"))
        assert (told.compile.code, told.run.stdout, told.run.code) == (0, "compiled\n", 3), told


asyncio.run(main())
# What it is made of does not always survive the end of the interpreter.
os._exit(0)
