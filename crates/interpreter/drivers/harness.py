"""What tests of drivers share: the host's side of a driver, and cases that start one."""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
LANGUAGE = os.path.join(HERE, "..", "src", "language.rs")
PATIENCE = 120


def bootstrap(name):
    """What the host starts a driver with, a constant of `language.rs`."""
    with open(LANGUAGE, encoding="utf-8") as file:
        text = file.read()
    line = re.search(r"const " + name + r': &str = "\\\n(.*?)\n";', text, re.S).group(1)
    # As Rust reads it: a line that ends with a backslash goes on with the next.
    word = lambda found: {"n": "\n"}.get(found.group(1), "" if found.group(1)[0] == "\n" else found.group(1))
    return re.sub(r"\\(\n\s*|.)", word, line) + "\n"


def driver_file(name):
    with open(os.path.join(HERE, name), "rb") as file:
        return file.read()


class Cell:
    """What came of a cell."""

    def __init__(self):
        self.count = None
        self.output = []
        self.results = []
        self.errors = []
        self.truncated = None
        self.forms = {}
        self.omitted = {}
        self.error = {}

    def stream(self, kind):
        return b"".join(data for one, data in self.output if one == kind).decode("utf-8", "replace")

    @property
    def stdout(self):
        return self.stream("stdout")

    @property
    def stderr(self):
        return self.stream("stderr")

    @property
    def all_output(self):
        return b"".join(data for _, data in self.output).decode("utf-8", "replace")

    @property
    def main(self):
        mains = [forms for kind, forms in self.results if kind == "main"]
        return mains[0] if mains else None

    @property
    def text(self):
        return self.main and self.main.get("text/plain")

    def displayed(self):
        return [forms for kind, forms in self.results if kind == "display"]


def undo_ignored():
    """What a shell starts in the background is told to ignore interrupts, which its children would go on with."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Driver:
    """A driver that runs as `command`, and its host's side."""

    def __init__(self, command, source, env=None, cwd=None):
        self.directory = cwd or tempfile.mkdtemp(prefix="offleash-driver-")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.directory,
            env={**os.environ, "TMPDIR": self.directory} if env is None else env,
            start_new_session=True,
            preexec_fn=undo_ignored,
            bufsize=0,
        )
        self.number = 0
        self.buffered = b""
        self.give("source", "0" * 32, source)

    def fresh(self):
        self.number += 1
        return f"{self.number:032x}"

    def give(self, kind, cell, payload=b""):
        data = f"{kind} {cell} {len(payload)}\n".encode() + payload
        while data:
            data = data[os.write(self.process.stdin.fileno(), data) :]

    def take(self, size):
        while len(self.buffered) < size:
            piece = os.read(self.process.stdout.fileno(), 1 << 16)
            if not piece:
                raise EOFError(os.read(self.process.stderr.fileno(), 1 << 16).decode())
            self.buffered += piece
        taken, self.buffered = self.buffered[:size], self.buffered[size:]
        return taken

    def frame(self):
        line = b""
        while not line.endswith(b"\n"):
            line += self.take(1)
            assert len(line) <= 60, line
        kind, cell, length = line.decode("ascii").split()
        assert len(cell) == 32
        return kind, cell, self.take(int(length))

    def sync(self):
        number = self.fresh()
        self.give("sync", number)
        while True:
            kind, cell, payload = self.frame()
            if kind == "sync":
                assert cell == number
                return int(payload)

    def start(self, code, env=None, room=1 << 26):
        cell = self.fresh()
        code = code if isinstance(code, bytes) else code.encode()
        for name, value in (env or {}).items():
            self.give("env", cell, f"{name}={value}".encode())
        for at in range(0, len(code), 512 * 1024):
            self.give("code", cell, code[at : at + 512 * 1024])
        self.give("run", cell, f"{room} {1 << 25}".encode())
        return cell

    def finish(self, cell, on_output=None):
        came = Cell()
        while True:
            kind, of, payload = self.frame()
            if of != cell:
                continue
            if kind == "done":
                return came
            if kind == "count":
                came.count = int(payload)
            elif kind in ("stdout", "stderr"):
                came.output.append((kind, payload))
                if on_output:
                    on_output(came)
            elif kind in ("text", "json"):
                mime, form = payload.split(b"\n", 1)
                came.forms[mime.decode()] = json.loads(form) if kind == "json" else form.decode()
            elif kind == "omitted":
                mime, size = payload.split(b"\n", 1)
                came.omitted[mime.decode()] = int(size)
            elif kind == "result":
                came.results.append((payload.decode(), came.forms))
                came.forms = {}
            elif kind in ("error_name", "error_value"):
                came.error[kind] = payload.decode()
            elif kind == "error":
                came.errors.append((came.error["error_name"], came.error["error_value"], payload.decode()))
            elif kind == "truncated":
                came.truncated = int(payload)
            else:
                raise AssertionError(kind)

    def run(self, code, **options):
        on_output = options.pop("on_output", None)
        return self.finish(self.start(code, **options), on_output)

    def interrupt(self):
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self):
        self.process.stdin.close()
        code = self.process.wait(PATIENCE)
        self.process.stdout.close()
        self.process.stderr.close()
        return code

    def until_the_end(self, cell):
        """What a cell writes that ends its context, and how that ends."""
        said = b""
        while True:
            try:
                kind, of, payload = self.frame()
            except EOFError:
                return said, self.process.wait(PATIENCE)
            assert kind != "done"
            said += payload if (kind, of) == ("stdout", cell) else b""

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def clear(self):
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()
        shutil.rmtree(self.directory)


class Cells(unittest.TestCase):
    """Cases in a driver of their own, which `make` makes."""

    def setUp(self):
        self.driver = self.make()
        self.watch()

    def watch(self):
        self.watchdog = threading.Timer(PATIENCE, self.driver.kill)
        self.watchdog.start()

    def tearDown(self):
        self.watchdog.cancel()
        self.driver.kill()
        self.driver.clear()

    def run_cell(self, code, **options):
        return self.driver.run(code, **options)

    def says(self, code, expected, **options):
        cell = self.run_cell(code, **options)
        self.assertEqual((cell.stdout, cell.stderr, cell.errors), (expected, "", []), code)
        return cell

    def fails(self, code, name, value=None):
        cell = self.run_cell(code)
        self.assertEqual([error[0] for error in cell.errors], [name], code)
        if value is not None:
            self.assertEqual(cell.errors[0][1], value, code)
        return cell
