"""Tests of the driver of Bash contexts, spoken to as its host does."""

import os
import threading
import unittest

import harness
from harness import PATIENCE, bootstrap, driver_file


class Driver(harness.Driver):
    """A driver of Bash."""

    def __init__(self):
        source = b"".join(map(driver_file, ("speaker.sh", "bash.sh")))
        super().__init__(["bash", "-c", bootstrap("BASH"), "bash"], source)


class Cells(harness.Cells):
    make = Driver

    def fails(self, code, status):
        return super().fails(code, "ExitCode", str(status))

    def test_state_is_kept(self):
        first = self.says(
            "x=1; declare -A m=([a]=b); f() { echo f $1; }; shopt -s extglob; cd /; alias hi='echo hello'\n", ""
        )
        self.assertEqual(first.count, 1)
        second = self.says('echo $((x += 1)) "${m[a]}"; f 2; pwd; hi; shopt -q extglob', "2 b\nf 2\n/\nhello\n")
        self.assertEqual(second.count, 2)
        self.assertEqual(self.driver.sync(), 2)

    def test_a_status_that_is_not_zero_is_an_error(self):
        self.fails("false", 1)
        self.fails("(exit 7)", 7)
        cell = self.fails("echo before; no-such-program", 127)
        self.assertEqual(cell.stdout, "before\n")
        self.assertEqual(cell.stderr, "bash: line 1: no-such-program: command not found\n")
        self.says("false; true", "")

    def test_a_syntax_error_is_told_in_the_words_of_the_shell(self):
        for code in ("if true; then", "echo a\necho )", "for"):
            (name, value, words), = self.run_cell(code).errors
            self.assertEqual(name, "SyntaxError")
            self.assertIn("bash: line", value)
            self.assertIn("syntax error", words)
        self.says("echo on", "on\n")

    def test_options_end_a_cell_and_not_the_context(self):
        self.says("x=kept; set -e; y() {\n\nno-such-program\n}", "")
        for _ in range(3):
            cell = self.fails("echo a; false; echo b", 1)
            self.assertEqual(cell.stdout, "a\n")
        self.says('echo "$x$-" | tr -dc kepte', "kepte")
        self.assertIn("line 3: no-such-program", self.run_cell("\n\nno-such-program").stderr)
        self.says("set +e -u", "")
        cell = self.run_cell("echo $nothing; echo b")
        self.assertEqual((cell.stdout, len(cell.errors)), ("", 1))
        self.assertIn("unbound variable", cell.stderr)
        self.says("set +u; echo $x$nothing", "kept\n")
        cell = self.run_cell("set -x; echo traced")
        self.assertNotIn("__offleash", cell.stderr)
        self.assertNotIn("__offleash", self.run_cell("echo more").stderr)
        self.run_cell("set +x")
        self.says("set -o pipefail; set -f; IFS=,; shopt -s nocasematch nullglob", "")
        self.says("set +f; true", "")
        self.says('v=a,b; printf "%s\\n" $v', "a\nb\n")
        self.assertEqual(self.run_cell("set -euo pipefail\nfalse | true\necho no").stdout, "")
        self.says("echo on", "on\n")

    def test_loops_and_returns_that_belong_to_nothing_end_the_cell(self):
        for code in ("break", "break 9", "continue", "continue 9", "return 0"):
            self.run_cell(f"x=1; {code}")
            self.says("echo $x", "1\n")

    def test_exit_ends_the_context(self):
        for before, code, status in (
            ("", "echo last; exit 3", 3),
            ("set -e; false", "false || exit", 1),
            ("set -u; $nothing", "f() { { exit 4; } 3>&1 >/dev/null; }; f", 4),
            ("(exit 5)", "(exit 6); echo last; exit", 0),
        ):
            self.run_cell(before)
            said, ended = self.driver.until_the_end(self.driver.start(code))
            self.assertEqual((said, ended), (b"last\n" if "last" in code else b"", status))
            self.tearDown()
            self.setUp()

    def test_an_end_of_input_is_the_end(self):
        self.says("echo a", "a\n")
        self.driver.process.stdin.close()
        self.assertEqual(self.driver.process.wait(PATIENCE), 0)
        self.assertEqual(self.driver.process.stdout.read(), b"")

    def test_an_interrupt_ends_the_cell_and_the_context_survives(self):
        self.says("x=1", "")
        self.driver.interrupt()
        going = threading.Event()

        def interrupt():
            # As its host does: a signal may come between the shell's last look for one and the start of a child.
            while not going.wait(0.3):
                self.driver.interrupt()

        for code in ("echo go; sleep 1000; echo no", "echo go; while :; do :; done", "echo go; while :; do sleep 0.01; done",
                     "set -e; echo go; f() { sleep 1000; }; f | cat; echo no"):
            going.clear()
            again = threading.Thread(target=interrupt)
            cell = self.run_cell(code, on_output=lambda _: again.is_alive() or again.start())
            going.set()
            again.join()
            self.assertEqual(cell.stdout, "go\n")
            self.assertEqual([error[0] for error in cell.errors], ["Interrupted"])
            self.says("echo $x", "1\n")

    def test_output_streams(self):
        os.mkfifo(os.path.join(self.driver.directory, "gate"))
        opened = []

        def on_output(came):
            # The cell waits for this, so what came before was not kept back.
            if "first" in came.stdout and not opened:
                opened.append(True)
                open(os.path.join(self.driver.directory, "gate"), "w").close()

        cell = self.run_cell("printf first; read < gate; echo second; echo third >&2", on_output=on_output)
        self.assertEqual((cell.stdout, cell.stderr), ("firstsecond\n", "third\n"))

    def test_every_byte_is_kept(self):
        everything = bytes(range(256)) * 3
        with open(os.path.join(self.driver.directory, "bytes"), "wb") as file:
            file.write(everything * 100 + b"\0\0")
        cell = self.run_cell("cat bytes")
        self.assertEqual(b"".join(data for _, data in cell.output), everything * 100 + b"\0\0")
        cell = self.run_cell("printf '\\0'; printf 'o\\0offleash'")
        self.assertEqual(b"".join(data for _, data in cell.output), b"\0o\0offleash")

    def test_all_of_a_cells_output_comes_before_its_end(self):
        for _ in range(20):
            self.assertEqual(len(self.run_cell("head -c 100000 /dev/zero | tr '\\0' x").stdout), 100000)

    def test_output_that_is_of_no_use_is_left_out(self):
        cell = self.run_cell("head -c 20000000 /dev/zero | tr '\\0' x; echo e >&2", room=1000)
        self.assertEqual((cell.stdout, cell.stderr), ("x" * 1000, "e\n"))
        self.assertEqual(cell.truncated, 20000000 - 1000)
        self.says("echo on", "on\n")

    def test_children_that_outlive_the_cell_do_not_hold_it(self):
        self.says("sleep 1000 & echo a", "a\n")
        cell = self.run_cell("(while :; do echo y; done) & x=$!; echo b")
        self.assertIn("b\n", cell.stdout)
        cell = self.run_cell("kill $x; wait $x; echo c")
        self.assertIn("c\n", cell.stdout)
        self.says("kill %1; sleep 0 & wait", "")

    def test_a_child_that_is_killed_at_once_is_not_taken_for_the_shell(self):
        for _ in range(5):
            self.says("for n in {1..40}; do (:; sleep 1000) & kill $!; sleep 1000 & kill -INT $!; kill $! 2>/dev/null; done; wait", "")
        self.says("echo on", "on\n")

    def test_what_a_cell_does_to_descriptors_and_builtins_is_its_own(self):
        self.says("exec >/dev/null; echo lost", "")
        self.says("echo a", "a\n")
        self.says("exec 0<&- 1>&- 2>&-; :", "")
        self.says("echo b", "b\n")
        self.run_cell("for n in {3..9}; do eval \"exec $n>&-\"; done")
        self.says("echo c", "c\n")
        self.says("printf() { echo mine; }; read() { :; }; kill() { :; }; local() { :; }; trap() { :; }; eval() { :; }", "")
        self.says("echo d; printf", "d\nmine\n")
        self.fails("false", 1)
        self.run_cell("unset -f trap; trap 'echo debug' DEBUG ERR EXIT INT RETURN")
        self.says("echo e", "e\n")

    def test_forged_frames_are_output(self):
        forged = f"done {2:032x} 0\n"
        self.assertEqual(self.run_cell(f"printf 'done %032x 0\\n' 2").stdout, forged)
        self.says("echo on", "on\n")

    def test_large_code(self):
        self.says("LC_ALL=C; x='" + "é" * 5_000_000 + "'; echo ${#x}", "10000000\n")
        self.assertEqual(self.run_cell("echo a\0b").errors[0][0], "SyntaxError")
        self.assertEqual(self.run_cell("# " + "x" * 5000 + "\0b").errors[0][0], "SyntaxError")
        self.says("echo on", "on\n")

    def test_variables_of_a_cell_are_its_own(self):
        self.says("A=1; export B=2", "")
        self.says("echo $A $B $C; env | grep -c '^[ABC]='", "a b c d\n3\n", env={"A": "a", "B": "b", "C": "c d"})
        self.says("echo $A $B $C; env | grep -c '^[ABC]='", "1 2\n1\n")
        self.run_cell("set -e; false", env={"A": "a", "LC_ALL": "C", "IFS": "x"})
        self.says("echo $A ${LC_ALL-none}; false || true", f"1 {os.environ.get('LC_ALL', 'none')}\n")
        cell = self.run_cell("echo on", env={"a.b": "1", "UID": "7"})
        self.assertEqual(cell.stdout, "on\n")
        self.assertIn("a.b", cell.stderr)

    def test_descriptors_below_a_hundred_are_those_of_cells(self):
        for number in range(3, 100):
            self.says(f"exec {number}<>/dev/null; exec {number}>&-; echo on", "on\n")
        self.says('for n in {3..99}; do eval "exec $n</etc/passwd"; done; read -r -u 17 first', "")
        self.says('[[ $first == root:* ]] && read -r -u 99 again && [[ $again == "$first" ]] && echo kept', "kept\n")
        # Nor when a shell ended in between, of which a copy goes on.
        self.fails("set -e; exec 12>&-; false", 1)
        self.says('set +e; for n in {3..99}; do eval "exec $n>&-"; done; echo on', "on\n")
        self.assertEqual(self.driver.sync(), 101)

    def test_children_get_none_of_our_descriptors(self):
        # The last is that of the list.
        programs = "ls /proc/self/fd; (ls /proc/self/fd); echo $(ls /proc/self/fd); bash -c 'ls /proc/self/fd' | cat"
        for _ in range(2):
            cell = self.run_cell(programs)
            self.assertEqual(set(cell.stdout.split()), {"0", "1", "2", "3"}, cell.stdout)
            # A shell that ended leaves it as it was.
            self.fails("set -e; false", 1)
            self.run_cell("set +e")

    def test_many_cells(self):
        for number in range(300):
            self.says(f"echo {number}", f"{number}\n")


if __name__ == "__main__":
    unittest.main()
