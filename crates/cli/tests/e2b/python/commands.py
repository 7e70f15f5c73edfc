"""Commands in a sandbox."""

import threading

from e2b import CommandExitException, NotFoundException, Sandbox, SandboxException, TimeoutException
from e2b.exceptions import AuthenticationException, InvalidArgumentException

from cases import case, equal, eventually, raises, says


@case
def answer_what_they_wrote(sandbox):
    result = sandbox.commands.run("echo out; echo err >&2")
    equal((result.stdout, result.stderr, result.exit_code), ("out\n", "err\n", 0))


@case
def raise_when_they_fail(sandbox):
    for code in [1, 3, 127, 255]:
        error = raises(CommandExitException, sandbox.commands.run, f"echo before; exit {code}")
        equal((error.exit_code, error.stdout, error.error), (code, "before\n", f"exit status {code}"))
    error = raises(CommandExitException, sandbox.commands.run, "kill -KILL $$")
    equal((error.exit_code, error.error), (-1, "signal: killed"))


@case
def are_told_of_while_they_run(sandbox):
    out, err = [], []
    sandbox.commands.run("echo a; sleep 0.2; echo b >&2; sleep 0.2; echo c", on_stdout=out.append, on_stderr=err.append)
    equal(("".join(out), "".join(err)), ("a\nc\n", "b\n"))


@case
def write_characters_that_no_piece_cuts(sandbox):
    seen = []
    sandbox.commands.run("printf 'é%.0s' $(seq 40000)", on_stdout=seen.append)
    equal("".join(seen), "é" * 40000)


@case
def run_as_who_is_asked_for(sandbox):
    equal(sandbox.commands.run("echo $HOME:$USER:$LOGNAME; pwd").stdout, "/home/user:user:user\n/home/user\n")
    equal(sandbox.commands.run("echo $HOME:$USER", user="root").stdout, "/root:root\n")
    says(
        raises(AuthenticationException, sandbox.commands.run, "true", user="nobody-there"),
        "invalid username: 'nobody-there'",
    )


@case
def run_where_they_are_asked_to(sandbox):
    equal(sandbox.commands.run("pwd", cwd="/tmp").stdout, "/tmp\n")
    error = raises(InvalidArgumentException, sandbox.commands.run, "true", cwd="/not/there")
    says(error, "/not/there", "does not exist")


@case
def read_what_is_sent(sandbox):
    handle = sandbox.commands.run("read line; echo got $line", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "hello\n")
    equal(handle.wait().stdout, "got hello\n")


@case
def see_the_end_of_their_input(sandbox):
    handle = sandbox.commands.run("wc -c", background=True, stdin=True)
    sandbox.commands.send_stdin(handle.pid, "é")
    for _ in range(3):
        sandbox.commands.send_stdin(handle.pid, 100_000 * "x")
    sandbox.commands.close_stdin(handle.pid)
    equal(handle.wait().stdout.strip(), "300002")


@case
def run_on_when_nobody_listens(sandbox):
    handle = sandbox.commands.run("echo start; until test -e go; do sleep 0.05; done; echo end", background=True)
    handle.disconnect()
    assert handle.pid in [process.pid for process in sandbox.commands.list()]
    again = sandbox.commands.connect(handle.pid)
    sandbox.files.write("go", "")
    assert again.wait().stdout.endswith("end\n")
    assert handle.pid not in [process.pid for process in sandbox.commands.list()]


@case
def end_for_those_who_ask_late(sandbox):
    handle = sandbox.commands.run("until test -e go; do sleep 0.05; done; exit 7", background=True)
    handle.disconnect()
    sandbox.files.write("go", "")
    eventually(lambda: "the end", lambda: handle.pid not in [process.pid for process in sandbox.commands.list()])
    equal(raises(CommandExitException, lambda: sandbox.commands.connect(handle.pid).wait()).exit_code, 7)


@case
def are_killed(sandbox):
    handle = sandbox.commands.run("sleep 3600", background=True)
    equal(sandbox.commands.kill(handle.pid), True)
    error = raises(CommandExitException, handle.wait)
    equal((error.exit_code, error.error), (-1, "signal: killed"))
    equal(sandbox.commands.kill(handle.pid), False)
    equal(sandbox.commands.kill(999999), False)


@case
def end_when_their_time_is_over(sandbox):
    raises(TimeoutException, sandbox.commands.run, "sleep 3601", timeout=1)
    equal(sandbox.commands.run("echo alive").stdout, "alive\n")
    left = lambda: [process for process in sandbox.commands.list() if "sleep 3601" in process.args]
    eventually(left, lambda: not left())


@case
def of_a_number_that_is_not_there_are_not_found(sandbox):
    error = raises(NotFoundException, sandbox.commands.connect, 999999)
    says(error, "process with pid 999999 not found")
    raises((NotFoundException, SandboxException), sandbox.commands.send_stdin, 999999, "x")


@case
def write_much(sandbox):
    result = sandbox.commands.run("head -c 8000000 /dev/zero | tr '\\0' x; echo end >&2")
    equal((len(result.stdout), set(result.stdout), result.stderr), (8_000_000, {"x"}, "end\n"))


@case
def write_what_is_no_text(sandbox):
    result = sandbox.commands.run(r"printf 'a\xff\xfeb\xc3'; sleep 0.2; printf '\xa4\n'")
    assert result.stdout.startswith("a") and result.stdout.endswith("ä\n"), result.stdout


@case
def are_listed_with_what_they_are(sandbox):
    handle = sandbox.commands.run("sleep 3600", background=True, envs={"A": "b"}, cwd="/tmp")
    (found,) = [process for process in sandbox.commands.list() if process.pid == handle.pid]
    equal((found.cmd, found.args[-1], found.cwd, found.envs.get("A")), ("/bin/bash", "sleep 3600", "/tmp", "b"))
    handle.kill()


@case
def run_beside_one_another(sandbox):
    answers = [None] * 24

    def run(number):
        answers[number] = sandbox.commands.run(f"for i in $(seq 50); do echo {number}; done").stdout

    threads = [threading.Thread(target=run, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(answers, [50 * f"{number}\n" for number in range(24)])


@case
def end_with_the_sandbox():
    sandbox = Sandbox.create()
    handle = sandbox.commands.run("sleep 3600", background=True)
    sandbox.kill()
    raises((TimeoutException, NotFoundException, SandboxException), handle.wait)
