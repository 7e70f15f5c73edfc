"""Tests of the driver of Python contexts, spoken to as its host does.

Run with the interpreter that the driver is to run in. What needs IPython or a library is left out where that is not
installed, unless `OFFLEASH_LIBRARIES` says that all of them are.
"""

import base64
import json
import os
import re
import shutil
import sys
import tempfile
import time
import unittest

import harness
from harness import PATIENCE, bootstrap, driver_file


def has(name):
    if os.environ.get("OFFLEASH_LIBRARIES"):
        return True
    try:
        __import__(name)
    except ImportError:
        return False
    return True


class Driver(harness.Driver):
    """A driver of Python."""

    def __init__(self, plain=False, env=None, cwd=None, before=b""):
        environment = {**os.environ, **(env or {})}
        environment.pop("MPLBACKEND", None)
        source = before + driver_file("python.py")
        if plain:
            source = b"import sys; sys.modules['IPython'] = None\n" + source
        super().__init__([sys.executable, "-c", bootstrap("PYTHON")], source, environment, cwd)


class DriverTest(harness.Cells):
    plain = True

    def make(self):
        return Driver(plain=self.plain)

    def used(self):
        """The driver's memory in KiB."""
        with open(f"/proc/{self.driver.process.pid}/status") as status:
            return int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1))


