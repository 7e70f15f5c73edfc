"""Contexts of code, by way of E2B's code interpreter SDK."""

import threading

from e2b_code_interpreter import AsyncSandbox, Sandbox
from e2b.exceptions import NotFoundException, SandboxException, TimeoutException

from cases import Skip, case, equal, raises, says


def interpreter(sandbox):
    return Sandbox.connect(sandbox.sandbox_id)


@case
def keep_their_state(sandbox):
    code = interpreter(sandbox)
    first = code.run_code("x = 1")
    equal((first.results, first.error, first.execution_count), ([], None, 1))
    second = code.run_code("x += 1; x")
    equal((second.text, second.results[0].is_main_result, second.execution_count), ("2", True, 2))
    equal(code.run_code("'text'").text, "text")


@case
def are_told_of_as_they_run(sandbox):
    code = interpreter(sandbox)
    seen = []
    execution = code.run_code(
        "import os, sys\nprint('a')\nprint('b', file=sys.stderr)\nos.system('echo c')\ndisplay(1)\n1/0",
        on_stdout=lambda message: seen.append(("out", message.line)),
        on_stderr=lambda message: seen.append(("err", message.line)),
        on_result=lambda result: seen.append(("result", result.text)),
        on_error=lambda error: seen.append(("error", error.name)),
    )
    equal(seen, [("out", "a\n"), ("err", "b\n"), ("out", "c\n"), ("result", "1"), ("error", "ZeroDivisionError")])
    equal(("".join(execution.logs.stdout), "".join(execution.logs.stderr)), ("a\nc\n", "b\n"))
    says(execution.error.traceback, "1/0", "ZeroDivisionError: division by zero")


@case
def show_values_in_every_form(sandbox):
    forms = {
        "html": "<b>v</b>",
        "markdown": "*v*",
        "svg": "<svg/>",
        "png": "iVBORw0KGgo=",
        "jpeg": "/9j/",
        "pdf": "JVBERg==",
        "latex": "$v$",
        "json": {"v": [1, None]},
        "javascript": "v()",
    }
    lines = "".join(f"    def _repr_{form}_(self): return {value!r}\n" for form, value in forms.items())
    result = interpreter(sandbox).run_code(f"class V:\n{lines}    def __repr__(self): return 'V'\nV()").results[0]
    equal({form: result[form] for form in forms}, forms)
    bundle = "{'text/plain': 't', 'e2b/data': {'a': [1]}, 'application/x-mine': 'mine'}"
    result = interpreter(sandbox).run_code(f"class W:\n    def _repr_mimebundle_(self, **_): return {bundle}\nW()").results[0]
    equal((result.text, result.data, result.extra), ("t", {"a": [1]}, {"application/x-mine": "mine"}))


@case
def have_variables_of_a_call(sandbox):
    code = interpreter(sandbox)
    code.run_code("import os; os.environ['KEPT'] = 'before'")
    equal(code.run_code("os.environ['KEPT']", envs={"KEPT": "now"}).text, "now")
    equal(code.run_code("os.environ['KEPT']").text, "before")


@case
def are_apart_from_each_other(sandbox):
    code = interpreter(sandbox)
    code.run_code("x = 'default'")
    sandbox.files.make_dir("/home/user/there")
    context = code.create_code_context(cwd="/home/user/there", language="python")
    equal(code.run_code("import os; os.getcwd()", context=context).text, "/home/user/there")
    equal(code.run_code("x", context=context).error.name, "NameError")
    equal(code.run_code("x").text, "default")
    assert context.id in [one.id for one in code.list_code_contexts()]
    code.run_code("y = 1", context=context)
    code.restart_code_context(context)
    equal(code.run_code("y", context=context).error.name, "NameError")
    code.remove_code_context(context)
    raises(NotFoundException, code.run_code, "1", context=context)
    assert context.id not in [one.id for one in code.list_code_contexts()]
    # A driver is nobody's command.
    equal(sandbox.commands.list(), [])


@case
def are_listed_from_the_start(sandbox):
    code = interpreter(sandbox)
    listed = code.list_code_contexts()
    equal([context.language for context in listed[:2]], ["python", "javascript"])
    equal([context.cwd for context in listed[:2]], ["/home/user"] * 2)
    equal(sandbox.commands.list(), [])
    code.run_code("x = 5")
    equal(code.run_code("x", context=listed[0]).text, "5")
    made = code.create_code_context()
    equal([context.id for context in code.list_code_contexts()], [context.id for context in listed] + [made.id])
    code.remove_code_context(made)


