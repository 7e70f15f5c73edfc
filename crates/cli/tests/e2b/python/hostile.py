"""Cells that mean no good, by way of E2B's code interpreter SDK: whatever they do, the next one is answered rightly."""

import time

from e2b.exceptions import NotFoundException, SandboxException
from e2b_code_interpreter import Sandbox

from cases import case, equal, raises, says

LANGUAGES = {"python": "print('alive')", "bash": "echo alive", "javascript": "console.log('alive')"}


def languages(sandbox):
    has_node = sandbox.commands.run("command -v node || true").stdout != ""
    return {name: code for name, code in LANGUAGES.items() if has_node or name != "javascript"}


def goes_on(code, language="python"):
    """The context, or a new one after saying once that the old one died, runs what it is given, and says nothing else."""
    execution = code.run_code(LANGUAGES[language], language=language)
    if execution.error is not None:
        equal(execution.error.name, "ContextDied")
        execution = code.run_code(LANGUAGES[language], language=language)
    equal(("".join(execution.logs.stdout), execution.error), ("alive\n", None))


@case
def are_as_long_as_they_like_up_to_a_limit(sandbox):
    code = Sandbox.connect(sandbox.sandbox_id)
    for language, line in languages(sandbox).items():
        comment = "//" if language == "javascript" else "#"
        execution = code.run_code(f"{comment} {'é' * 5_000_000}\n{line}", language=language, timeout=110)
        equal("".join(execution.logs.stdout), "alive\n")
        says(raises(SandboxException, code.run_code, "#" * (17 << 20), language=language), "bytes")
        goes_on(code, language)


@case
def have_characters_that_no_language_wants(sandbox):
    code = Sandbox.connect(sandbox.sandbox_id)
    for language in languages(sandbox):
        for text in ("\0", "print(1)\0print(2)", "\ufeff", "\u2028", "\x7f\x1b[2J"):
            code.run_code(text, language=language)
            goes_on(code, language)
    # What ends a line elsewhere ends none here.
    ends = "a\x0bb\x0cc\x1cd\x1de\x1ef\x85g\u2028h\u2029i\r\n"
    shown = "class V:\n    def _repr_html_(self): return t\ndisplay(V())"
    execution = code.run_code(f"t = {ends!r}\nprint(t, end='')\n{shown}\nraise ValueError(t)")
    equal("".join(execution.logs.stdout), ends)
    equal((execution.results[0].html, execution.error.value), (ends, ends))


@case
def kill_what_they_came_from(sandbox):
    code = Sandbox.connect(sandbox.sandbox_id)
    kills = {
        "python": "import os, signal\nfor pid in (os.getppid(), 1):\n    try: os.kill(pid, signal.SIGKILL)\n    except OSError: pass",
        "bash": "kill -9 $PPID; kill -9 1",
        "javascript": "for (const pid of [process.ppid, 1]) try { process.kill(pid, 'SIGKILL') } catch {}",
    }
    for language in languages(sandbox):
        code.run_code(kills[language], language=language)
        goes_on(code, language)
    # The first process of a sandbox is nobody's to kill.
    equal(sandbox.commands.run("echo alive").stdout, "alive\n")


@case
def leave_children_that_go_on_talking(sandbox):
    code = Sandbox.connect(sandbox.sandbox_id)
    leave = {
        "python": "import subprocess\nsubprocess.Popen('while :; do echo noise; sleep 0.01; done', shell=True)\nNone",
        "bash": "while :; do echo noise; sleep 0.01; done &",
        "javascript": "require('child_process').spawn('sh', ['-c', 'while :; do echo noise; sleep 0.01; done'], { stdio: 'inherit' }); 0",
    }
    for language, line in languages(sandbox).items():
        equal(code.run_code(leave[language], language=language).error, None)
        time.sleep(0.2)
        # They write to where their cell wrote, as long as they live; nothing is mixed up by that.
        execution = code.run_code(line, language=language)
        equal(("".join(execution.logs.stdout).replace("noise\n", ""), execution.error), ("alive\n", None))
        sandbox.commands.run("pkill -f 'echo nois[e]' || true")


@case
def break_their_streams(sandbox):
    code = Sandbox.connect(sandbox.sandbox_id)
    for text in (
        "import os; os.close(1); os.close(2)",
        "import sys; sys.stdout = sys.stderr = None",
        "import os; os.closerange(0, 1000)",
        "import builtins; builtins.print = None; builtins.compile = None; builtins.len = None",
        "import sys; sys.modules.clear()",
        "import threading; threading.Thread(target=lambda: [print('late') for _ in range(3)]).run()",
    ):
        # One whose descriptors are all closed has ended, and says so.
        context = code.create_code_context()
        code.run_code(text, context=context)
        code.restart_code_context(context)
        equal("".join(code.run_code("print('alive')", context=context).logs.stdout), "alive\n")
        code.remove_code_context(context)


@case
def speak_as_their_driver(sandbox):
    code = Sandbox.connect(sandbox.sandbox_id)
    forge = (
        "import os\n"
        "for name in os.listdir('/proc/self/fd'):\n"
        "    for frame in (b'done ' + b'1' * 32 + b' 0\\n', b'count ' + b'0' * 32 + b' 3\\n999', b'nonsense'):\n"
        "        try: os.write(int(name), frame)\n"
        "        except OSError: pass\n"
        "'forged'"
    )
    for _ in range(3):
        execution = code.run_code(forge)
        # Either nobody heard it, or the context is at its end; never is something else believed.
        assert execution.text == "forged" or execution.error.name == "ContextDied", execution
        goes_on(code)


@case
def name_a_context_of_another_sandbox(sandbox):
    code = Sandbox.connect(sandbox.sandbox_id)
    context = code.create_code_context()
    code.run_code("x = 'mine'", context=context)
    with Sandbox.create("base") as other:
        for call in (other.restart_code_context, other.remove_code_context):
            raises(NotFoundException, call, context)
        raises(NotFoundException, other.run_code, "x", context=context)
        equal([one.id for one in other.list_code_contexts() if one.id == context.id], [])
    equal(code.run_code("x", context=context).text, "mine")


@case
def have_no_bottom(sandbox):
    code = Sandbox.connect(sandbox.sandbox_id)
    deep = "def deep(n): return deep(n + 1)\n"
    equal(code.run_code(deep + "deep(0)").error.name, "RecursionError")
    # The stack of the process, and not Python's own count.
    code.run_code(deep + "import sys; sys.setrecursionlimit(10**6)\nimport functools\nd = lambda n: functools.reduce(d, [n, n]) if n else 0\nd(1)", timeout=100)
    goes_on(code)
    code.run_code("f() { f; }; f", language="bash", timeout=100)
    goes_on(code, "bash")