class Cells(DriverTest):
    """What holds with and without IPython; here without."""

    def test_state_is_kept(self):
        first = self.run_cell("x = 1")
        self.assertEqual((first.count, first.results, first.errors), (1, [], []))
        second = self.run_cell("x += 1; x")
        self.assertEqual((second.count, second.text), (2, "2"))
        self.assertEqual(self.driver.sync(), 2)

    def test_what_is_loaded_ahead_is_there_and_seen_nowhere(self):
        self.driver.give("import", "0" * 32, b"poplib\nno_such_module\nthis")
        self.driver.give("variable", "0" * 32, b"FLAVOUR=a=b")
        self.assertEqual(self.driver.sync(), 0)
        cell = self.run_cell("import os, sys; ('poplib' in sys.modules, 'poplib' in dir(), os.environ['FLAVOUR'])")
        self.assertEqual((cell.count, cell.text), (1, "(True, False, 'a=b')"))
        self.assertEqual(cell.output, [], "what a module says when it is loaded is of no cell")
        self.driver.give("variable", "0" * 32, b"FLAVOUR=late")
        self.assertEqual(self.run_cell("os.environ['FLAVOUR']").text, "'a=b'")

    def test_the_last_expression_is_the_result(self):
        self.assertEqual(self.run_cell("1\n'two'").text, "'two'")
        self.assertIsNone(self.run_cell("None").main)
        self.assertIsNone(self.run_cell("3;").main)
        self.assertEqual(self.run_cell("").results, [])

    def test_an_error_has_name_value_and_traceback_without_our_frames(self):
        cell = self.run_cell("def f():\n    raise ValueError('wrong')\nf()")
        (name, value, lines), = cell.errors
        self.assertEqual((name, value), ("ValueError", "wrong"))
        self.assertIn("raise ValueError", lines)
        self.assertNotIn("offleash", lines)
        self.assertNotIn("interactiveshell", lines)
        self.assertNotIn("\x1b", lines)
        self.assertEqual(self.run_cell("1 +").errors[0][0], "SyntaxError")
        self.assertEqual(self.run_cell("1").text, "1")

    def test_every_way_to_fail_is_told(self):
        for code, expected in [
            ("raise SystemExit(3)", "SystemExit"),
            ("raise KeyboardInterrupt", "KeyboardInterrupt"),
            ("class E(Exception):\n  def __str__(self): raise E\nraise E", "E"),
            ("def f(): f()\nf()", "RecursionError"),
            ("a\0b", None),
            ("raise BaseException('b')", "BaseException"),
            ("exec('x' * 5)", "NameError"),
        ]:
            with self.subTest(code):
                errors = self.run_cell(code).errors
                self.assertEqual(len(errors), 1, errors)
                if expected:
                    self.assertEqual(errors[0][0], expected)
        self.assertEqual(self.run_cell("7").text, "7")

    def test_long_tracebacks_are_told_by_their_ends(self):
        # There is much that could be looked through.
        self.run_cell("import sys, types\nfor n in range(500): sys.modules[f'made{n}'] = types.ModuleType(f'made{n}')")
        self.run_cell("def f(n):\n    return f(n + 1)\ndef deep(n): f(0)\nsys.setrecursionlimit(10_000)")
        self.run_cell("def g(n):\n    try: g(n + 1)\n    except Exception: raise ValueError(n)")
        for code, name, texts in [
            ("deep(0)", "RecursionError", ("deep(0)", "frames left out]", "return f(n + 1)", "maximum recursion depth")),
            ("try: deep(0)\nexcept Exception: 1 / 0", "ZeroDivisionError", ("frames left out]", "return f(n + 1)", "1 / 0")),
            ("sys.setrecursionlimit(800)\ng(0)", "ValueError", ("g(0)", "ValueError: 300", "maximum recursion depth")),
        ]:
            with self.subTest(code):
                started = time.monotonic()
                (found, _value, lines), = self.run_cell(code).errors
                self.assertLess(time.monotonic() - started, 3)
                self.assertEqual(found, name)
                for text in texts:
                    self.assertTrue(text in lines, (text, lines[:3000]))
                self.assertNotIn("offleash", lines)
        # All of it is there for code that looks at it.
        self.run_cell("try: f(0)\nexcept RecursionError as e: kept = e")
        self.run_cell("def size(t):\n    n = 0\n    while t: t, n = t.tb_next, n + 1\n    return n")
        before = int(self.run_cell("size(kept.__traceback__)").text)
        self.run_cell("raise kept")
        self.assertGreaterEqual(int(self.run_cell("size(kept.__traceback__)").text), before)

    def test_groups_of_errors_are_told(self):
        if sys.version_info < (3, 11):
            self.skipTest("this Python has no groups")
        group = "ExceptionGroup('several', [ValueError('first'), KeyError('second')])"
        handled = f"try:\n    raise {group}\nexcept Exception as e:\n    "
        task = "import asyncio\nasync def f(): raise ValueError('first')\nasync with asyncio.TaskGroup() as g: g.create_task(f())"
        for code, name, texts in [
            (f"raise {group}", "ExceptionGroup", ("several (2 sub-exceptions)", "ValueError: first", "KeyError: 'second'")),
            ("raise BaseExceptionGroup('b', [SystemExit(3)])", "BaseExceptionGroup", ("SystemExit: 3",)),
            (handled + "raise TypeError('then')", "TypeError", ("ValueError: first", "TypeError: then")),
            (handled + "raise TypeError('then') from e", "TypeError", ("ValueError: first", "TypeError: then")),
            (task, "ExceptionGroup", ("ValueError: first", "raise ValueError('first')")),
        ]:
            with self.subTest(code):
                cell = self.run_cell(code)
                (found, _value, lines), = cell.errors
                self.assertEqual((found, cell.output), (name, []))
                for text in texts:
                    self.assertIn(text, lines)
                for text in ("offleash", "interactiveshell.py", "async_helpers.py"):
                    self.assertNotIn(text, lines)

    def test_output_comes_in_order(self):
        cell = self.run_cell(
            "import os, sys\n"
            "for i in range(50):\n"
            "    print('p', i)\n"
            "    os.system(f'echo c {i}')\n"
            "    os.write(1, b'w %d\\n' % i)\n"
            "    sys.stdout.buffer.write(b'b %d\\n' % i)\n"
            "    print('e', i, file=sys.stderr)\n"
        )
        expected = "".join(f"p {i}\nc {i}\nw {i}\nb {i}\ne {i}\n" for i in range(50))
        self.assertEqual(cell.all_output, expected)
        self.assertEqual(cell.stderr, "".join(f"e {i}\n" for i in range(50)))

    def test_output_streams(self):
        gate = os.path.join(self.driver.directory, "gate")
        os.mkfifo(gate)
        opened = []

        def on_output(came):
            # The cell waits for this, so what came before was not kept back.
            if "first" in came.stdout and not opened:
                opened.append(True)
                open(gate, "w").close()

        cell = self.run_cell("print('first')\nopen('gate').read()\nprint('second')", on_output=on_output)
        self.assertEqual(cell.stdout, "first\nsecond\n")

    def test_a_line_is_told_of_whole(self):
        cell = self.run_cell("print('a', 'b')")
        self.assertEqual(cell.output, [("stdout", b"a b\n")])
        self.assertEqual(self.run_cell("print('c', end='')").stdout, "c")

    def test_output_that_is_no_text_is_kept(self):
        cell = self.run_cell("import os; os.write(1, b'a\\xff\\x00b'); print('\\ud800')")
        self.assertEqual(b"".join(data for _, data in cell.output), b"a\xff\x00b\\ud800\n")

    def test_a_forged_frame_is_output(self):
        forged = f"done {'0' * 31}2 0\n"
        cell = self.run_cell(f"import os; os.write(1, {forged.encode()!r}); print({forged!r}, end=''); 5")
        self.assertEqual(cell.stdout, forged * 2)
        self.assertEqual(cell.text, "5")

    def test_a_flood_is_cut(self):
        room = 100_000
        cell = self.run_cell("print('x' * 50_000_000)", room=room)
        self.assertEqual(len(cell.stdout), room)
        self.assertEqual(cell.truncated, 50_000_001 - room)
        cell = self.run_cell("import os; os.system('yes 2>/dev/null | head -c 20000000')", room=room)
        self.assertEqual(len(cell.stdout), room)
        self.assertEqual(cell.truncated, 20_000_000 - room)
        cell = self.run_cell("for i in range(100_000): print(i)", room=room)
        self.assertEqual(len(cell.stdout), room)
        self.assertEqual(self.run_cell("print('again')").stdout, "again\n")

    def test_what_cells_write_show_and_are_is_not_kept_without_bound(self):
        long = "class Long:\n    def __repr__(self): return 'y' * 2_000_000\n"
        codes = ["print('y' * 2_000_000)", "Long()", "#" + "y" * 2_000_000, "raise ValueError('y' * 2_000_000)"]
        self.run_cell(long)
        for code in codes:
            with self.subTest(code[:20]):
                for _ in range(3):
                    self.run_cell(code, room=1000)
                before = self.used()
                for _ in range(40):
                    self.run_cell(code, room=1000)
                self.assertLess(self.used() - before, 60_000, "KiB; all of it is 80,000")
        self.assertEqual(self.run_cell("def f():\n    1 / 0\nf()").errors[0][0], "ZeroDivisionError")

    def test_streams_that_a_cell_breaks_are_mended(self):
        for code in [
            "import os; os.close(1); os.close(2)",
            "import sys; sys.stdout = None; sys.stderr = 3",
            "import sys; sys.stdout.close()",
            "import os; os.dup2(os.open('/dev/null', os.O_WRONLY), 1)",
            "import os; os.close(0)",
            "import os; os.closerange(3, 100)",
            "import sys; sys.__stdout__ = sys.displayhook = None",
        ]:
            with self.subTest(code):
                self.run_cell(code)
                cell = self.run_cell("import os; print('a'); os.system('echo b'); 1")
                self.assertEqual((cell.stdout, cell.text), ("a\nb\n", "1"))

    def test_a_cell_that_cannot_run_has_an_error(self):
        for code in [
            "import builtins\nfor name in dir(builtins):\n    if name[0] != '_': setattr(builtins, name, None)",
            "import builtins; del builtins.str, builtins.isinstance, builtins.type",
            "import builtins; builtins.__import__ = builtins.__build_class__ = None",
            "import linecache; linecache.cache = None",
            "import linecache, traceback; linecache.cache = traceback.TracebackException = None",
            "import os; os.environ = None",
            "import ast, sys, traceback; ast.parse = traceback.TracebackException = None",
        ]:
            with self.subTest(code):
                driver = self.make()
                try:
                    driver.run(code)
                    for cell in (driver.run("print('ran')\n6 * 7"), driver.run("1 / 0")):
                        self.assertEqual(len(cell.errors), 0 if cell.text == "42" else 1)
                        self.assertIsNotNone(cell.count)
                finally:
                    driver.end()
                    shutil.rmtree(driver.directory)

    def test_there_is_no_input(self):
        self.assertEqual(self.run_cell("input()").errors[0][0], "EOFError")
        self.assertEqual(self.run_cell("import subprocess; subprocess.run(['cat'], check=True).returncode").text, "0")

    def test_packages_that_come_into_the_users_home_are_found(self):
        self.run_cell("import os, site, sys\nsite.ENABLE_USER_SITE = True\nos.environ['HOME'] = os.getcwd()")
        self.assertEqual(self.run_cell("import installed_late").errors[0][0], "ModuleNotFoundError")
        self.run_cell(
            "place = os.path.join(os.getcwd(), '.local/lib/python%d.%d/site-packages' % sys.version_info[:2])\n"
            "os.makedirs(place)\n"
            "with open(os.path.join(place, 'installed_late.py'), 'w') as file: file.write('x = 1')"
        )
        self.assertEqual(self.run_cell("import installed_late; installed_late.x").text, "1")
        # Before those of the system, as always, and once.
        code = "at = sys.path.index(place); (sys.path.count(place), any('-packages' in path for path in sys.path[:at]))"
        self.assertEqual(self.run_cell(code).text, "(1, False)")

    def test_children_that_outlive_a_cell_do_not_hold_it(self):
        self.run_cell("import subprocess; p = subprocess.Popen(['sh', '-c', 'echo early; sleep 1000'])")
        self.assertEqual(self.run_cell("p.poll() is None").text, "True")
        self.run_cell("p.kill(); p.wait()")

    def test_a_copy_of_the_process_does_not_speak_for_it(self):
        cell = self.run_cell("import os, sys\npid = os.fork()\nsys.stdout.write('child\\n' if pid == 0 else 'parent\\n')\nif pid: os.waitpid(pid, 0)\npid > 0")
        self.assertEqual(sorted(cell.stdout.split()), ["child", "parent"])
        self.assertEqual(cell.text, "True")
        cell = self.run_cell("import multiprocessing as m\nwith m.get_context('fork').Pool(2) as p: r = p.map(abs, [-1, -2])\nr")
        self.assertEqual(cell.text, "[1, 2]")

    def test_nothing_of_ours_is_inherited(self):
        code = "subprocess.run(['ls', '-l', '/proc/self/fd'], capture_output=True, text=True).stdout"
        listed = self.run_cell(f"import subprocess; print({code})").stdout
        names = [line.split(" -> ")[0].split()[-1] for line in listed.splitlines() if " -> " in line]
        self.assertGreater(len(names), 2)
        self.assertEqual([name for name in names if int(name) > 3], [])

    def test_an_interrupt_ends_the_cell_and_nothing_else(self):
        cell = self.driver.start("y = 1\nprint('on', flush=True)\nimport time\nwhile True: time.sleep(100)")
        came = self.driver.finish(cell, lambda came: self.driver.interrupt() if came.stdout == "on\n" else None)
        self.assertEqual(came.errors[0][0], "KeyboardInterrupt")
        self.assertNotIn("offleash", came.errors[0][2])
        # Between two cells it is for nobody.
        self.driver.interrupt()
        self.driver.sync()
        self.assertEqual(self.run_cell("y").text, "1")

    def test_an_interrupt_in_a_flood_breaks_no_frame(self):
        cell = self.driver.start("while True: print('x' * 100)", room=1 << 40)
        seen = []

        def on_output(came):
            seen.append(1)
            if len(seen) == 20:
                self.driver.interrupt()

        came = self.driver.finish(cell, on_output)
        self.assertEqual(came.errors[0][0], "KeyboardInterrupt")
        self.assertEqual(self.run_cell("1 + 1").text, "2")

    def test_a_handler_that_raises_breaks_no_frame(self):
        code = (
            "import signal\n"
            "class Late(Exception): pass\n"
            "def late(*_): raise Late\n"
            "signal.signal(signal.SIGALRM, late)\n"
            "n = 0\n"
            "while n < 200:\n"
            "    signal.setitimer(signal.ITIMER_REAL, 0.0005 + n * 0.00001)\n"
            "    try:\n"
            "        while True: print('x' * 50)\n"
            "    except Late:\n"
            "        n += 1\n"
            "n"
        )
        cell = self.run_cell(code, room=1 << 40)
        # It may also be raised between two of the lines.
        self.assertTrue(cell.text == "200" or cell.errors[0][0] == "Late")
        self.assertGreater(int(self.run_cell("signal.setitimer(signal.ITIMER_REAL, 0)\nn").text), 0)

    def test_variables_of_a_cell_are_restored(self):
        self.run_cell("import os; os.environ['KEPT'] = 'before'")
        cell = self.run_cell("os.environ['KEPT'], os.environ['NEW']", env={"KEPT": "now", "NEW": "a=b\n"})
        self.assertEqual(cell.text, "('now', 'a=b\\n')")
        self.assertEqual(self.run_cell("os.environ['KEPT'], os.environ.get('NEW')").text, "('before', None)")

    def test_forms_of_a_value(self):
        cell = self.run_cell(
            "class V:\n"
            "    def __repr__(self): return 'V'\n"
            "    def _repr_html_(self): return '<b>v</b>'\n"
            "    def _repr_markdown_(self): return '*v*'\n"
            "    def _repr_svg_(self): return '<svg/>'\n"
            "    def _repr_png_(self): return b'\\x89PNG'\n"
            "    def _repr_jpeg_(self): return b'\\xff\\xd8'\n"
            "    def _repr_pdf_(self): return b'%PDF'\n"
            "    def _repr_latex_(self): return '$v$'\n"
            "    def _repr_json_(self): return {'v': [1, None]}\n"
            "    def _repr_javascript_(self): return 'v()'\n"
            "display(V()); V()"
        )
        self.assertEqual(len(cell.displayed()), 1)
        for forms in (cell.displayed()[0], cell.main):
            self.assertEqual(
                forms,
                {
                    "text/plain": "V",
                    "text/html": "<b>v</b>",
                    "text/markdown": "*v*",
                    "image/svg+xml": "<svg/>",
                    "image/png": base64.b64encode(b"\x89PNG").decode(),
                    "image/jpeg": base64.b64encode(b"\xff\xd8").decode(),
                    "application/pdf": base64.b64encode(b"%PDF").decode(),
                    "text/latex": "$v$",
                    "application/json": {"v": [1, None]},
                    "application/javascript": "v()",
                },
            )

    def test_a_number_that_is_none_is_valid_json(self):
        made = (
            "{'application/json': {'a': float('nan'), 'b': [float('inf')]}, 'application/vnd.x+json': '{\"a\": NaN, \"b\": [1, -Infinity]}', "
            "'application/y+json': '[1, 2]', 'application/z+json': 'NaN is none'}"
        )
        forms = self.run_cell(f"class V:\n    def _repr_mimebundle_(self, **_): return {made}\nV()").main
        self.assertEqual(forms["application/json"], {"a": None, "b": [None]})
        self.assertEqual(forms["application/vnd.x+json"], {"a": None, "b": [1, None]})
        self.assertEqual((forms["application/y+json"], forms["application/z+json"]), ([1, 2], "NaN is none"))
        self.assertEqual(self.run_cell("float('nan')").text, "nan")

    def test_a_form_whose_name_is_no_mime_type_is_left_out(self):
        made = "class V:\n  def __init__(self, *names): self.names = names\n  def __repr__(self): return 'V'\n"
        self.run_cell(made + "  def _repr_mimebundle_(self, **_): return {'text/plain': 'V', **{name: 'x' for name in self.names}}")
        for name in ("a b\nc", "a/b\0", "a/b c", "\xe9/b", "", "x" * 129, "x" * 100_000, 5):
            with self.subTest(repr(name)[:20]):
                cell = self.run_cell(f"V({name!r})")
                self.assertEqual((cell.main, cell.errors), ({"text/plain": "V"}, []))
                self.assertIn("no MIME type", cell.stderr)
                self.assertLess(len(cell.stderr), 400)
        longest = "x" * 128
        self.assertEqual(self.run_cell(f"V({longest!r})").main, {"text/plain": "V", longest: "x"})
        cell = self.run_cell("V(*(f'a/{n}' for n in range(70)))")
        self.assertEqual(len(cell.main), 64)
        self.assertEqual(cell.stderr.count("64 at most"), 7)

    def test_a_form_that_is_too_large_is_left_out_whole(self):
        cell = self.run_cell("class V:\n  def __repr__(self): return 'V'\n  def _repr_png_(self): return b'x' * 13_000_000\nV()")
        self.assertEqual(cell.main, {"text/plain": "V"})
        self.assertGreater(cell.omitted["image/png"], 17_000_000)

    def test_await_at_the_top(self):
        cell = self.run_cell("import asyncio\nasync def f(): await asyncio.sleep(0); return 5\nawait f()")
        self.assertEqual(cell.text, "5")
        self.assertEqual(self.run_cell("r = asyncio.run(f())\nr").text, "5")
        self.assertEqual(self.run_cell("await asyncio.gather(f(), f())").text, "[5, 5]")

    def test_ten_megabytes_of_code(self):
        cell = self.run_cell("z = '" + "é" * 5_000_000 + "'\nlen(z)")
        self.assertEqual(cell.text, "5000000")

    def test_a_module_of_the_users_does_not_stand_in_for_ours(self):
        with tempfile.TemporaryDirectory() as directory:
            for name in ("json.py", "ast.py", "select.py", "random.py", "mine.py"):
                with open(os.path.join(directory, name), "w") as file:
                    file.write("raise SystemExit('taken')" if name != "mine.py" else "value = 6")
            driver = Driver(plain=self.plain, cwd=directory)
            try:
                self.assertEqual(driver.run("import mine; mine.value").text, "6")
            finally:
                driver.process.kill()
                driver.end()

    def test_a_cell_that_crashes_at_once_has_begun(self):
        # Its host tells by that whether anything of a cell was run.
        for _ in range(5):
            cell = self.driver.start("import os; os.kill(os.getpid(), 9)")
            kind, of, payload = self.driver.frame()
            self.assertEqual((kind, of, payload), ("count", cell, b"1"))
            self.driver.kill()
            self.driver.clear()
            self.driver = self.make()

    def test_the_driver_ends_with_its_input(self):
        self.run_cell("1")
        self.assertEqual(self.driver.end(), 0)

    def test_what_was_written_before_the_end_is_told(self):
        cell = self.driver.start("import os; print('last'); os._exit(3)")
        came = []
        with self.assertRaises(EOFError):
            self.driver.finish(cell, lambda so_far: came.append(so_far.stdout))
        self.assertEqual(came[-1], "last\n")
        self.assertEqual(self.driver.process.wait(PATIENCE), 3)

    def test_threads_write(self):
        cell = self.run_cell(
            "import sys, threading\n"
            "ts = [threading.Thread(target=lambda i=i: [sys.stdout.write(f'{i}-{j}\\n') for j in range(500)]) for i in range(4)]\n"
            "[t.start() for t in ts]; [t.join() for t in ts]\n"
            "None"
        )
        found = sorted(cell.stdout.split())
        self.assertEqual(found, sorted(f"{i}-{j}" for i in range(4) for j in range(500)))