@case
def work_where_they_are_told_to(sandbox):
    code = interpreter(sandbox)
    for cwd in ("/root", "/tmp", "/home/user"):
        context = code.create_code_context(cwd=cwd)
        equal((context.cwd, code.run_code("import os; os.getcwd()", context=context).text), (cwd, cwd))
        code.remove_code_context(context)
    sandbox.commands.run("mkdir -m 000 /tmp/closed")
    refused = str(raises(SandboxException, code.create_code_context, cwd="/tmp/closed"))
    says(refused, "400", "the working directory `/tmp/closed` cannot be entered: Permission denied")
    sandbox.commands.run("rmdir /tmp/closed")


@case
def end_with_their_sandbox(sandbox):
    # Killed under the cell, which has begun.
    with Sandbox.create("base") as own:
        kill = lambda message: threading.Thread(target=own.kill).start()
        error = raises(TimeoutException, own.run_code, "print('on')\nimport time; time.sleep(300)", on_stdout=kill, timeout=100)
        says(str(error), "sandbox was killed while the request was in progress")


@case
def come_back_when_their_process_was_killed(sandbox):
    code = interpreter(sandbox)
    own = {"python": "import os; os.getpid()", "bash": "echo $$", "javascript": "process.pid"}
    for language, ask in own.items():
        if language == "javascript" and sandbox.commands.run("command -v node || true").stdout == "":
            continue
        for _ in range(3):
            told = code.run_code(ask, language=language)
            pid = told.text or "".join(told.logs.stdout).strip()
            sandbox.commands.run(f"kill -9 {pid}")
            execution = code.run_code("1", language=language)
            # Nothing of it was run, whoever heard of the end first.
            equal((execution.error.name, execution.execution_count, execution.results), ("ContextDied", None, []))
            says(execution.error.value, "the cell was not run", "was killed (signal 9, SIGKILL)")
            equal(code.run_code(ask, language=language).error, None)


@case
def keep_the_place_of_a_number_that_is_none(sandbox):
    code = interpreter(sandbox)
    made = "{'application/json': {'a': [1, float('nan')]}, 'e2b/data': {'n': [float('inf')]}, 'application/x+json': '[NaN]', 'text/plain': 't'}"
    result = code.run_code(f"class N:\n    def _repr_mimebundle_(self, **_): return {made}\nN()").results[0]
    equal((result.json, result.data, result.extra), ({"a": [1, None]}, {"n": [None]}, {"application/x+json": [None]}))
    equal(code.run_code("float('nan')").text, "nan")


@case
def go_on_when_a_caller_gives_up(sandbox):
    code = interpreter(sandbox)
    code.run_code("x = 1")
    raises(TimeoutException, code.run_code, "import time\nwhile True: time.sleep(1)", timeout=2)
    equal(code.run_code("x += 1; x").text, "2")


@case
def run_javascript(sandbox):
    if sandbox.commands.run("command -v node || true").stdout == "":
        raise Skip("there is no `node` in the sandbox")
    code = interpreter(sandbox)
    run = lambda text, **options: code.run_code(text, language="javascript", **options)
    equal(run("let x = 1; const more = await Promise.resolve(2)").error, None)
    equal(run("x += more; x").text, "3")
    equal(code.run_code("'text'", language="js").text, "text")
    seen = []
    execution = run(
        "console.log('a'); console.error('b'); require('child_process').execSync('echo c', { stdio: 'inherit' })\n"
        "display({ 'text/html': '<b>v</b>' }); throw new RangeError('wrong')",
        on_stdout=lambda message: seen.append(message.line),
        on_stderr=lambda message: seen.append(message.line),
    )
    equal((seen, execution.results[0].html), (["a\n", "b\n", "c\n"], "<b>v</b>"))
    equal((execution.error.name, execution.error.value), ("RangeError", "wrong"))
    equal(run("process.env.MINE", envs={"MINE": "v"}).text, "v")
    raises(TimeoutException, run, "for (;;);", timeout=2)
    equal(run("x").text, "3")
    execution = run("process.exit(3)")
    equal(execution.error.name, "ContextDied")
    says(execution.error.value, "exited with status 3")
    equal(run("typeof x").text, "undefined")


