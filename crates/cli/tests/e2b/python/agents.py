"""An agent host, with the official client of the Model Context Protocol: `stdio`, `http` or `server` (standard streams that
lead to a server), and what that needs in variables.

Every case is a function with a function `connect` as its parameter, which opens a session.
"""

import asyncio
import base64
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
import traceback

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

# What a case may take at most; a healthy one takes a hundredth of it.
PATIENCE = 240
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
TOOLS = "create_sandbox kill_sandbox list_files read_file run_code run_command write_file".split()
KINDS = {"stdio": [], "http": [], "server": []}


def case(*kinds):
    def add(function):
        for kind in kinds:
            KINDS[kind].append(function)
        return function

    return add


both = case("stdio", "http")
every = case("stdio", "http", "server")
served = case("http", "server")


@contextlib.asynccontextmanager
async def over_stdio(*flags):
    server = StdioServerParameters(command=os.environ["OFFLEASH"], args=["mcp", *flags], env=dict(os.environ))
    async with stdio_client(server) as (reader, writer), ClientSession(reader, writer) as session:
        await session.initialize()
        yield session


@contextlib.asynccontextmanager
async def http_transport(key=None):
    import httpx2 as httpx
    from mcp.client.streamable_http import streamable_http_client

    headers = {"X-API-KEY": key or os.environ["KEY"]}
    async with httpx.AsyncClient(headers=headers, timeout=PATIENCE) as client:
        async with streamable_http_client(os.environ["URL"] + "/mcp", http_client=client) as streams:
            yield streams


@contextlib.asynccontextmanager
async def over_http(key=None):
    async with http_transport(key) as streams, ClientSession(streams[0], streams[1]) as session:
        await session.initialize()
        yield session


def plain(value):
    """As it is on the wire, whatever the client calls it."""
    return value.model_dump(mode="json", by_alias=True)


async def call(session, tool, **arguments):
    """The texts of an answer, and whether it is an error."""
    answer = plain(await session.call_tool(tool, arguments))
    return [block.get("text", block["type"]) for block in answer["content"]], answer.get("isError", False)


async def good(session, tool, **arguments):
    texts, is_error = await call(session, tool, **arguments)
    assert not is_error, texts
    return "\n".join(texts)


async def bad(session, tool, *words, **arguments):
    texts, is_error = await call(session, tool, **arguments)
    told = "\n".join(texts)
    assert is_error, told
    for word in words:
        assert word in told, f"{word!r} is not in {told}"
    return told


async def refused(awaitable, *words):
    from mcp import MCPError

    try:
        answer = await awaitable
    except MCPError as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in {error}"
        return
    raise AssertionError(f"this was answered: {answer!r}")


@every
async def tools_are_described(connect):
    async with connect() as session:
        tools = plain(await session.list_tools())["tools"]
        assert sorted(tool["name"] for tool in tools) == sorted(TOOLS + ["fork"] * (connect is not over_stdio))
        for tool in tools:
            assert tool["description"] and tool["inputSchema"]["type"] == "object", tool
            assert "readOnlyHint" in tool["annotations"], tool


@every
async def state_is_kept_between_calls(connect):
    async with connect() as session:
        await good(session, "run_code", code="x = 1")
        assert await good(session, "run_code", code="x += 1; x") == "2"
        assert "one\ntwo" in await good(session, "run_code", code="echo one; echo two", language="bash")
        made = await good(session, "run_code", code="x = 'apart'; x", context="new")
        context = made.split("context: ")[1].split()[0]
        assert "apart" in await good(session, "run_code", code="x", context=context)
        assert await good(session, "run_code", code="x") == "2"
        await bad(session, "run_code", "has no context `nowhere`", "pass `new`", context, code="x", context="nowhere")
        await good(session, "kill_sandbox")
        await bad(session, "run_code", "NameError", code="x")


@every
async def sessions_are_apart(connect):
    async with connect() as one, connect() as other:
        await good(one, "run_code", code="secret = 42; open('mine', 'w').write('x')")
        await bad(other, "run_code", "NameError", code="secret")
        assert "mine" not in await good(other, "list_files")