@unittest.skipUnless(has("IPython"), "IPython is not installed")
class CellsOfIPython(Cells):
    plain = False

    def test_magics(self):
        self.assertEqual(self.run_cell("!echo from a shell").stdout, "from a shell\n")
        self.assertEqual(self.run_cell("x = !echo captured\nx").text, "['captured']")
        self.assertIn("loop", self.run_cell("%timeit -n1 -r1 pass").stdout)
        self.assertEqual(self.run_cell("%%bash\necho $((1 + 2))").stdout, "3\n")
        self.assertIn("pip", self.run_cell("%pip --version").stdout)
        cell = self.run_cell("%nothing")
        self.assertIn("nothing", cell.stderr)
        self.assertEqual(cell.errors[0][0], "UsageError")
        self.assertIn("nothing", cell.errors[0][2])

    def test_what_ipython_cannot_show_is_told(self):
        codes = [
            "class E(Exception):\n  def _render_traceback_(self): raise TypeError('odd')\nraise E('wrong')",
            "get_ipython().set_custom_exc((ValueError,), None)\nget_ipython().InteractiveTB = None\nraise ValueError('wrong')",
        ]
        for code in codes:
            with self.subTest(code):
                (_name, value, lines), = self.run_cell(code).errors
                self.assertEqual(value, "wrong")
                self.assertNotIn("interactiveshell.py", lines)

    def test_commands_see_variables_and_their_code(self):
        self.assertEqual(self.run_cell("def f(x):\n    !echo {x}; exit 5\nf('local')\n_exit_code").stdout, "local\n")
        self.assertEqual(self.run_cell("_exit_code").text, "5")

    def test_an_interrupt_of_a_command_ends_the_cell(self):
        magic = "%%bash\ntrap '' INT\necho $$ >pid; echo on\nwhile true; do sleep 0.1; done"
        for code in ("!echo on; sleep 100\nprint('more')", "print('on', flush=True)\nx = !sleep 100\nprint('more')", magic):
            with self.subTest(code):
                cell = self.driver.start(code)
                interrupt = lambda came: self.driver.interrupt() if came.output == [("stdout", b"on\n")] else None
                came = self.driver.finish(cell, interrupt)
                self.assertEqual((came.stdout[:3], [error[0] for error in came.errors]), ("on\n", ["KeyboardInterrupt"]))
                self.assertNotIn("more", came.stdout)
        gone = "import os, time\np = int(open('pid').read())\nwhile os.path.exists(f'/proc/{p}'): time.sleep(0.01)"
        self.assertEqual(self.run_cell(gone).errors, [])
        self.assertEqual(self.run_cell("%%bash\nexit 3").errors[0][0], "CalledProcessError")

    def test_history(self):
        self.run_cell("a = 1")
        self.run_cell("a + 1")
        self.assertEqual(self.run_cell("In[1], Out[2], _2, _i2").text, "('a = 1', 2, 2, 'a + 1')")

    def test_a_cell_is_changed_as_ipython_changes_it(self):
        cells = [
            *("1+1", "import os; 1", "pwd", "pwd;", "ls -l", "cd /", "cd = 3", "cd", "exit_code = 1", "ls.x", "time 1", "x?", "?x"),
            *("!ls", "a = !ls", "a = %pwd", "%pwd", "%%bash\nls", "In [1]: 5", ">>> 5", "\n\n1", "    1\n    2", "a = (5\n%a)"),
            *("'''\n%pwd\n'''\n", "f'{1}?'", "pwd\nls", "# ls", "'ls", "await f()", "x\r\ny", "m", "", "\n", "a\0b", "'\\d'"),
        ]
        self.run_cell("1")
        self.run_cell("%macro -q m 1")
        self.run_cell("from IPython.core.interactiveshell import InteractiveShell\nshell = get_ipython()\ntime = 1")
        differ = f"[c for c in {cells!r} if shell.transform_cell(c) != InteractiveShell.transform_cell(shell, c)]"
        self.assertEqual(self.run_cell(differ).text, "[]")
        self.run_cell("shell.input_transformers_cleanup.append(lambda lines: [line.replace('one', '1') for line in lines])")
        self.assertEqual(self.run_cell("'one'").text, "'1'")

    def test_a_warning_is_told_once(self):
        warned = self.run_cell("text = '\\d'\n1 is 1").stderr
        for text in ("invalid escape", '"is" with'):
            self.assertLessEqual(warned.count(text), 1, warned)
        self.assertIn('"is" with', warned)

    def test_what_is_gone_through_ahead_leaves_nothing(self):
        facts = (
            "import sys, linecache; _shell = get_ipython(); (In[:-1], dict(Out), _, __, _i, _ii, _shell.execution_count, "
            "sorted(vars()), len(linecache.cache), _shell.history_manager.db_input_cache[:-1], "
            "_shell.last_execution_result, hasattr(sys, 'last_type'))"
        )
        self.driver.give("import", "0" * 32, b"json")
        self.assertEqual(self.driver.sync(), 0)
        warm = self.run_cell(facts)
        other = Driver()
        try:
            cold = other.run(facts)
        finally:
            other.end()
            shutil.rmtree(other.directory)
        self.assertEqual((warm.count, warm.text, warm.errors), (1, cold.text, []))
        self.assertEqual([name for name, _, _ in self.run_cell("undefined").errors], ["NameError"])

    def test_ipython_that_a_cell_breaks_does_not_end_the_driver(self):
        self.run_cell("ip = get_ipython(); ip.run_cell_async = None; ip.showtraceback = None; ip.display_pub = 3")
        self.run_cell("1")
        self.assertEqual(self.driver.sync(), 2)

    def test_rich_displays(self):
        cell = self.run_cell("from IPython.display import HTML, display\ndisplay(HTML('<i>x</i>'))\nHTML('<b>y</b>')")
        self.assertEqual(cell.displayed()[0]["text/html"], "<i>x</i>")
        self.assertEqual(cell.main["text/html"], "<b>y</b>")

    def test_simple_values_have_the_forms_that_cells_made_for_them(self):
        for value in ("7", "True", "'t'", "2.5", "b'x'", "1j"):
            self.assertEqual(self.run_cell(value).main, {"text/plain": value})
        self.run_cell(
            "formatters = get_ipython().display_formatter.formatters\n"
            "formatters['text/html'].for_type(int, lambda value: f'<b>{value}</b>')\n"
            "formatters['text/latex'].for_type_by_name('builtins', 'str', lambda value: f'${value}$')\n"
            "formatters['text/plain'].for_type(float, lambda value, printer, cycle: printer.text('a float'))\n"
            "one = 1000j\n"
            "formatters['text/markdown'].singleton_printers[id(one)] = lambda value: '*one*'"
        )
        forms = lambda code: self.run_cell(code).main
        self.assertEqual(forms("7"), {"text/plain": "7", "text/html": "<b>7</b>"})
        self.assertEqual(forms("True"), {"text/plain": "True", "text/html": "<b>True</b>"})
        self.assertEqual(forms("'t'"), {"text/plain": "'t'", "text/latex": "$t$"})
        self.assertEqual(forms("2.5"), {"text/plain": "a float"})
        self.assertEqual(forms("one"), {"text/plain": "1000j", "text/markdown": "*one*"})
        self.assertEqual(forms("b'x'"), {"text/plain": "b'x'"})
        displayed = self.run_cell("display(7, b'x')").displayed()
        self.assertEqual(displayed, [{"text/plain": "7", "text/html": "<b>7</b>"}, {"text/plain": "b'x'"}])

    def test_every_result_of_a_cell_is_shown_where_that_is_wanted(self):
        self.run_cell("get_ipython().ast_node_interactivity = 'all'")
        self.assertEqual([forms for _, forms in self.run_cell("1\n2").results], [{"text/plain": "1"}, {"text/plain": "2"}])

    def test_help_is_shown(self):
        self.assertIn("Return the absolute value", json.dumps([self.run_cell("abs?").results, self.run_cell("abs?").stdout]))

    def test_thousands_of_cells_take_no_more_memory(self):
        self.watchdog.cancel()
        for number in range(5000):
            cell = self.run_cell(f"x = {number}\nprint(x)\nx + 1")
            self.assertEqual(cell.text, str(number + 1))
            if number == 2000:
                before = self.used()
        self.assertLess(self.used() - before, 3 * 1024, "KiB")