@case
def die_and_say_so(sandbox):
    code = interpreter(sandbox)
    code.run_code("x = 1")
    for ending in ("import os; print('last'); os._exit(3)", "import os; os.kill(os.getpid(), 11)"):
        execution = code.run_code(ending)
        equal(execution.error.name, "ContextDied")
        equal(code.run_code("x").error.name, "NameError")
    for ending, reason in (
        ("import os; os._exit(3)", "its process exited with status 3"),
        ("import os; os.abort()", "(signal 6, SIGABRT)"),
        ("import ctypes; ctypes.string_at(0)", "crashed: segmentation fault (signal 11, SIGSEGV)"),
        ("import os; os.kill(os.getpid(), 9)", "was killed (signal 9, SIGKILL)"),
    ):
        says(code.run_code(ending).error.value, reason)


@case
def run_out_of_memory_and_say_so(sandbox):
    code = interpreter(sandbox)
    code.run_code("x = 1")
    error = code.run_code("kept = []\nwhile True: kept.append(bytearray(b'x') * (50 << 20))", timeout=60).error
    if error.name == "MemoryError":
        # Without a control group each process is bounded, and Python tells its cell.
        equal(code.run_code("kept = None; x").text, "1")
        return
    equal(error.name, "ContextDied")
    says(error.value, "the sandbox was out of memory, of which it may use ")
    equal(code.run_code("x").error.name, "NameError")
    equal(code.run_code("1 + 1").text, "2")


@case
def keep_the_state_of_a_shell(sandbox):
    code = interpreter(sandbox)
    equal(code.run_code("x=1; f() { echo f $1; }; cd /tmp", language="bash").error, None)
    execution = code.run_code("echo $x; f 2; pwd; echo e >&2", language="bash")
    equal("".join(execution.logs.stdout), "1\nf 2\n/tmp\n")
    equal("".join(execution.logs.stderr), "e\n")
    error = code.run_code("(exit 7)", language="bash").error
    equal((error.name, error.value), ("ExitCode", "7"))
    equal(code.run_code("if", language="bash").error.name, "SyntaxError")
    equal(code.run_code("set -e; false; echo no", language="bash").logs.stdout, [])
    equal("".join(code.run_code("echo $x $A", language="bash", envs={"A": "a"}).logs.stdout), "1 a\n")
    raises(TimeoutException, code.run_code, "while :; do sleep 1; done", language="bash", timeout=2)
    equal("".join(code.run_code("sleep 1000 & echo $x $A", language="bash").logs.stdout), "1\n")
    died = code.run_code("exit 3", language="bash").error
    equal(died.name, "ContextDied")
    says(died.value, "exited with status 3")
    context = code.create_code_context(language="bash", cwd="/tmp")
    equal("".join(code.run_code("echo $x; pwd", context=context).logs.stdout), "\n/tmp\n")
    code.remove_code_context(context)


@case
def run_r(sandbox):
    code = interpreter(sandbox)
    if sandbox.commands.run("command -v Rscript || true").stdout == "":
        says(raises(SandboxException, code.run_code, "1", language="r").args[0], "r-base-core")
        raise Skip("there is no `Rscript`")
    equal(code.run_code("x <- 1; twice <- function(n) 2 * n", language="r").error, None)
    execution = code.run_code("cat(x, '\\n'); message('e'); twice(x)", language="r")
    equal((execution.text, execution.results[0].is_main_result), ("[1] 2", True))
    equal(("".join(execution.logs.stdout), "".join(execution.logs.stderr)), ("1 \n", "e\n"))
    error = code.run_code("stop('bad')", language="r").error
    equal((error.name, error.value), ("simpleError", "bad"))
    equal(code.run_code("x <-", language="r").error.name, "SyntaxError")
    drawn = code.run_code("plot(1:3)", language="r").results
    equal([bool(result.png or result.pdf) for result in drawn], [True])
    says(code.run_code("data.frame(n = 1:2)", language="r").results[0].html, "<td>2</td>")
    raises(TimeoutException, code.run_code, "repeat {}", language="r", timeout=5)
    equal(code.run_code("paste(x, Sys.getenv('A'))", language="r", envs={"A": "a"}).text, '[1] "1 a"')
    died = code.run_code("q(status = 3)", language="r").error
    equal(died.name, "ContextDied")
    says(died.value, "exited with status 3")


