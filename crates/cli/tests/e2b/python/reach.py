"""Ports of a sandbox by the names that the SDK gives them: who comes in, what programs see, and what wakes a sandbox."""

import http.client
import shutil
import subprocess
import threading
import time

from e2b import FilesystemEventType, Sandbox, SandboxQuery, SandboxState

from cases import Skip, case, equal, eventually, says

# Answers with the head of each request.
ECHO = """
import http.server
class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = "".join(f"{name}: {value}\\n" for name, value in self.headers.items()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer(("", 8000), Echo).serve_forever()
"""


def get(sandbox, headers={}):
    """What is answered at port 8000, once a program listens there; its name is looked up as RFC 6761 has it, which not every
    C library does."""
    host = sandbox.get_host(8000)
    name, _, port = host.partition(":")
    equal(name, f"8000-{sandbox.sandbox_id}.localhost")

    def answer():
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
        connection.request("GET", "/", headers={"Host": host, **headers})
        response = connection.getresponse()
        body = response.read().decode()
        connection.close()
        return None if "port is not open" in body else (response.status, body)

    return eventually(lambda: "an answer", answer)


def listen(sandbox):
    # By the name that code takes for granted.
    sandbox.files.write("echo.py", ECHO)
    sandbox.commands.run("exec python echo.py", background=True)


@case
def a_port_has_a_name_that_leads_to_it(sandbox):
    listen(sandbox)
    status, seen = get(sandbox)
    equal(status, 200)
    says(seen, f"Host: {sandbox.get_host(8000)}\n", f"X-Forwarded-Host: {sandbox.get_host(8000)}\n")
    # Knows names below localhost by itself.
    if not shutil.which("curl"):
        raise Skip("no curl")
    url = f"http://{sandbox.get_host(8000)}/"
    told = subprocess.run(["curl", "-sS", "--noproxy", "*", url], capture_output=True, text=True)
    assert "X-Forwarded-Host" in told.stdout or "resolve host" in told.stderr, told


@case
def hosts_are_masked():
    with Sandbox.create(network={"mask_request_host": "custom.example:${PORT}"}) as sandbox:
        listen(sandbox)
        says(get(sandbox)[1], "Host: custom.example:8000\n")


@case
def a_private_port_needs_a_token():
    with Sandbox.create(network={"allow_public_traffic": False}) as sandbox:
        assert sandbox.traffic_access_token
        listen(sandbox)
        equal(get(sandbox)[0], 403)
        equal(get(sandbox, {"e2b-traffic-access-token": "x"})[0], 403)
        status, seen = get(sandbox, {"e2b-traffic-access-token": sandbox.traffic_access_token})
        equal(status, 200)
        assert sandbox.traffic_access_token not in seen, seen
    with Sandbox.create() as sandbox:
        equal(sandbox.traffic_access_token, None)


@case
def a_request_wakes_a_sandbox_that_may_be_woken():
    lifecycle = {"on_timeout": "pause", "auto_resume": True}
    with Sandbox.create(timeout=600, lifecycle=lifecycle) as sandbox:
        told = sandbox.get_info().lifecycle
        equal((told["on_timeout"], told["auto_resume"]), ("pause", True))
        listen(sandbox)
        equal(get(sandbox)[0], 200)
        sandbox.pause()
        equal(sandbox.get_info().state, SandboxState.PAUSED)
        equal(get(sandbox)[0], 200)
        equal(sandbox.get_info().state, SandboxState.RUNNING)
        sandbox.pause()
        equal(sandbox.commands.run("echo awake").stdout, "awake\n")
    with Sandbox.create(timeout=600) as sandbox:
        listen(sandbox)
        equal(get(sandbox)[0], 200)
        sandbox.pause()
        equal(get(sandbox)[0], 502)
        equal(sandbox.get_info().state, SandboxState.PAUSED)


@case
def a_sandbox_whose_time_is_over_waits_for_a_request():
    lifecycle = {"on_timeout": "pause", "auto_resume": True}
    with Sandbox.create(timeout=600, lifecycle=lifecycle) as sandbox:
        listen(sandbox)
        equal(get(sandbox)[0], 200)
        sandbox.set_timeout(0)
        eventually(lambda: "its pause", lambda: sandbox.get_info().state == SandboxState.PAUSED)
        equal(get(sandbox)[0], 200)
        equal(sandbox.get_info().state, SandboxState.RUNNING)


@case
def a_command_says_that_its_sandbox_was_killed():
    sandbox = Sandbox.create()
    handle = sandbox.commands.run("echo begun; exec sleep 3600", background=True)
    for _ in handle:
        break
    threading.Timer(0.1, sandbox.kill).start()
    try:
        handle.wait()
    except Exception as error:
        says(error, "The sandbox was killed or reached its end of life while the request was in flight")
    else:
        raise AssertionError("it ended well")


@case
def sandboxes_are_listed_by_when_they_were_started():
    made = []
    threads = [threading.Thread(target=lambda: made.append(Sandbox.create(metadata={"ordered": "yes"}))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        begun = [sandbox.get_info().started_at for sandbox in made]
        equal(len(set(begun)), 4)
        ordered = [sandbox.sandbox_id for _, sandbox in sorted(zip(begun, made), key=lambda pair: pair[0])]
        ask = {"metadata": {"ordered": "yes"}}
        listed = [sandbox.sandbox_id for sandbox in Sandbox.list(query=SandboxQuery(**ask)).next_items()]
        equal(listed, ordered[::-1])
        if "started_after" in SandboxQuery.__dataclass_fields__:
            ask["started_after"] = sorted(begun)[1]
            later = Sandbox.list(query=SandboxQuery(**ask), order="asc").next_items()
            equal([sandbox.sandbox_id for sandbox in later], ordered[1:])
    finally:
        for sandbox in made:
            sandbox.kill()


@case
def what_is_written_at_once_below_a_new_directory_is_told(sandbox):
    sandbox.files.make_dir("watched")
    handle = sandbox.files.watch_dir("watched", recursive=True)
    for number in range(40):
        sandbox.commands.run(f"mkdir watched/{number} && echo x >watched/{number}/f")
        seen = []

        def is_told():
            seen.extend(handle.get_new_events())
            return any(event.type == FilesystemEventType.WRITE and event.name == f"{number}/f" for event in seen)

        eventually(lambda: seen, is_told)
    handle.stop()