@both
async def commands_say_how_they_ended(connect):
    async with connect() as session:
        told = await good(session, "run_command", command="cat; echo $A; echo bad >&2", stdin="given\n", env={"A": "b"})
        assert told == "given\nb\n\nstandard error:\nbad\n\nexit code: 0", repr(told)
        await bad(session, "run_command", "exit code: 3", command="exit 3")
        await bad(session, "run_command", "killed after 0.5 s", "hint:", command="sleep 300", timeout_seconds=0.5)
        await bad(session, "run_command", "signal 9", command="kill -9 $$")
        await bad(session, "run_command", "cannot be entered", command="true", cwd="/nowhere")


@both
async def code_that_takes_too_long_leaves_its_state(connect):
    async with connect() as session:
        await good(session, "run_code", code="kept = 'still here'")
        sleep = "import time\nwhile True: time.sleep(0.1)"
        await bad(session, "run_code", "interrupted after 1 s", "hint:", code=sleep, timeout_seconds=1)
        assert "still here" in await good(session, "run_code", code="kept")


@both
async def images_are_images(connect):
    async with connect() as session:
        show = f"""
class Picture:
    def _repr_png_(self):
        return {PNG!r}
Picture()
"""
        answer = plain(await session.call_tool("run_code", {"code": show}))
        images = [block for block in answer["content"] if block["type"] == "image"]
        assert [base64.b64decode(image["data"]) for image in images] == [PNG], answer
        assert images[0]["mimeType"] == "image/png"


@both
async def files_go_there_and_back(connect):
    async with connect() as session:
        text = "Grüße\n" * 1000
        await good(session, "write_file", path="some/where/a.txt", content=text)
        assert await good(session, "read_file", path="some/where/a.txt") == text
        picture = base64.b64encode(PNG).decode()
        await good(session, "write_file", path="a.png", content=picture, encoding="base64")
        answer = plain(await session.call_tool("read_file", {"path": "a.png"}))
        assert answer["content"][0]["type"] == "image" and answer["content"][0]["data"] == picture
        await good(session, "run_command", command="printf 'a\\0\\377' > bytes; seq 100000 > long")
        answer = plain(await session.call_tool("read_file", {"path": "bytes"}))
        assert base64.b64decode(answer["content"][0]["resource"]["blob"]) == b"a\0\xff"
        part = await good(session, "read_file", path="long", length=10)
        assert part.startswith("1\n2\n3\n4\n5\n\n[bytes 0 to 10 of "), part
        assert "some" in await good(session, "list_files") and "a.txt" in await good(session, "list_files", depth=3)
        await bad(session, "read_file", "nothing-here", "No such file", path="nothing-here")
        await bad(session, "list_files", "nothing-here", path="nothing-here")
        await bad(session, "read_file", "directory", path="some")


@both
async def files_are_resources(connect):
    async with connect() as session:
        assert plain(await session.list_resources())["resources"] == []
        await good(session, "write_file", path="a b.txt", content="resource")
        listed = plain(await session.list_resources())["resources"]
        (uri,) = [resource["uri"] for resource in listed if resource["name"] == "a b.txt"]
        assert uri.startswith("offleash://")
        contents = plain(await session.read_resource(uri))["contents"]
        assert contents[0]["text"] == "resource"
        template = plain(await session.list_resource_templates())["resourceTemplates"][0]["uriTemplate"]
        assert template == "offleash://{sandbox}/{+path}"
        await refused(session.read_resource(uri + "x"), "No such file")
        await refused(session.read_resource("file:///etc/passwd"))
        await refused(session.read_resource("offleash://ianother/etc/passwd"))


