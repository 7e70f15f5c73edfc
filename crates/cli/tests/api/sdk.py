import urllib.request

import e2b
from e2b import Sandbox


def refused(kind, call):
    try:
        call()
    except kind as error:
        assert "/tmp/" not in str(error), error
        return error
    raise AssertionError(f"{call} was not refused")


sandbox = Sandbox.create(timeout=60, metadata={"k": "v 1"}, envs={"E": "f"})
try:
    assert sandbox.is_running()
    assert sandbox.commands.run('echo "hi $E"').stdout == "hi f\n"
    assert refused(e2b.CommandExitException, lambda: sandbox.commands.run("exit 3")).exit_code == 3
    sandbox.files.write("/home/user/a.txt", "x")
    assert sandbox.files.read("/home/user/a.txt") == "x"
    assert "a.txt" in [entry.name for entry in sandbox.files.list("/home/user")]
    assert not sandbox.files.exists("/home/user/b.txt")
    assert sandbox.files.make_dir("/home/user/d") and not sandbox.files.make_dir("/home/user/d")
    # One address for all sandboxes: the signature alone says whose file it is.
    assert urllib.request.urlopen(sandbox.download_url("/home/user/a.txt")).read() == b"x"
    info = sandbox.get_info()
    assert info.metadata == {"k": "v 1"} and info.state.value == "running", info
    sandbox.set_timeout(120)
    assert sandbox.get_info().end_at > info.end_at
    assert sandbox.sandbox_id in [other.sandbox_id for other in Sandbox.list().next_items()]
    command = sandbox.commands.run("sleep 600", background=True)
    assert command.pid in [process.pid for process in sandbox.commands.list()]
    assert command.kill()
    assert isinstance(sandbox.get_metrics(), list)
finally:
    assert sandbox.kill()
assert not sandbox.kill()
assert not sandbox.is_running()
refused(e2b.SandboxException, lambda: sandbox.commands.run("true"))
refused(e2b.SandboxException, sandbox.get_info)
refused(e2b.SandboxException, lambda: Sandbox.create("nothing"))
refused(e2b.AuthenticationException, lambda: Sandbox.create(api_key="e2b_" + "0" * 40))
refused(e2b.SandboxException, lambda: Sandbox.create(network={"allow_out": ["a.test"]}))
print("all of it")
