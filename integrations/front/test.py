"""`offleash front` before 100 simulated nodes that speak the protocol of real ones: 10,000 sandboxes, and faults.

Prints how long a create takes at a node itself and through the front, and after how long a lost node is told.
"""

import asyncio
import json
import os
import random
import statistics
import string
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

NODES, SANDBOXES, CLIENTS = 100, 10_000, 32
KEY = "e2b_" + "7" * 40
#: For what is waited for, seconds.
PATIENCE = 120


def new_id():
    return "i" + "".join(random.choices(string.ascii_lowercase + string.digits, k=19))


class Node:
    """What a server would be, without sandboxes."""

    def __init__(self):
        self.sandboxes, self.by_key, self.down, self.drained = {}, {}, False, False
        #: Creates that it makes and does not answer; connections that it does not take.
        self.unanswered = 0
        self.server = None
        self.port = 0

    async def start(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]

    async def stop(self):
        self.down = True
        self.server.close()

    async def rise(self):
        self.down = False
        await self.start()

    async def serve(self, reader, writer):
        try:
            while not self.down:
                request = await read(reader)
                if request is None:
                    break
                answer = self.answer(*request)
                if answer is None:
                    break
                status, headers, body = answer
                write(writer, f"HTTP/1.1 {status} -", headers, body)
                await writer.drain()
        # The front keeps a connection; the program may end before it.
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def answer(self, line, headers, body):
        method, target, _ = line.split(" ")
        url = urlsplit(target)
        if headers.get("x-api-key") != KEY:
            return 401, {}, {"code": 401, "message": "no"}
        if method == "POST" and url.path == "/v2/sandboxes":
            key = headers.get("idempotency-key")
            made = self.by_key.get(key)
            if made is None:
                made = new_id()
                self.sandboxes[made] = True
                self.by_key[key] = made
            if self.unanswered:
                self.unanswered -= 1
                return None
            return 201, {}, {"sandboxID": made}
        if url.path == "/v1/overview/ids":
            return 200, {}, {"ids": list(self.sandboxes), "draining": self.drained}
        if url.path == "/v2/sandboxes":
            pairs = parse_qs(url.query)
            limit, after = int(pairs.get("limit", ["100"])[0]), int(pairs.get("nextToken", ["0"])[0])
            listed = list(self.sandboxes)[after : after + limit]
            more = {"X-Next-Token": str(after + limit)} if after + limit < len(self.sandboxes) else {}
            return 200, more, [{"sandboxID": one} for one in listed]
        one = url.path.rsplit("/", 1)[-1]
        if one not in self.sandboxes:
            return 404, {}, {"code": 404, "message": f"sandbox {one} was not found"}
        if method == "DELETE":
            del self.sandboxes[one]
        return 200, {}, {"sandboxID": one}