@both
async def sandboxes_are_made_and_ended(connect):
    async with connect() as session:
        made = await good(session, "create_sandbox")
        sandbox = made.split("sandbox: ")[1].split()[0]
        await good(session, "run_code", code="y = 7", sandbox=sandbox)
        await bad(session, "run_code", "NameError", code="y")
        assert await good(session, "run_code", code="y", sandbox=sandbox) == "7"
        assert sandbox in await good(session, "kill_sandbox", sandbox=sandbox)
        await bad(session, "run_code", sandbox, code="y", sandbox=sandbox)


@served
async def forks_begin_with_the_files_of_their_source(connect):
    async with connect() as session:
        await bad(session, "fork", "no sandbox yet", "hint:")
        await good(session, "write_file", path="note", content="of the source")
        told = await good(session, "fork", count=2)
        forks = [line.removeprefix("sandbox: ") for line in told.splitlines()]
        assert len(set(forks)) == 2, told
        for fork in forks:
            assert await good(session, "read_file", path="note", sandbox=fork) == "of the source"
            await good(session, "write_file", path="note", content=fork, sandbox=fork)
        assert await good(session, "read_file", path="note") == "of the source"
        told = await good(session, "fork", sandbox=forks[0])
        again = told.removeprefix("sandbox: ")
        assert await good(session, "read_file", path="note", sandbox=again) == forks[0]
        await bad(session, "fork", sandbox="inobody")
        await bad(session, "fork", "count", count=21)
        for fork in [*forks, again]:
            await good(session, "kill_sandbox", sandbox=fork)


@served
async def forks_go_on_with_the_variables_of_their_source(connect):
    async with connect() as session:
        await good(session, "run_code", code="state = {'n': 41}\nopened = open('/etc/passwd')")
        told = await bad(session, "fork", "`opened`", "delete that first, or leave it out", "possible")
        assert told.count("hint:") == 1, told
        await bad(session, "fork", "contexts", contexts="some")
        fork = (await good(session, "fork", contexts="possible")).removeprefix("sandbox: ")
        assert "42" in await good(session, "run_code", code="state['n'] += 1; state['n']", sandbox=fork)
        assert "41" in await good(session, "run_code", code="state['n']")
        await good(session, "kill_sandbox", sandbox=fork)


@case("stdio")
async def forks_are_refused_where_there_are_none(connect):
    async with connect() as session:
        await good(session, "run_command", command="true")
        await bad(session, "fork", "cannot be forked", "hint:")


@every
async def big_output_is_cut_and_marked(connect):
    async with connect() as session:
        told = await good(session, "run_code", code="print('a' * 300_000 + 'end')")
        assert len(told) < 100_000 and "bytes are left out here" in told and told.rstrip().endswith("end")
        told = await good(session, "run_command", command="head -c 3000000 /dev/zero | tr '\\0' x; echo end")
        assert len(told) < 100_000 and "bytes are left out here" in told and "xend" in told


@both
async def a_cancelled_call_ends_what_runs(connect):
    async with connect() as session:
        await good(session, "run_code", code="z = 5")
        for tool, arguments in [
            ("run_command", {"command": "exec -a cancel-me sleep 1000"}),
            ("run_code", {"code": "import time; time.sleep(1000)"}),
        ]:
            # When its own patience ends, the client tells the server.
            answer = session.call_tool(tool, arguments | {"timeout_seconds": 1100}, read_timeout_seconds=2)
            await refused(answer, "timed out")
        assert await good(session, "run_code", code="z", timeout_seconds=60) == "5"
        deadline = time.monotonic() + PATIENCE / 2
        while "cancel-me" in await good(session, "run_command", command="cat /proc/[0-9]*/cmdline | tr '\\0' ' '; true"):
            assert time.monotonic() < deadline, "the command goes on"
            await asyncio.sleep(0.2)


@both
async def progress_is_told(connect):
    told = []

    async def heard(progress, total, message):
        told.append((progress, total, message))

    async with connect() as session:
        command = {"command": "echo begun; sleep 3"}
        await session.call_tool("run_command", command, progress_callback=heard)
    assert told and all(progress < total for progress, total, _ in told), told
    assert any(message == "begun" for _, _, message in told), told


