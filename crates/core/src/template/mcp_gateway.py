#!/usr/bin/python3
"""Serves the tools of servers of the Model Context Protocol that run beside it, over HTTP, to who has the token.

    GATEWAY_ACCESS_TOKEN=... mcp-gateway --config '{"fetch": {}, "github/OWNER/REPO": {"runCmd": "...", "installCmd": "..."}}'
    mcp-gateway pull fetch memory

It returns once every server has answered, and goes on in the background; what a server says is in LOG. The names of tools and
prompts begin with that of their server.
"""

import concurrent.futures
import hmac
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading

PORT = 50005
DIRECTORY = "/etc/mcp-gateway"
SERVERS = "/opt/mcp-gateway"
LOG = "/var/log/mcp-gateway.log"
VERSION = "2025-06-18"
VERSIONS = ("2024-11-05", "2025-03-26", VERSION)
MOST_BODY = 4 << 20
DRAINED = 16 << 20
# How long a server may take to begin, which is with what `npx` installs first, and to answer.
BEGINS = 300
ANSWERS = 300
MOST_PAGES = 100
READY = b"ready"


class Wrong(Exception):
    """What is told to whoever asked."""


def npm(package, program):
    def command(given):
        return ["npx", "--yes", "--package", package, "--", program, *given]

    return command


def pypi(package, module):
    def command(given):
        return ["env", "PYTHONPATH=" + os.path.join(SERVERS, package), "python3", "-m", module, *given]

    command.package = package
    return command


# By the names that E2B gives them: how each is started, the variable of each of its settings, the setting that is its arguments.
CATALOGUE = {
    "airtable": (npm("airtable-mcp-server", "airtable-mcp-server"), {"airtableApiKey": "AIRTABLE_API_KEY", "nodeenv": "NODE_ENV"}, None),
    "brave": (npm("@brave/brave-search-mcp-server", "brave-search-mcp-server"), {"apiKey": "BRAVE_API_KEY"}, None),
    "context7": (npm("@upstash/context7-mcp", "context7-mcp"), {"apiKey": "CONTEXT7_API_KEY"}, None),
    "duckduckgo": (pypi("duckduckgo-mcp-server", "duckduckgo_mcp_server.server"), {}, None),
    "exa": (npm("exa-mcp-server", "exa-mcp-server"), {"apiKey": "EXA_API_KEY"}, None),
    "fetch": (pypi("mcp-server-fetch", "mcp_server_fetch"), {}, None),
    "filesystem": (npm("@modelcontextprotocol/server-filesystem", "mcp-server-filesystem"), {}, "paths"),
    "github": (npm("@modelcontextprotocol/server-github", "mcp-server-github"), {"personalAccessToken": "GITHUB_PERSONAL_ACCESS_TOKEN"}, None),
    "memory": (npm("@modelcontextprotocol/server-memory", "mcp-server-memory"), {}, None),
    "notion": (npm("@notionhq/notion-mcp-server", "notion-mcp-server"), {"internalIntegrationToken": "NOTION_TOKEN"}, None),
    "playwright": (npm("@playwright/mcp", "playwright-mcp"), {}, None),
    "sequentialthinking": (npm("@modelcontextprotocol/server-sequential-thinking", "mcp-server-sequential-thinking"), {}, None),
    "tavily": (npm("tavily-mcp", "tavily-mcp"), {"apiKey": "TAVILY_API_KEY"}, None),
    "time": (pypi("mcp-server-time", "mcp_server_time"), {}, None),
    "wikipedia": (pypi("wikipedia-mcp", "wikipedia_mcp"), {}, None),
}


def run(name, command, **named):
    """Runs a step that makes a server ready."""
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **named)
    if ended.returncode:
        said = ended.stdout.decode(errors="replace").strip()[-2000:]
        raise Wrong(f"server `{name}`: {command if isinstance(command, str) else ' '.join(command)} failed: {said}")