async def read(reader):
    """The head and body of a message; `None` at the end."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode() if not reader.at_eof() else ""
    if not head:
        return None
    lines = head.split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
    body = b""
    if headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    elif headers.get("content-length", "0") != "0":
        body = await reader.readexactly(int(headers["content-length"]))
    return lines[0], headers, body


def write(writer, first, headers, body):
    text = json.dumps(body).encode() if body is not None else b""
    fields = "".join(f"{name}: {value}\r\n" for name, value in {**headers, "Content-Length": len(text)}.items())
    writer.write(f"{first}\r\n{fields}\r\n".encode() + text)


class Client:
    """One connection to a front or a node."""

    def __init__(self, port):
        self.port, self.reader, self.writer = port, None, None

    async def ask(self, method, path, body=None, **headers):
        if self.writer is None or self.writer.is_closing():
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        fields = {"Host": f"127.0.0.1:{self.port}", "X-API-KEY": KEY, **{name.replace("_", "-"): value for name, value in headers.items()}}
        write(self.writer, f"{method} {path} HTTP/1.1", fields, body)
        line, head, text = await read(self.reader)
        if head.get("connection") == "close":
            self.writer.close()
        return int(line.split(" ")[1]), head, json.loads(text) if text else None

    async def create(self, key):
        """A create as a client with an idempotency key does it: it asks again until it is told."""
        deadline = time.monotonic() + PATIENCE
        while True:
            status, _, answer = await self.ask("POST", "/v2/sandboxes", {"templateID": "base"}, Idempotency_Key=key)
            if status == 201:
                return answer["sandboxID"]
            assert status == 503 and time.monotonic() < deadline, (status, answer)
            await asyncio.sleep(0.1)


async def listed(client):
    found, token = [], ""
    while True:
        status, head, page = await client.ask("GET", f"/v2/sandboxes?limit=100{token}")
        assert status == 200, (status, page)
        found += [one["sandboxID"] for one in page]
        if "x-next-token" not in head:
            return found, head
        token = f"&nextToken={head['x-next-token']}"


async def until(what, happened):
    began = time.monotonic()
    while not (answer := await happened()):
        assert time.monotonic() - began < PATIENCE, f"{what} did not come"
        await asyncio.sleep(0.1)
    return answer, time.monotonic() - began


async def timed(client, count, name):
    took = []
    for number in range(count):
        began = time.perf_counter()
        await client.create(f"{name}-{number}")
        took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took), sorted(took)[int(len(took) * 0.99)]


async def checked(port, nodes):
    there = lambda: {one for node in nodes for one in node.sandboxes}
    client = Client(port)
    await until("nodes", lambda: ready(client))
    await asyncio.sleep(3)
    # What a create costs, when nothing else is asked: first at a node itself, then through the front.
    alone = await timed(Client(nodes[0].port), 200, "alone")
    through = await timed(client, 200, "through")
    print(f"create, ms (median, 99 %): node {alone[0]:.2f}, {alone[1]:.2f}; front {through[0]:.2f}, {through[1]:.2f}")
    nodes[0].sandboxes.clear()
    # Ten thousand, from several clients; a tenth of the nodes makes a sandbox now and then and does not say so.
    for node in nodes[::10]:
        node.unanswered = 5
    left = iter(range(SANDBOXES - len(there())))

    async def fill():
        mine, made = Client(port), []
        for number in left:
            made.append(await mine.create(f"fill-{number}"))
        return made

    began = time.monotonic()
    made = [one for some in await asyncio.gather(*(fill() for _ in range(CLIENTS))) for one in some]
    print(f"{len(made)} creates by {CLIENTS} clients: {len(made) / (time.monotonic() - began):.0f}/s")
    assert len(set(made)) == len(made) and len(there()) == SANDBOXES, (len(made), len(there()))
    spread = [len(node.sandboxes) for node in nodes]
    print(f"sandboxes of a node: {min(spread)} to {max(spread)}")
    found, _ = await listed(client)
    assert len(found) == SANDBOXES and set(found) == there(), len(found)
    for one in random.sample(made, 200):
        assert (await client.ask("GET", f"/sandboxes/{one}"))[0] == 200
    # Half of the nodes are drained: they get nothing new, and what they have is reached.
    for node in nodes[::2]:
        node.drained = True

    async def heard():
        _, _, told = await client.ask("GET", "/v1/front/nodes")
        return sum(node["state"] == "drained" for node in told["nodes"]) == NODES // 2

    await until("all of the drained", heard)
    before = sum(len(node.sandboxes) for node in nodes[::2])
    extra = [await client.create(f"drained-{number}") for number in range(100)]
    assert sum(len(node.sandboxes) for node in nodes[::2]) == before
    assert (await client.ask("GET", f"/sandboxes/{next(iter(nodes[0].sandboxes))}"))[0] == 200
    for one in extra:
        assert (await client.ask("DELETE", f"/sandboxes/{one}"))[0] == 200
    for node in nodes:
        node.drained = False
    # Ten nodes are gone, and told.
    lost = nodes[:10]
    theirs = next(iter(lost[0].sandboxes))
    for node in lost:
        await node.stop()

    async def told():
        status, head, answer = await client.ask("GET", f"/sandboxes/{theirs}")
        return status == 503 and "which has the sandbox" in answer["message"]

    _, took = await until("the loss", told)
    print(f"a lost node is told after {took:.1f} s")

    async def all_missing():
        found, head = await listed(client) if (await client.ask("GET", "/v2/sandboxes"))[0] == 200 else ([], {})
        return found if len(found) == sum(len(node.sandboxes) for node in nodes[10:]) else None

    found, _ = await until("a list without them", all_missing)
    assert len(set(found)) == len(found)
    before = sum(len(node.sandboxes) for node in lost)
    new = [await client.create(f"after-{number}") for number in range(50)]
    assert sum(len(node.sandboxes) for node in lost) == before
    # They are back, with what they had.
    for node in lost:
        await node.rise()

    async def back():
        found, head = await listed(client) if (await client.ask("GET", "/v2/sandboxes"))[0] == 200 else ([], {})
        return found if len(found) == SANDBOXES + len(new) else None

    found, _ = await until("all nodes", back)
    assert set(found) == there() and len(set(found)) == len(found)


async def ready(client):
    return (await client.ask("GET", "/readyz"))[0] == 204


async def main():
    nodes = [Node() for _ in range(NODES)]
    for node in nodes:
        await node.start()
    with tempfile.TemporaryDirectory() as place:
        key = Path(place) / "key"
        key.touch(mode=0o600)
        key.write_text(KEY)
        words = [os.environ.get("OFFLEASH_BINARY", "offleash"), "front", "--listen", "127.0.0.1:0", "--key-file", str(key)]
        words += [word for node in nodes for word in ("--node", f"http://127.0.0.1:{node.port}")]
        front = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            port = int(front.stdout.readline().rsplit(":", 1)[1])
            await checked(port, nodes)
        finally:
            front.terminate()
            front.wait(timeout=30)
    print("ok")


asyncio.run(main())