@both
async def bad_input_is_an_answer(connect):
    async with connect() as session:
        await refused(session.call_tool("no_such_tool", {}), "no_such_tool")
        await bad(session, "run_code", "invalid type", "hint:", code=5)
        await bad(session, "run_code", "code", "hint:")
        await bad(session, "run_code", "unknown field", code="1", colour="red")
        await bad(session, "run_code", "cobol", code="1", language="cobol")
        await bad(session, "run_code", "timeout_seconds", code="1", timeout_seconds=-1)
        await bad(session, "run_code", "timeout_seconds", code="1", timeout_seconds=1e300)
        await bad(session, "run_code", "sandbox", code="1", sandbox="../../etc")
        await bad(session, "run_command", "NUL", command="echo \0")
        await bad(session, "read_file", path="a\0b")
        await bad(session, "write_file", "base64", path="x", content="%%%", encoding="base64")
        long = "x = '" + "a" * 10_000_000 + "'; len(x)"
        assert await good(session, "run_code", code=long) == "10000000"
        await bad(session, "run_code", code="1\0")
        assert await good(session, "run_code", code="1 + 1") == "2"


@case("stdio")
async def the_workspace_is_there_and_changes_are_kept_aside(connect):
    async with connect() as session:
        assert await good(session, "read_file", path="given.txt") == "from outside"
        await good(session, "write_file", path="given.txt", content="changed inside")
    assert open("given.txt").read() == "from outside"
    # The supervisor writes it down before the program ends.
    runs = subprocess.run([os.environ["OFFLEASH"], "runs", "--json"], capture_output=True, text=True, check=True)
    assert "offleash" in runs.stdout and "mcp" in runs.stdout, runs.stdout


@case("stdio")
async def a_sandbox_that_ended_is_told_and_replaced(connect):
    server = StdioServerParameters(
        command=os.environ["OFFLEASH"], args=["mcp", "--memory", "64M", "--no-workspace"], env=dict(os.environ)
    )
    async with stdio_client(server) as (reader, writer), ClientSession(reader, writer) as session:
        await session.initialize()
        # Where no group counts memory, the kernel refuses it to the process. Otherwise the interpreter or the whole sandbox
        # ends, and that its state is gone is said.
        told = await bad(session, "run_code", code="x = bytearray(500_000_000)", timeout_seconds=60)
        assert "lost" in told or "MemoryError" in told, told
        # The interpreter may have ended before its sandbox did, which is a loss of its own.
        texts, is_error = await call(session, "run_code", code="1 + 1")
        if is_error:
            assert "lost" in texts[0], texts
            texts = [await good(session, "run_code", code="1 + 1")]
        assert texts == ["2"], texts


@served
async def a_sandbox_that_used_too_much_is_told_with_its_limit(connect):
    async with connect() as session:
        # No single file is larger than it may be.
        hog = "for n in 1 2 3 4 5 6 7 8; do head -c 40M /dev/zero > /tmp/$n; done; sleep 60"
        await bad(session, "run_command", "has ended: it exceeded the limit `workspace` of ", command=hog)
        code = f"import os\nos.system({hog!r})"
        await bad(session, "run_code", "has ended: it exceeded the limit `workspace` of ", code=code)
        assert "2" in await good(session, "run_code", code="1 + 1")