def install(name):
    """Brings what a server of the catalogue is made of."""
    command, _, _ = CATALOGUE[name]
    package = getattr(command, "package", None)
    if package is None:
        if not shutil.which("npx"):
            raise Wrong(f"server `{name}` needs Node.js, which this machine does not have")
        return
    place = os.path.join(SERVERS, package)
    if not os.path.isdir(place):
        run(name, ["python3", "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "--target", place + ".new", package])
        os.rename(place + ".new", place)


def known(name):
    if name not in CATALOGUE:
        have = ", ".join(sorted(CATALOGUE))
        raise Wrong(f"server `{name}` cannot be started here; there are {have}, and others by their `runCmd`, such as `github/OWNER/REPO`")


def prepared(name, settings):
    """The command of a server, its directory and its variables."""
    if not isinstance(settings, dict):
        raise Wrong(f"server `{name}`: its settings must be an object")
    if name.startswith("github/") or "runCmd" in settings:
        return custom(name, settings)
    known(name)
    command, variables, arguments = CATALOGUE[name]
    install(name)
    env = {variables[key]: str(value) for key, value in settings.items() if key in variables}
    return command([str(one) for one in settings.get(arguments, [])] if arguments else []), "/", env


def custom(name, settings):
    """A server of anybody's, in a repository or in a directory that is there already."""
    is_repository = re.fullmatch(r"github/[A-Za-z0-9][A-Za-z0-9-]*/[A-Za-z0-9_][A-Za-z0-9._-]*", name)
    if not is_repository and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise Wrong(f"server `{name}`: expected github/OWNER/REPO, or letters, digits, `-` and `_`")
    command = settings.get("runCmd")
    if not isinstance(command, str) or not command:
        raise Wrong(f"server `{name}` has no `runCmd`")
    place = os.path.join(SERVERS, name)
    if not os.path.isdir(place):
        os.makedirs(os.path.dirname(place) if is_repository else place, exist_ok=True)
    if is_repository and not os.path.isdir(place):
        run(name, ["git", "clone", "--quiet", "--depth", "1", "https://github.com/" + name[len("github/") :], place])
    envs = {str(key): str(value) for key, value in (settings.get("envs") or {}).items()}
    if settings.get("installCmd"):
        run(name, settings["installCmd"], shell=True, cwd=place, env={**os.environ, **envs})
    return ["/bin/sh", "-c", command], place, envs


class Server:
    """One server, spoken to on its standard input and output."""

    def __init__(self, name, command, cwd, env):
        self.name, self.command, self.cwd, self.env = name, command, cwd, env
        self.prefix = re.sub(r"[^A-Za-z0-9_-]", "_", name.rsplit("/", 1)[-1])
        self.lock, self.starting = threading.Lock(), threading.Lock()
        self.process, self.pending, self.number = None, {}, 0

    def start(self):
        with self.starting:
            if self.process and self.process.poll() is None:
                return
            env = {key: value for key, value in os.environ.items() if key != "GATEWAY_ACCESS_TOKEN"}
            try:
                self.process = subprocess.Popen(
                    self.command, cwd=self.cwd, env={**env, **self.env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            except OSError as error:
                raise Wrong(f"server `{self.name}` cannot be started: {error}")
            threading.Thread(target=self.read, args=(self.process,), daemon=True).start()
            about = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": {"name": "mcp-gateway", "version": "1"}}
            self.capabilities = self.ask("initialize", about, BEGINS).get("capabilities", {})
            self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def write(self, message):
        try:
            with self.lock:
                self.process.stdin.write(json.dumps(message).encode() + b"\n")
                self.process.stdin.flush()
        except OSError:
            raise Wrong(f"server `{self.name}` has ended")

    def ask(self, method, parameters, patience=ANSWERS):
        answered, place = threading.Event(), []
        with self.lock:
            self.number += 1
            number = self.number
            self.pending[number] = (answered, place)
        self.write({"jsonrpc": "2.0", "id": number, "method": method, "params": parameters})
        in_time = answered.wait(patience)
        self.pending.pop(number, None)
        if not in_time:
            raise Wrong(f"server `{self.name}` did not answer `{method}` within {patience} s")
        if not place:
            raise Wrong(f"server `{self.name}` has ended; what it said is in {LOG}")
        if "error" in place[0]:
            raise Refused(place[0]["error"])
        return place[0].get("result") or {}

    def read(self, process):
        for line in process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if not isinstance(message, dict):
                continue
            if "method" in message:
                if "id" in message:
                    self.answer(message)
                continue
            waiting = self.pending.get(message.get("id"))
            if waiting:
                waiting[1].append(message)
                waiting[0].set()
        process.wait()
        for answered, _ in list(self.pending.values()):
            answered.set()

    def answer(self, message):
        """What a server asks of its client: that is not passed on."""
        told = {"result": {}} if message["method"] == "ping" else {"error": {"code": -32601, "message": "not offered here"}}
        try:
            self.write({"jsonrpc": "2.0", "id": message["id"], **told})
        except Wrong:
            pass

    def all(self, method, key):
        """Everything that it lists, page by page."""
        found, cursor = [], None
        for _ in range(MOST_PAGES):
            page = self.ask(method, {"cursor": cursor} if cursor else {})
            found += page.get(key, [])
            cursor = page.get("nextCursor")
            if not cursor:
                break
        return found


class Refused(Exception):
    """An error that a server answered."""

    def __init__(self, error):
        super().__init__(error)
        self.error = error


class Gateway:
    def __init__(self, servers):
        self.servers = servers

    def listed(self, kind, key):
        found = []
        for server in self.servers:
            server.start()
            if kind in server.capabilities:
                for one in server.all(f"{kind}/list", key):
                    found.append((server, one))
        return found

    def named(self, kind):
        """Tools or prompts, under names that say whose they are."""
        return [{**one, "name": f"{server.prefix}__{one['name']}"} for server, one in self.listed(kind, kind)]

    def call(self, method, parameters):
        name = str(parameters.get("name", ""))
        for server in self.servers:
            if name.startswith(server.prefix + "__"):
                server.start()
                passed = {key: value for key, value in parameters.items() if key != "_meta"}
                return server.ask(method, {**passed, "name": name[len(server.prefix) + 2 :]})
        raise Refused({"code": -32602, "message": f"there is no `{name}`"})

    def read(self, parameters):
        for server, one in self.listed("resources", "resources"):
            if one.get("uri") == parameters.get("uri"):
                return server.ask("resources/read", {"uri": one["uri"]})
        raise Refused({"code": -32002, "message": "there is no such resource"})

    def answer(self, method, parameters):
        if method == "initialize":
            asked = parameters.get("protocolVersion")
            return {
                "protocolVersion": asked if asked in VERSIONS else VERSION,
                "capabilities": {"tools": {}, "prompts": {}, "resources": {}},
                "serverInfo": {"name": "mcp-gateway", "version": "1"},
            }
        if method == "ping":
            return {}
        if method in ("tools/list", "prompts/list"):
            kind = method.split("/")[0]
            return {kind: self.named(kind)}
        if method == "resources/list":
            return {"resources": [one for _, one in self.listed("resources", "resources")]}
        if method == "resources/templates/list":
            return {"resourceTemplates": []}
        if method in ("tools/call", "prompts/get"):
            return self.call(method, parameters)
        if method == "resources/read":
            return self.read(parameters)
        raise Refused({"code": -32601, "message": f"`{method}` is not offered here"})


def handler(gateway, token):
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 320

        def log_message(self, *words):
            pass

        def tell(self, status, body=None, fields=()):
            text = b"" if body is None else json.dumps(body).encode()
            self.send_response(status)
            for name, value in fields:
                self.send_header(name, value)
            if text:
                self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def is_let_in(self):
            given = self.headers.get("Authorization", "")
            if hmac.compare_digest(given.encode(errors="replace"), f"Bearer {token}".encode()):
                if self.path.split("?")[0].rstrip("/") == "/mcp":
                    return True
                self.tell(404, {"error": "the protocol is spoken at /mcp"})
            else:
                self.tell(401, {"error": "the token is missing or not valid"}, [("WWW-Authenticate", "Bearer")])
            # What follows may be a body that nobody reads.
            self.close_connection = True
            return False

        def do_POST(self):
            if not self.is_let_in():
                return
            try:
                length = int(self.headers.get("Content-Length", ""))
            except ValueError:
                length = -1
            if not 0 <= length <= MOST_BODY:
                self.close_connection = True
                # Otherwise the answer would be taken back while the body is sent.
                left = min(length, DRAINED)
                while left > 0 and (piece := self.rfile.read(min(left, 1 << 16))):
                    left -= len(piece)
                return self.tell(413, {"error": f"a message has a length, of at most {MOST_BODY} bytes"})
            try:
                message = json.loads(self.rfile.read(length))
                assert isinstance(message, dict)
            except (ValueError, AssertionError, RecursionError):
                error = {"code": -32700, "message": "not a message of JSON-RPC"}
                return self.tell(400, {"jsonrpc": "2.0", "id": None, "error": error})
            if "id" not in message or "method" not in message:
                return self.tell(202)
            parameters = message.get("params")
            try:
                told = {"result": gateway.answer(message["method"], parameters if isinstance(parameters, dict) else {})}
            except Refused as refused:
                told = {"error": refused.error}
            except Wrong as wrong:
                told = {"error": {"code": -32000, "message": str(wrong)}}
            self.tell(200, {"jsonrpc": "2.0", "id": message["id"], **told})

        def do_GET(self):
            if self.is_let_in():
                # There is no stream beside the answers.
                self.tell(405, fields=[("Allow", "POST")])

        do_DELETE = do_GET

    return Handler


def serve(config, token, ready):
    try:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            servers = list(pool.map(lambda one: Server(one[0], *prepared(*one)), config.items()))
        prefixes = [server.prefix for server in servers]
        if len(set(prefixes)) < len(prefixes):
            raise Wrong("two servers would have tools of the same name")
        http.server.ThreadingHTTPServer.daemon_threads = True
        # Taken before there are servers, which could take it.
        door = http.server.ThreadingHTTPServer(("", PORT), handler(Gateway(servers), token))
        with concurrent.futures.ThreadPoolExecutor() as pool:
            list(pool.map(Server.start, servers))
    except Refused as refused:
        raise Wrong(f"a server refuses to begin: {refused.error}")
    except OSError as error:
        raise Wrong(f"cannot begin: {error}")
    os.makedirs(DIRECTORY, mode=0o755, exist_ok=True)
    place = os.path.join(DIRECTORY, ".token")
    with open(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(token)
    os.write(ready, READY)
    os.close(ready)
    door.serve_forever()


def begin(config):
    token = os.environ.pop("GATEWAY_ACCESS_TOKEN", "")
    if not token:
        raise Wrong("GATEWAY_ACCESS_TOKEN is not set")
    try:
        config = json.loads(config)
        assert isinstance(config, dict) and config
    except (ValueError, AssertionError):
        raise Wrong("--config must be a JSON object that names servers")
    told, ready = os.pipe()
    if os.fork() == 0:
        os.close(told)
        os.setsid()
        log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        try:
            serve(config, token, ready)
        except BaseException as error:
            os.write(ready, (str(error) or repr(error)).encode()[:4096])
        os._exit(1)
    os.close(ready)
    with open(told, "rb") as pipe:
        said = pipe.read()
    if said != READY:
        raise Wrong(said.decode(errors="replace") or f"it ended; what it said is in {LOG}")


def main(arguments):
    try:
        if len(arguments) == 2 and arguments[0] == "--config":
            begin(arguments[1])
        elif arguments == ["check"]:
            pass
        elif len(arguments) > 1 and arguments[0] == "pull":
            for name in arguments[1:]:
                known(name)
                install(name)
        else:
            raise Wrong(__doc__.strip())
    except Wrong as wrong:
        print(f"mcp-gateway: {wrong}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
