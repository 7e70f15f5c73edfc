"""A Python that waited does what one does that is started: each program is run by both, and what they write is compared."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from harness import HERE, driver_file

PYTHON = sys.executable
MODULES = "decimal", "json", "pickle", "no_such_module_at_all"


def start_line():
    with open(os.path.join(HERE, "..", "src", "ahead.rs"), encoding="utf-8") as file:
        return re.search(r'const START: &str =\s*"(.*)";', file.read()).group(1)


def message(directory, words):
    body = b"".join(os.fsencode(word) + b"\0" for word in (directory, *words))
    return b"%d\n" % len(body) + body


class Case(unittest.TestCase):
    def setUp(self):
        self.directory = os.path.realpath(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.directory)
        self.env = {"PATH": os.environ["PATH"], "HOME": self.directory, "LANG": "C.UTF-8"}

    def write(self, name, text):
        path = os.path.join(self.directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        return path

    def start(self, words, env=None, directory=None):
        pipe = subprocess.PIPE
        cwd = directory or self.directory
        return subprocess.Popen(words, cwd=cwd, env=env or self.env, stdin=pipe, stdout=pipe, stderr=pipe)

    def ahead(self, env=None, modules=MODULES):
        source = driver_file("ahead.py").decode()
        process = self.start([PYTHON, "-c", start_line(), source, *modules], env, "/")
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        for stream in process.stdin, process.stdout, process.stderr:
            self.addCleanup(stream.close)
        self.assertEqual(os.read(process.stdout.fileno(), 100), b"ready\n")
        return process

    def both(self, *arguments, given=b"", env=None):
        """What both wrote, and their codes."""
        plain = self.start([PYTHON, *arguments], env)
        ahead = self.ahead(env)
        told = message(self.directory, [PYTHON, *arguments])
        said = [(*process.communicate(text), process.returncode) for process, text in ((plain, given), (ahead, told + given))]
        return said

    def assert_same(self, *arguments, **more):
        plain, ahead = self.both(*arguments, **more)
        self.assertEqual(ahead, plain, arguments)
        return ahead

    def assert_code(self, code, *arguments, **more):
        return self.assert_same("-c", code, *arguments, **more)


class Programs(Case):
    def test_modules_are_there_already(self):
        plain, ahead = self.both("-c", "import sys; print('decimal' in sys.modules, 'no_such_module_at_all' in sys.modules)")
        self.assertEqual((plain[0], ahead[0]), (b"False False\n", b"True False\n"))

    def test_arguments_names_and_paths(self):
        code = (
            "import sys, os; print(sys.argv, sys.path, __name__, __doc__, __spec__, __package__, __loader__, sys.orig_argv);"
            "print(sorted(globals()), sys.modules['__main__'].__dict__ is globals(), os.getcwd(), sorted(os.environ.items()))"
        )
        self.assert_code(code, "a", "", "-c", "é")
        self.assert_code("")
        self.assert_code("import sys; print(sys.stdin.read())", given=b"a\nb")
        self.assert_code("print(input() + input())", given=b"a\nb\n")

    def test_files(self):
        code = (
            "import sys\nprint(sys.argv, sys.path, sorted(globals()), __file__, __cached__, __spec__, __loader__.path, sys.orig_argv)\n"
            "import beside\nprint(beside.__file__)\n1/0\n"
        )
        self.write("d/beside.py", "x = 1")
        path = self.write("d/a.py", code)
        for name in (path, "d/a.py", "./d/a.py", "d/../d/a.py"):
            self.assert_same(name, "x", "-c")
        os.symlink("d/a.py", os.path.join(self.directory, "link.py"))
        self.assert_same("link.py")
        self.write("latin.py", b"# coding: latin-1\nprint(ascii('\xe9'))\n")
        self.assert_same("latin.py")

    def test_errors_and_codes(self):
        for code in (
            "def f(): g()\ndef g(): 1/0\nf()",
            "x = (",
            "x = '\\ud800'\nprint(x)",
            "raise SystemExit",
            "import sys; sys.exit(3)",
            "import sys; sys.exit('no')",
            "import os; os._exit(4)",
            "raise BaseException('b')",
            "try:\n 1/0\nexcept Exception as e:\n raise ValueError('v') from e",
            "import sys\nsys.excepthook = lambda *a: print(a[0], a[2].tb_frame.f_code.co_name, a[2].tb_next)\n1/0",
            "import atexit; atexit.register(print, 'end'); 1/0",
            "import threading, time; threading.Thread(target=lambda: (time.sleep(.2), print('late'))).start()",
            "import threading\nt = threading.Thread(target=lambda: 1/0, name='t')\nt.start()\nt.join()",
            "import warnings; warnings.warn('w')",
            "import asyncio\nasync def f(): print('in'); raise OSError(3, 'x')\nasyncio.run(f())",
            "from __future__ import annotations\ndef f(a: nothing): pass\nprint(f.__annotations__)",
            "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
            "raise KeyboardInterrupt",
            "def f(): f()\ntry: f()\nexcept RecursionError as e: print(e)",
        ):
            said = self.assert_code(code)
            self.assertNotIn(b"offleash", said[1], code)

    def test_processes(self):
        self.write(
            "many.py",
            "import multiprocessing as m\ndef f(x): return x * 2\nif __name__ == '__main__':\n"
            " for way in ('fork', 'spawn'):\n  with m.get_context(way).Pool(2) as pool: print(pool.map(f, [1, 2]))\n",
        )
        self.assert_same("many.py")
        self.assert_code("import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))))")
        self.assert_code("import os, sys; os.execvp('sh', ['sh', '-c', 'cat; exit 5'])", given=b"rest")

    def test_an_interrupt_ends_it_as_it_ends_python(self):
        def interrupted(process, told):
            process.stdin.write(told)
            process.stdin.flush()
            self.assertEqual(process.stdout.readline(), b"up\n")
            process.send_signal(signal.SIGINT)
            return process.communicate()[1], process.returncode

        words = [PYTHON, "-c", "import time; print('up', flush=True); time.sleep(60)"]
        plain, ahead = interrupted(self.start(words), b""), interrupted(self.ahead(), message(self.directory, words))
        self.assertEqual(ahead, plain)
        self.assertEqual(ahead[1], -signal.SIGINT)


class LeftToPython(Case):
    def test_what_else_python_can_do(self):
        self.write("package/__main__.py", "print(__name__, __package__)")
        self.write("package/__init__.py", "")
        for arguments in (
            ("-m", "package"),
            ("package",),
            ("-",),
            (),
            ("-E", "-c", "print(1)"),
            ("-V",),
            ("-c",),
            ("--no-such-option",),
            ("nothing.py",),
            (".",),
            ("-c", "  print(1)"),
        ):
            self.assert_same(*arguments, given=b"print('given')\n")

    def test_variables_that_python_reads_when_it_starts(self):
        said = self.assert_code("import os, sys; print(sys.path, os.environ['A'])", env={**self.env, "A": "b=c", "PYTHONPATH": "x"})
        self.assertIn(b"b=c", said[0])

    def test_a_file_that_would_have_come_first(self):
        self.write("json.py", "print('mine')")
        for code in ("import json", "import decimal, json"):
            self.assertIn(b"mine", self.assert_code(code)[0])
        self.write("d/decimal.py", "print('mine, too')")
        self.write("d/a.py", "import decimal")
        self.assert_same("d/a.py")
        # What `pickle` does without.
        os.remove(os.path.join(self.directory, "json.py"))
        self.write("org/python/core.py", "class PyStringMap: pass")
        self.assertNotIn(b"None", self.assert_code("import pickle; print(pickle.PyStringMap)")[0])

    def test_a_file_that_a_library_would_have_read(self):
        for name, there in ("matplotlibrc", b"False"), ("other", b"True"):
            self.write(name, "")
            said = self.both("-c", "import sys; print('decimal' in sys.modules)")[1]
            self.assertEqual(said[0], there + b"\n", name)
            os.remove(os.path.join(self.directory, name))

    def test_files_that_are_no_text(self):
        self.write("bytes.py", b"print('\xff')\n")
        self.assert_same("bytes.py")

    def test_bytes_that_are_no_text(self):
        self.assert_same("-c", b"print('\xff')")
        self.assert_same("-c", "import sys; print(ascii(sys.argv))", b"\xff\n")


class Waiting(Case):
    def test_it_ends_when_nobody_asks(self):
        process = self.ahead()
        self.assertEqual((process.communicate(), process.returncode), ((b"", b""), 0))

    def test_what_modules_say_is_not_heard(self):
        self.write("site/loud.py", "import sys, os\nprint('out')\nprint('err', file=sys.stderr)\nos.write(1, b'raw')")
        env = {**self.env, "PYTHONPATH": os.path.join(self.directory, "site")}
        process = self.ahead(env, ["loud"])
        said = process.communicate(message(self.directory, [PYTHON, "-c", "print(1)"]))
        self.assertEqual((said, process.returncode), ((b"1\n", b""), 0))


if __name__ == "__main__":
    # Whoever started this may have had it ignored, which programs that are started inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    unittest.main()