@case("stdio")
async def nothing_but_the_protocol_is_said_and_nothing_is_left(connect):
    program = subprocess.Popen(
        [os.environ["OFFLEASH"], "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )

    def say(**message):
        program.stdin.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")
        program.stdin.flush()

    def answer():
        return json.loads(program.stdout.readline())

    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    say(id=1, method="initialize", params=client)
    assert answer()["result"]["serverInfo"]["name"] == "offleash"
    say(method="notifications/initialized")
    program.stdin.write(b"this is no JSON\n")
    say(id=2, method="tools/call", params={"name": "run_command", "arguments": {"command": "echo $$"}})
    assert answer()["id"] == 2
    children = open(f"/proc/{program.pid}/task/{program.pid}/children").read().split()
    assert children, "there is no supervisor"
    program.send_signal(signal.SIGKILL)
    program.wait()
    deadline = time.monotonic() + PATIENCE / 2
    while any(os.path.exists(f"/proc/{child}") for child in children):
        assert time.monotonic() < deadline, "the supervisor lives on"
        time.sleep(0.1)


@case("http")
async def nobody_else_reaches_a_sandbox(connect):
    async with connect() as session, over_http(os.environ["OTHER_KEY"]) as other:
        made = await good(session, "create_sandbox")
        sandbox = made.split("sandbox: ")[1].split()[0]
        await good(session, "write_file", path="mine", content="x", sandbox=sandbox)
        for tool, arguments in [
            ("run_code", {"code": "1"}),
            ("run_command", {"command": "true"}),
            ("read_file", {"path": "mine"}),
            ("list_files", {}),
            ("kill_sandbox", {}),
        ]:
            await bad(other, tool, sandbox, sandbox=sandbox, **arguments)
        await refused(other.read_resource(f"offleash://{sandbox}/home/user/mine"))
        assert await good(session, "read_file", path="mine", sandbox=sandbox) == "x"
        await good(session, "kill_sandbox", sandbox=sandbox)


@case("stdio", "server")
async def the_protocol_without_a_handshake_is_spoken(connect):
    from mcp.client import Client

    flags = [] if connect is over_stdio else connect.args
    server = StdioServerParameters(command=os.environ["OFFLEASH"], args=["mcp", *flags], env=dict(os.environ))
    async with Client(stdio_client(server), mode="2026-07-28") as client:
        await good(client, "run_code", code="x = 1")
        assert await good(client, "run_code", code="x + 1") == "2"


@case("http")
async def without_sessions_sandboxes_are_named(connect):
    from mcp.client import Client

    async with Client(http_transport(), mode="2026-07-28") as client:
        made = await good(client, "run_code", code="x = 1")
        sandbox = made.split("sandbox: ")[1].split()[0]
        assert await good(client, "run_code", code="x + 1", sandbox=sandbox) == "2"
        other = (await good(client, "run_code", code="3")).split("sandbox: ")[1].split()[0]
        assert other != sandbox
        await bad(client, "run_code", "NameError", code="x", sandbox=other)
        for made in [sandbox, other]:
            await good(client, "kill_sandbox", sandbox=made)
        await bad(client, "kill_sandbox", "no sandbox")


@case("http")
async def a_key_has_so_many_sessions_and_no_more(connect):
    import httpx2 as httpx

    begin = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": begin}
    url = os.environ["URL"] + "/mcp"
    accept = {"X-API-KEY": os.environ["FULL_KEY"], "Accept": "application/json, text/event-stream"}
    async with httpx.AsyncClient(headers=accept, timeout=PATIENCE) as client:
        begun = [await client.post(url, json=message) for _ in range(64)]
        assert [answer.status_code for answer in begun] == [200] * 64, begun
        sessions = {answer.headers["mcp-session-id"] for answer in begun}
        assert len(sessions) == 64
        full = await client.post(url, json=message)
        assert full.status_code == 429 and "64 sessions" in full.text and full.headers["retry-after"], full.text
        # Nobody else is kept out by that.
        async with connect() as session:
            await session.list_tools()
        ended = await client.delete(url, headers={"mcp-session-id": sessions.pop()})
        assert ended.status_code == 204, ended
        deadline = time.monotonic() + PATIENCE / 2
        while (again := await client.post(url, json=message)).status_code == 429:
            assert time.monotonic() < deadline, "the place of a session that ended is not given back"
            await asyncio.sleep(0.1)
        assert again.status_code == 200, again
        for session in [*sessions, again.headers["mcp-session-id"]]:
            await client.delete(url, headers={"mcp-session-id": session})


@case("stdio")
async def without_a_network_it_is_told_that_there_is_none(connect):
    ask = "import socket\ntry: socket.create_connection((%r, 443), 5)\nexcept OSError: print('no')"
    async with connect() as session:
        # A name, which is asked for by datagrams, and addresses of both versions.
        for host in ["first.example", "192.0.2.1", "2001:db8::1"]:
            told = await good(session, "run_code", code=ask % host)
            assert "no\n" in told, told
            assert told.count("network: the sandbox has none") == 1 and "--allow HOST" in told, told
        told = await bad(session, "run_command", "--allow HOST", command="exec 3<>/dev/tcp/192.0.2.1/443")
        assert "network: the sandbox has none" in told, told
        # What stays inside is nobody's matter.
        inside = "import socket\ns = socket.create_server(('127.0.0.1', 0))\nsocket.create_connection(s.getsockname())"
        for told in [
            await good(session, "run_code", code=inside),
            await good(session, "run_code", code="socket.getaddrinfo('localhost', 80)"),
            await good(session, "run_command", command="echo quiet"),
        ]:
            assert "refused" not in told and "network" not in told, told


@every
async def what_the_network_refuses_is_named(connect):
    is_own = connect is over_stdio
    # Without any network a name is not even asked for.
    async with over_stdio("--allow", "allowed.example") if is_own else connect() as session:
        sandbox = {}
        if not is_own:
            made = await good(session, "create_sandbox", internet=False)
            sandbox["sandbox"] = made.split("sandbox: ")[1].split()[0]
        ask = "import socket\ntry: socket.create_connection(('%s', 443), 5)\nexcept OSError: print('no')"
        told = await good(session, "run_code", code=ask % "first.example", **sandbox)
        assert "no\n" in told and "first.example" in told and "was refused" in told and "hint:" in told, told
        told = await good(session, "run_command", command=f'python3 -c "{ask % "second.example"}"', **sandbox)
        assert "second.example" in told and "first.example" not in told, told
        assert "refused" not in await good(session, "run_command", command="echo quiet", **sandbox)
        await good(session, "kill_sandbox", **sandbox)


@case("server")
async def sandboxes_are_as_they_are_asked_for(connect):
    async with connect() as session:
        made = await good(session, "create_sandbox", env={"A": "b"}, timeout_seconds=60)
        sandbox = made.split("sandbox: ")[1].split()[0]
        assert "b\n" in await good(session, "run_command", command="echo $A", sandbox=sandbox)
        await good(session, "write_file", path="note", content="n", sandbox=sandbox)
        read = plain(await session.read_resource(f"offleash://{sandbox}/home/user/note"))
        assert read["contents"][0]["text"] == "n", read
        await good(session, "kill_sandbox", sandbox=sandbox)
        await bad(session, "create_sandbox", "process", "container", level="none")
        made = await good(session, "create_sandbox", level="process", idle_seconds=1)
        sandbox = made.split("sandbox: ")[1].split()[0]
        await good(session, "run_command", command="echo kept >note; echo lost >/dev/shm/note", sandbox=sandbox)
        # It sleeps when nobody has used it for a while, and a look is a use.
        for pause in (3, 10, 30):
            await asyncio.sleep(pause)
            told = await good(session, "run_command", command="cat note /dev/shm/note 2>/dev/null; true", sandbox=sandbox)
            assert "kept" in told, told
            if "lost" not in told:
                break
        assert "lost" not in told, told
        await good(session, "kill_sandbox", sandbox=sandbox)


def main():
    kind = sys.argv[1]
    connect = {"stdio": over_stdio, "http": over_http, "server": functools.partial(over_stdio, "--server")}[kind]
    failed = 0
    wanted = [function for function in KINDS[kind] if not sys.argv[2:] or function.__name__ in sys.argv[2:]]
    for function in wanted:
        try:
            asyncio.run(asyncio.wait_for(function(connect), PATIENCE))
            print(f"ok {function.__name__}", flush=True)
        except BaseException:
            failed += 1
            print(f"FAILED {function.__name__}\n{traceback.format_exc()}", flush=True)
    print(f"{len(wanted)} cases, {failed} failed", flush=True)
    sys.exit(1 if failed or not wanted else 0)


main()
