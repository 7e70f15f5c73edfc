"""Terminals, git and the network."""

import os
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from e2b import BuildException, CommandExitException, Sandbox, SandboxException, Template
from e2b.sandbox.commands.command_handle import PtySize

from cases import Skip, case, equal, raises, sdk_at_least
from network import ONE, OTHER, script_of, was_let_out


@case
def a_terminal_is_one(sandbox):
    handle = sandbox.pty.create(PtySize(rows=30, cols=90), envs={"FRUIT": "apple"})
    seen, ready = [], threading.Event()

    def read(data):
        seen.append(data)
        if b"90-" in b"".join(seen):
            ready.set()

    def wait():
        try:
            handle.wait(on_pty=read)
        except Exception as error:
            seen.append(repr(error).encode())
        ready.set()

    reader = threading.Thread(target=wait)
    reader.start()
    sandbox.pty.send_stdin(handle.pid, b"echo $FRUIT; stty size | tr ' ' '\\n'; echo $COLUMNS-\n")
    ready.wait(60)
    sandbox.pty.resize(handle.pid, PtySize(rows=40, cols=110))
    sandbox.pty.send_stdin(handle.pid, b"stty size; exit 7\n")
    reader.join(60)
    text = b"".join(seen).decode()
    assert not reader.is_alive() and "apple" in text and "40 110" in text, text


@case
def a_terminal_is_killed(sandbox):
    handle = sandbox.pty.create(PtySize(rows=24, cols=80))
    equal(sandbox.pty.kill(handle.pid), True)
    raises(Exception, handle.wait)
    equal(sandbox.pty.kill(handle.pid), False)


@case
def git_knows_what_is_new(sandbox):
    if sandbox.commands.run("command -v git || true").stdout == "":
        raise Skip("no git in the sandbox")
    sandbox.git.init("/home/user/repo", initial_branch="main")
    sandbox.git.configure_user("Ann", "ann@example.com")
    sandbox.files.write("repo/a.txt", "1")
    status = sandbox.git.status("/home/user/repo")
    equal((status.current_branch, [file.name for file in status.file_status]), ("main", ["a.txt"]))
    sandbox.git.add("/home/user/repo")
    sandbox.git.commit("/home/user/repo", "first")
    assert sandbox.git.status("/home/user/repo").is_clean
    sandbox.git.create_branch("/home/user/repo", "other")
    branches = sandbox.git.branches("/home/user/repo")
    equal((branches.current_branch, sorted(branches.branches)), ("other", ["main", "other"]))
    sandbox.git.checkout_branch("/home/user/repo", "main")
    sandbox.git.clone("/home/user/repo", path="/home/user/copy")
    equal(sandbox.files.read("copy/a.txt"), "1")
    raises(Exception, sandbox.git.status, "/home/user/not-there")


def is_let_out(sandbox, host):
    return was_let_out(sandbox.commands.run(script_of(host)).stdout)


@case
def no_internet_is_none():
    with Sandbox.create() as sandbox:
        equal(is_let_out(sandbox, ONE), True)
    with Sandbox.create(allow_internet_access=False) as sandbox:
        equal(is_let_out(sandbox, ONE), False)
        equal(sandbox.get_info().allow_internet_access, False)


@case
def rules_are_kept():
    rules = {"deny_out": ["0.0.0.0/0"], "allow_out": [OTHER]}
    with Sandbox.create(network=rules) as sandbox:
        equal((is_let_out(sandbox, ONE), is_let_out(sandbox, OTHER)), (False, True))
        network = sandbox.get_info().network
        equal((network["deny_out"], network["allow_out"]), (["0.0.0.0/0"], [OTHER]))
    with Sandbox.create(network={"deny_out": [ONE]}) as sandbox:
        equal((is_let_out(sandbox, ONE), is_let_out(sandbox, OTHER)), (False, True))
    for bad in [{"deny_out": ["not an address"]}, {"allow_out": ["example.com"]}]:
        raises(SandboxException, Sandbox.create, network=bad)


@case
def rules_may_change():
    with Sandbox.create() as sandbox:
        sandbox.update_network({"deny_out": [ONE]})
        equal((is_let_out(sandbox, ONE), is_let_out(sandbox, OTHER)), (False, True))
        sandbox.update_network({})
        equal(is_let_out(sandbox, ONE), True)


@case
def ports_of_the_host_are_not_those_of_the_sandbox():
    port = urllib.parse.urlsplit(os.environ["E2B_API_URL"]).port
    with Sandbox.create() as sandbox:
        script = f"import socket; socket.create_connection(('127.0.0.1', {port}), 30)"
        error = raises(CommandExitException, sandbox.commands.run, f'python3 -c "{script}"')
        assert "refused" in error.stderr, error


@case
def ports_of_the_sandbox_are_reached(sandbox):
    sandbox.commands.run("mkdir www; echo hello >www/a.txt")
    sandbox.commands.run("cd www; exec python3 -m http.server 8123", background=True)
    headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "8123"}
    url = os.environ["E2B_API_URL"]
    deadline = time.monotonic() + 60
    while True:
        try:
            request = urllib.request.Request(f"{url}/a.txt", headers=headers)
            equal(urllib.request.urlopen(request, timeout=60).read(), b"hello\n")
            break
        except urllib.error.HTTPError as error:
            # Until it listens.
            assert error.code == 502 and time.monotonic() < deadline, error
            time.sleep(0.05)
    path = f"{url}/_port/{sandbox.sandbox_id}/8123/a.txt"
    equal(urllib.request.urlopen(path, timeout=60).read(), b"hello\n")


@case
def secrets_are_named_and_never_told():
    if not sdk_at_least(2, 51):
        # Older ones know nothing of it.
        return
    from e2b import Secret
    from e2b.exceptions import SecretNotFoundException

    made = Secret.create("OpenAI-Key", "sk-0123456789", metadata={"env": "test"})
    equal((made.name, made.version, made.metadata), ("openai-key", 1, {"env": "test"}))
    equal(Secret.fill("openai-key"), "${e2b.secrets.openai-key}")
    try:
        equal(Secret.update("openai-key", "sk-9876543210").version, 2)
        equal(Secret.get_info(made.secret_id).metadata, {"env": "test"})
        other = Secret.create("z", "0123456789")
        paginator, names = Secret.list(limit=1), []
        while paginator.has_next:
            names += [secret.name for secret in paginator.next_items()]
        equal(names, ["openai-key", "z"])
        equal(Secret.destroy(other.secret_id), True)
        raises(Exception, Secret.create, "openai-key", "sk-0123456789")
    finally:
        equal((Secret.destroy("openai-key"), Secret.destroy("openai-key")), (True, False))
    equal(Secret.exists("openai-key"), False)
    raises(SecretNotFoundException, Secret.update, made.secret_id, "sk-0123456789")


@case
def what_is_not_there_says_so(sandbox):
    template = Template().from_aws_registry("a", "key", "secret", "region")
    error = raises(BuildException, Template.build, template, "a-of-tests")
    assert "501" in str(error), error
    assert sandbox.is_running()