@case
def run_java(sandbox):
    code = interpreter(sandbox)
    if sandbox.commands.run("command -v javac || true").stdout == "":
        says(raises(SandboxException, code.run_code, "1", language="java").args[0], "default-jdk-headless")
        raise Skip("there is no `javac`")
    equal(code.run_code("int x = 1; int twice(int n) { return 2 * n; }", language="java").error, None)
    execution = code.run_code('System.out.println(x); System.err.println("e"); "v" + twice(x)', language="java")
    equal((execution.text, execution.results[0].is_main_result), ("v2", True))
    equal(("".join(execution.logs.stdout), "".join(execution.logs.stderr)), ("1\n", "e\n"))
    error = code.run_code("x / 0", language="java").error
    equal((error.name, error.value), ("java.lang.ArithmeticException", "/ by zero"))
    equal(code.run_code("x = ", language="java").error.name, "CompilationException")
    raises(TimeoutException, code.run_code, "while (true) {}", language="java", timeout=5)
    equal(code.run_code('x + System.getenv("A")', language="java", envs={"A": "a"}).text, "1a")
    equal(code.run_code('System.getProperty("A")', language="java", envs={"A": "a"}).text, "a")
    equal(code.run_code('System.getProperty("A", "none")', language="java").text, "none")
    died = code.run_code("System.exit(3);", language="java").error
    equal(died.name, "ContextDied")
    says(died.value, "exited with status 3")


@case
def wait_for_each_other(sandbox):
    code = interpreter(sandbox)
    code.run_code("n = 0")
    add = "m = n\nimport time; time.sleep(0.01)\nn = m + 1"
    callers = [threading.Thread(target=code.run_code, args=(add,)) for _ in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    equal(code.run_code("n").text, "8")


@case
def refuse_what_cannot_be(sandbox):
    code = interpreter(sandbox)
    says(raises(SandboxException, code.run_code, "1", language="cobol"), "cobol", "python")
    refused = str(raises(SandboxException, code.create_code_context, cwd="/nowhere"))
    says(refused, "the working directory `/nowhere` cannot be entered: No such file or directory", "make the directory first")
    equal(refused.count("cannot be entered"), 1)
    context = code.create_code_context()
    raises(Exception, code.run_code, "1", context=context, language="python")
    equal(code.run_code("a\0b").error is not None, True)
    equal(code.run_code("z = '" + "é" * 2_500_000 + "'; len(z)").text, "2500000")


@case
def do_not_drown_in_output(sandbox):
    code = interpreter(sandbox)
    execution = code.run_code("for _ in range(100): print('x' * 1_000_000)", timeout=100)
    kept = sum(map(len, execution.logs.stdout))
    assert 60_000_000 < kept < 70_000_000, kept
    says("".join(execution.logs.stderr), "cut")
    equal(code.run_code("1").text, "1")


@case
async def work_for_those_that_do_not_wait(sandbox):
    code = await AsyncSandbox.connect(sandbox.sandbox_id)
    await code.run_code("x = 1")
    seen = []
    execution = await code.run_code("x += 1\nprint(x)\nx", on_stdout=lambda message: seen.append(message.line))
    equal((execution.text, seen), ("2", ["2\n"]))
    await code.run_code("x=bash", language="bash")
    execution = await code.run_code("echo $x; false", language="bash", on_stdout=lambda message: seen.append(message.line))
    equal((execution.error.value, seen), ("1", ["2\n", "bash\n"]))
    context = await code.create_code_context()
    equal((await code.run_code("x", context=context)).error.name, "NameError")
    await code.remove_code_context(context)


@case
def go_on_in_forks(sandbox):
    if not hasattr(Sandbox, "fork"):
        # Older ones know nothing of it.
        return
    code = interpreter(sandbox)
    code.run_code("rows = [n * n for n in range(1000)]\ndef total(): return sum(rows)")
    forks = code.fork(count=2)
    try:
        for number, fork in enumerate(forks):
            equal(fork.run_code(f"rows.append({number}); total()").text, str(332833500 + number))
        equal(code.run_code("total(), len(rows)").text, "(332833500, 1000)")
    finally:
        for fork in forks:
            fork.kill()
    code.run_code("import threading\nlock = threading.Lock()")
    refused = str(raises(SandboxException, code.fork))
    says(refused, "lock")
    says(refused, "delete that first, or leave it out: `contexts` of a fork can be `possible`")
