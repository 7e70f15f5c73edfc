"""Servers of the Model Context Protocol inside a sandbox, with E2B's SDK and the protocol's own client."""

import asyncio
import json
import os

import httpx2 as httpx
from e2b import Sandbox, SandboxException
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from cases import case, equal, raises, says

# A server of a few lines, as anybody's could be.
SERVER = r'''
import json, os, sys
TOOLS = [{"name": name, "description": name, "inputSchema": {"type": "object"}} for name in ("add", "fail", "env", "leave")]
def answer(method, parameters):
    if method == "initialize":
        return {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}, "resources": {}},
                "serverInfo": {"name": "own", "version": "1"}}
    if method == "tools/list":
        # On two pages.
        return {"tools": TOOLS[2:]} if parameters.get("cursor") else {"tools": TOOLS[:2], "nextCursor": "more"}
    if method == "resources/list":
        return {"resources": [{"uri": "note://one", "name": "one"}]}
    if method == "resources/read":
        return {"contents": [{"uri": "note://one", "text": "a note"}]}
    name, given = parameters["name"], parameters.get("arguments") or {}
    if name == "leave":
        os._exit(3)
    text = {"add": lambda: str(given["a"] + given["b"]), "fail": lambda: 1 / 0, "env": lambda: json.dumps(dict(os.environ))}[name]()
    return {"content": [{"type": "text", "text": text}]}
print("a line that is none of the protocol", flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message: continue
    try:
        told = {"result": answer(message["method"], message.get("params") or {})}
    except Exception as error:
        told = {"error": {"code": -32603, "message": repr(error)}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **told}), flush=True)
'''


def own(**settings):
    install = "cat >server.py <<'END'\n" + SERVER + "END\n"
    return {"runCmd": "exec python3 server.py", "installCmd": install, **settings}


def client(sandbox, token):
    """As `get_mcp_url` says, but for TLS, which this server does not speak, and names below localhost are looked up here."""
    equal(sandbox.get_mcp_url(), f"https://{sandbox.get_host(50005)}/mcp")
    headers = {"Host": sandbox.get_host(50005)}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    return httpx.AsyncClient(headers=headers, timeout=60)


URL = os.environ["E2B_SANDBOX_URL"] + "/mcp"


@case
async def named_servers_are_started_and_spoken_for():
    made = await asyncio.to_thread(Sandbox.create, mcp={"own": own(envs={"FRUIT": "apple"}), "second": own()}, timeout=600)
    try:
        token = made.get_mcp_token()
        # Whoever finds the sandbox again finds the token, too.
        equal(Sandbox.connect(made.sandbox_id).get_mcp_token(), token)
        async with client(made, token) as http, streamable_http_client(URL, http_client=http) as streams:
            async with ClientSession(*streams[:2]) as session:
                await session.initialize()
                tools = [tool.name for tool in (await session.list_tools()).tools]
                equal(tools, [f"{name}__{tool}" for name in ("own", "second") for tool in ("add", "fail", "env", "leave")])

                async def told(name, **given):
                    return (await session.call_tool(name, given)).content[0].text

                equal(await told("own__add", a=2, b=3), "5")
                equal(await asyncio.gather(*(told("own__add", a=n, b=n) for n in range(20))), [str(2 * n) for n in range(20)])
                env = json.loads(await told("own__env"))
                equal(env["FRUIT"], "apple")
                assert token not in env.values() and "FRUIT" not in json.loads(await told("second__env")), env
                for name, words in [("own__fail", "ZeroDivisionError"), ("nobody__add", "nobody__add"), ("own__leave", "has ended")]:
                    try:
                        says(await told(name), words)
                    except Exception as error:
                        says(error, words)
                # One that ended is started again.
                equal(await told("own__add", a=1, b=1), "2")
                listed = (await session.list_resources()).resources
                equal(len(listed), 2)
                equal((await session.read_resource(listed[0].uri)).contents[0].text, "a note")
        for wrong in (None, "x", token + "x"):
            async with client(made, wrong) as http:
                equal((await http.post(URL, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})).status_code, 401)
        async with client(made, token) as http:
            equal((await http.post(URL, content=b"{")).status_code, 400)
            equal((await http.post(URL, json=[1])).status_code, 400)
            equal((await http.post(URL, content=b"x" * (5 << 20))).status_code, 413)
            equal((await http.get(URL)).status_code, 405)
            equal((await http.post(URL + "/else", json={})).status_code, 404)
    finally:
        made.kill()


@case
def servers_that_cannot_be_started_are_named():
    # Each comes to nothing, and its sandbox is killed by the SDK.
    for config, words in [
        ({"stripe": {"secretKey": "x"}}, ["`stripe` cannot be started here", "fetch", "github/OWNER/REPO"]),
        ({"own": {"runCmd": "exit 3"}}, ["`own`", "ended"]),
        ({"own": {"runCmd": "true", "installCmd": "echo because >&2; false"}}, ["`own`", "because"]),
        ({"../x": {"runCmd": "true"}}, ["../x", "expected"]),
        ({"a": own(), "github/b": {"runCmd": "true"}}, ["github/b"]),
    ]:
        says(raises(SandboxException, Sandbox.create, mcp=config), "Failed to start MCP gateway", *words)