DRAW = "import matplotlib.pyplot as plt\nplt.close('all')\n"
BOXES = {"min": 1, "first_quartile": 2, "median": 3, "third_quartile": 4, "max": 4, "outliers": [20]}


@unittest.skipUnless(has("matplotlib") and has("pandas"), "matplotlib or pandas is not installed")
class Libraries(DriverTest):
    """What libraries make; here without IPython. All cases are of one driver, since libraries load for a second."""

    @classmethod
    def setUpClass(cls):
        cls.shared = Driver(plain=cls.plain)

    @classmethod
    def tearDownClass(cls):
        cls.shared.kill()
        cls.shared.clear()

    def make(self):
        return self.shared

    def tearDown(self):
        self.watchdog.cancel()
        if self.driver is not self.shared:
            self.driver.kill()
            self.driver.clear()

    def chart(self, code):
        cell = self.run_cell(DRAW + code + "\nplt.show()")
        self.assertEqual(cell.errors, [])
        (forms,) = cell.displayed()
        self.assertTrue(base64.b64decode(forms["image/png"]).startswith(b"\x89PNG"))
        return forms.get("e2b/chart")

    def test_a_figure_is_shown_once(self):
        self.assertEqual(len(self.run_cell(DRAW + "plt.plot([1, 2])\nplt.show()").displayed()), 1)
        self.assertEqual(len(self.run_cell("plt.plot([1, 2])\nNone").displayed()), 1)
        self.assertEqual(self.run_cell("1").displayed(), [])
        self.assertEqual(len(self.run_cell("plt.plot([1]); plt.show(); plt.plot([2]); plt.show()").displayed()), 2)

    def test_lines(self):
        chart = self.chart("plt.plot([1, 2], [3, 4], label='a')\nplt.axhline(3.5)\nplt.title('T')\nplt.xlabel('t (s)')\nplt.ylabel('v [m]')")
        self.assertEqual((chart["type"], chart["title"]), ("line", "T"))
        self.assertEqual([chart[key] for key in ("x_label", "x_unit", "y_label", "y_unit")], ["t (s)", "s", "v [m]", "m"])
        self.assertEqual(chart["elements"], [{"label": "a", "points": [[1, 3], [2, 4]]}])
        self.assertEqual((chart["x_scale"], chart["y_scale"]), ("linear", "linear"))
        self.assertEqual(len(chart["x_ticks"]), len(chart["x_tick_labels"]))

    def test_scales(self):
        self.assertEqual(self.chart("plt.plot([1, 10, 100]); plt.yscale('log')")["y_scale"], "log")
        chart = self.chart("import datetime as d\nplt.plot([d.date(2024, 1, 1), d.date(2024, 1, 2)], [1, float('nan')])")
        self.assertEqual(chart["x_scale"], "datetime")
        self.assertEqual(chart["elements"][0]["points"], [["2024-01-01", 1], ["2024-01-02", None]])
        self.assertEqual(self.chart("plt.plot(['a', 'b'], [1, 2])")["x_scale"], "categorical")

    def test_periods_of_pandas_are_times(self):
        days = "pd.date_range('2024-01-30', periods=3, freq='D')"
        index = {
            days: ["2024-01-30T00:00:00", "2024-01-31T00:00:00", "2024-02-01T00:00:00"],
            "pd.date_range('2024-01-01', periods=3, freq='h')": [f"2024-01-01T0{hour}:00:00" for hour in range(3)],
            "pd.period_range('2024-01', periods=3, freq='M')": [f"2024-0{month}-01T00:00:00" for month in (1, 2, 3)],
            "pd.to_datetime(['2024-01-01', '2024-01-03', '2024-02-01'])": ["2024-01-01T00:00:00", "2024-01-03T00:00:00", "2024-02-01T00:00:00"],
        }
        for code, expected in index.items():
            with self.subTest(code):
                chart = self.chart(f"import pandas as pd\npd.Series([1, float('nan'), 3], index={code}).plot(label='s')")
                self.assertEqual((chart["type"], chart["x_scale"], chart["y_scale"]), ("line", "datetime", "linear"))
                self.assertEqual(chart["elements"], [{"label": "s", "points": [list(one) for one in zip(expected, [1, None, 3])]}])
                self.assertEqual(chart["x_ticks"][0][:5], "2024-")
                self.assertEqual(len(chart["x_ticks"]), len(chart["x_tick_labels"]))
        chart = self.chart(f"pd.DataFrame({{'a': [1, 2, 3], 'b': [4, 5, 6]}}, index={days}).plot()")
        self.assertEqual([one["points"][2] for one in chart["elements"]], [["2024-02-01T00:00:00", 3], ["2024-02-01T00:00:00", 6]])

    def test_what_is_drawn_in_space_is_no_chart_of_a_plane(self):
        for code in ("plot([1, 2], [3, 4], [5, 6])", "scatter([1, 2], [3, 4], [5, 6])", "bar([1], [2], zs=1)"):
            chart = self.chart(f"ax = plt.figure().add_subplot(projection='3d')\nax.{code}\nax.set_title('T')")
            self.assertEqual(chart, {"type": "unknown", "title": "T", "elements": []})

    def test_scattered_points(self):
        chart = self.chart("plt.scatter([1, 2], [3, 4], label='s')\nplt.scatter([5], [6])")
        self.assertEqual(chart["type"], "scatter")
        self.assertEqual([one["points"] for one in chart["elements"]], [[[1, 3], [2, 4]], [[5, 6]]])
        chart = self.chart("import datetime as d\nplt.scatter([d.datetime(2024, 1, 1, 12), d.datetime(2024, 1, 2)], ['a', 'b'])")
        self.assertEqual((chart["x_scale"], chart["y_scale"]), ("datetime", "categorical"))
        self.assertEqual(chart["elements"][0]["points"], [["2024-01-01T12:00:00", "a"], ["2024-01-02T00:00:00", "b"]])
        chart = self.chart("plt.scatter([1, 2, float('nan')], [3, float('nan'), 4])")
        self.assertEqual(chart["elements"][0]["points"], [[1, 3], [2, None], [None, 4]])
        zoned = "t = [d.datetime(2024, 1, day, tzinfo=d.timezone(d.timedelta(hours=1))) for day in (1, 2)]"
        charts = [self.chart(f"{zoned}\nplt.{kind}(t, [1, 2])")["elements"][0]["points"] for kind in ("plot", "scatter")]
        self.assertEqual(charts[0], [["2024-01-01T00:00:00+01:00", 1], ["2024-01-02T00:00:00+01:00", 2]])
        self.assertEqual(charts[1], charts[0])

    def test_bars(self):
        bars = lambda chart: [(one["label"], one["group"], one["value"]) for one in chart["elements"]]
        chart = self.chart("plt.bar(['a', 'b'], [2, 2])\nplt.xlabel('X')\nplt.ylabel('Y')")
        self.assertEqual((chart["type"], chart["x_label"], chart["y_label"]), ("bar", "X", "Y"))
        self.assertEqual(bars(chart), [("a", "Group 0", 2), ("b", "Group 0", 2)])
        chart = self.chart("plt.barh(['a', 'b'], [1, 2])\nplt.xlabel('X')")
        self.assertEqual((chart["type"], chart["y_label"]), ("bar", "X"))
        self.assertEqual(bars(chart), [("a", "Group 0", 1), ("b", "Group 0", 2)])
        chart = self.chart("import pandas as pd\npd.DataFrame({'u': [1, 2], 'v': [3, 4]}, index=['x', 'y']).plot.bar(ax=plt.gca())")
        self.assertEqual(bars(chart), [("x", "u", 1), ("y", "u", 2), ("x", "v", 3), ("y", "v", 4)])
        self.assertEqual(self.chart("plt.bar(['a'], [2], yerr=[1])")["type"], "bar")
        for code, labels in (
            ("plt.bar(pd.date_range('2024-01-30', periods=60), range(60))", ["2024-01-30", "2024-01-31", "2024-02-01"]),
            ("plt.bar(pd.date_range('2024-01-01T23', periods=2, freq='h'), [1, 2], width=0.03)", ["2024-01-01T23:00:00", "2024-01-02"]),
            ("pd.Series([1, 2], index=pd.date_range('2024-01-01', periods=2)).plot.bar(ax=plt.gca())", ["2024-01-01", "2024-01-02"]),
            ("plt.bar(pd.date_range('2024-01-01', periods=2), [1, 2])\nplt.xticks([19723], ['New Year'])", ["New Year", "2024-01-02"]),
            ("plt.bar([2019, 2020], [1, 2], width=1)", ["2019", "2020"]),
            ("plt.bar([-0.2, 0.8], [1, 2], 0.4)\nplt.bar([0.2, 1.2], [3, 4], 0.4)", ["0", "1", "0", "1"]),
            ("plt.bar(pd.to_datetime(['2024-01-01', None, '2024-01-03']), [1, 2, 3])", ["2024-01-01", "nan", "2024-01-03"]),
            ("plt.bar([1, float('nan'), 3], [1, 2, 3], width=1)", ["1", "nan", "3"]),
            ("plt.hist([1, 2, 3, 9], bins=4)", ["[1, 3)", "[3, 5)", "[5, 7)", "[7, 9]"]),
            ("plt.hist([0, 0.5, 1], bins=2)", ["[0, 0.5)", "[0.5, 1]"]),
        ):
            found = [label for label, *_ in bars(self.chart("import pandas as pd\n" + code))]
            self.assertEqual(found[: len(labels)], labels)

    def test_pies(self):
        chart = self.chart("plt.pie([1, 3], labels=['a', 'b'])")
        self.assertEqual(chart["type"], "pie")
        self.assertEqual(chart["elements"], [{"label": "a", "angle": 90, "radius": 1}, {"label": "b", "angle": 270, "radius": 1}])

    def test_boxes(self):
        for options in ("patch_artist=True", "patch_artist=False", "patch_artist=True, vert=False", "showmeans=True"):
            with self.subTest(options):
                chart = self.chart(f"plt.boxplot([[1, 2, 3, 4, 20], [2, 3, 4]], {options})\nplt.xlabel('X')")
                self.assertEqual(chart["type"], "box_and_whisker")
                self.assertEqual(chart["elements"][0], {"label": "1", **BOXES})
                self.assertEqual(chart["y_label" if "vert" in options else "x_label"], "X")

    def test_a_number_that_is_none_keeps_its_place(self):
        for options in ("patch_artist=True", "patch_artist=False", "patch_artist=True, vert=False"):
            chart = self.chart(f"plt.boxplot([[1, 2, float('nan')], [1, 2, 3, 4, 20]], {options})")
            self.assertEqual((chart["type"], len(chart["elements"])), ("box_and_whisker", 2))
            lost = {name: chart["elements"][0][name] for name in ("min", "first_quartile", "median", "third_quartile", "max")}
            self.assertEqual(set(lost.values()), {None})
            self.assertEqual(chart["elements"][1], {"label": "2", **BOXES})
        bars = self.chart("plt.bar(['a', 'b'], [1, float('nan')])")["elements"]
        self.assertEqual([one["value"] for one in bars], [1, None])

    def test_pictures_of_pil_are_shown(self):
        draw = "from PIL import Image\np = Image.new('RGBA', (4, 4))\n"
        for code in ("p.show()", "p.save('p.png')", "import pathlib; p.save(pathlib.Path('p.png'))", "display(p)", "p"):
            with self.subTest(code):
                cell = self.run_cell(draw + code)
                self.assertEqual(cell.errors, [])
                ((kind, forms),) = cell.results
                self.assertEqual(kind, "main" if code == "p" else "display")
                self.assertTrue(base64.b64decode(forms["image/png"]).startswith(b"\x89PNG"))
        # Neither what is written into memory nor what a copy of the process saves is for anybody to see.
        for code in ("import io; p.save(io.BytesIO(), 'png')", "import os\nif os.fork() == 0:\n    p.save('c.png')\n    os._exit(0)\nos.wait(); None"):
            cell = self.run_cell(draw + code)
            self.assertEqual((cell.results, cell.errors), ([], []), code)
        self.assertEqual(self.run_cell("p.save('nowhere/p.png')").errors[0][0], "FileNotFoundError")

    def test_pictures_are_shown_where_pil_was_loaded_before(self):
        self.driver = Driver(plain=self.plain, before=b"import PIL.Image\n")
        cell = self.run_cell("from PIL import Image; Image.new('RGB', (4, 4)).save('p.png')")
        self.assertEqual([kind for kind, forms in cell.results if "image/png" in forms], ["display"])

    def test_a_figure_that_is_saved_is_shown_once(self):
        for code in ("", "; plt.show()", "; plt.close()"):
            cell = self.run_cell(f"{DRAW}plt.plot([1, 2]); plt.savefig('f.png'){code}")
            self.assertEqual([("image/png" in forms, cell.errors) for forms in cell.displayed()], [(True, [])], code)
        cell = self.run_cell("for n in range(30):\n    plt.plot([n]); plt.savefig('f.png'); plt.close()")
        self.assertEqual(len(cell.displayed()), 20)

    def test_several_charts_in_one_figure(self):
        chart = self.chart("f, (a, b) = plt.subplots(1, 2)\na.plot([1, 2])\nb.bar(['x'], [1])\nf.suptitle('S')")
        self.assertEqual((chart["type"], chart["title"]), ("superchart", "S"))
        self.assertEqual([one["type"] for one in chart["elements"]], ["line", "bar"])

    def test_what_is_no_chart(self):
        self.assertEqual(self.chart("plt.imshow([[1, 2]])")["type"], "unknown")
        self.assertEqual(self.chart("plt.fill_between([1, 2], [1, 2])")["type"], "unknown")
        (forms,) = self.run_cell(DRAW + "plt.figure(); plt.show()").displayed()
        self.assertNotIn("e2b/chart", forms)

    def test_data_frames(self):
        cell = self.run_cell(
            "import pandas as pd\n"
            "pd.DataFrame({'n': [1, 2], 'f': [0.5, float('nan')], 's': ['a', None], 't': pd.to_datetime(['2024-01-02', None])})"
        )
        self.assertIn("<table", cell.main["text/html"])
        self.assertIn("0.5", cell.main["text/plain"])
        self.assertEqual(
            cell.main["e2b/data"],
            {"n": [1, 2], "f": [0.5, None], "s": ["a", None], "t": ["2024-01-02T00:00:00", None]},
        )
        odd = self.run_cell("pd.DataFrame({'f': [1, float('inf'), -float('inf')], 'o': ['a', pd.NA, float('nan')]})").main
        self.assertEqual(odd["e2b/data"], {"f": [1, None, None], "o": ["a", None, None]})
        for columns in ("'a', 'a'", "1, '1'"):
            twice = self.run_cell(f"pd.DataFrame([[1, 2]], columns=[{columns}])").main
            self.assertNotIn("e2b/data", twice)
            self.assertIn("<table", twice["text/html"])
        large = self.run_cell("pd.DataFrame({i: range(60_000) for i in range(10)})").main
        self.assertNotIn("e2b/data", large)
        self.assertIn("<table", large["text/html"])


@unittest.skipUnless(has("IPython"), "IPython is not installed")
class LibrariesOfIPython(Libraries):
    plain = False

    def test_the_magic_for_figures_changes_nothing(self):
        self.run_cell("%matplotlib inline")
        self.test_lines()
        self.test_a_figure_is_shown_once()


if __name__ == "__main__":
    unittest.main()
