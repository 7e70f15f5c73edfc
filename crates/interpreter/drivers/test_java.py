"""Tests of the driver of Java contexts, spoken to as its host does."""

import os
import shutil
import subprocess
import tempfile
import threading
import unittest

import harness
from harness import PATIENCE, bootstrap, driver_file


class Driver(harness.Driver):
    """A driver of Java."""

    def __init__(self):
        super().__init__(["bash", "-c", bootstrap("JAVA"), "java"], driver_file("Driver.java"))


class Cells(harness.Cells):
    driver = None

    def setUp(self):
        # A virtual machine takes long to start; a test that ends its own leaves the next one a new one.
        if Cells.driver is None:
            Cells.driver = Driver()
            Cells.first = Cells.driver.sync() + 1
        self.driver = Cells.driver
        self.watch()

    def tearDown(self):
        self.watchdog.cancel()
        if self.driver.process.poll() is not None:
            self.end()

    @classmethod
    def tearDownClass(cls):
        if cls.driver is not None:
            cls.driver.kill()
            cls.end()

    @staticmethod
    def end():
        driver, Cells.driver = Cells.driver, None
        driver.clear()

    def is_shown(self, code, expected, **options):
        cell = self.run_cell(code, **options)
        self.assertEqual((cell.text, cell.errors, cell.stderr), (expected, [], ""), code)
        return cell

    def test_state_is_kept(self):
        first = self.says("int x = 1; var list = new ArrayList<Integer>();\nint twice(int n) { return 2 * n; }\nrecord P(int a) {}", "")
        self.assertEqual(first.results, [])
        second = self.is_shown("x += 1;\nlist.add(x);\nList.of(twice(x), list, new P(3))", "[4, [2], P[a=3]]")
        self.assertEqual(second.count, first.count + 1)
        self.assertEqual(self.driver.sync(), second.count)
        # The file that the driver was read from is gone.
        self.assertEqual([name for name in os.listdir(self.driver.directory) if name.startswith("tmp.")], [])

    def test_the_last_expression_is_the_result(self):
        self.is_shown("1 + 1", "2")
        self.is_shown('"te" + "xt"; // said', '"text"')
        self.is_shown("new int[] {1, 2}", "int[2] { 1, 2 }")
        for code in ("", "// nothing", "int y = 3;", "System.out.print(\"\");", "5; int z = 1;", "import java.time.*;"):
            self.is_shown(code, None)

    def test_code_that_cannot_be_compiled_is_an_error_with_its_place(self):
        (name, value, trace), = self.fails('int a = 1;\nint b = "text";', "CompilationException").errors
        self.assertIn("incompatible types", value)
        count = self.driver.sync()
        self.assertIn(f"cell {count}, line 2: incompatible types", trace)
        self.assertIn('  int b = "text";\n          ^', trace)
        for code in ("class A {", "1 +", "nothing + 1", "int f( {", ")"):
            self.fails(code, "CompilationException")
        # What came before was done.
        self.is_shown("a", "1")

    def test_an_exception_has_its_name_its_message_and_its_way(self):
        code = 'int f(int n) {\n  return 1 / n;\n}\nSystem.out.println("before");\n\nf(0);\nSystem.out.println("no")'
        cell = self.fails(code, "java.lang.ArithmeticException")
        self.assertEqual(cell.stdout, "before\n")
        _, value, trace = cell.errors[0]
        self.assertEqual(value, "/ by zero")
        count = cell.count
        self.assertEqual(trace, f"java.lang.ArithmeticException: / by zero\n    at f (cell {count}, line 2)\n    at cell {count}, line 6")
        cell = self.fails('throw new IllegalStateException("outer", new IOException("inner"));', "java.lang.IllegalStateException")
        self.assertIn("Caused by: java.io.IOException: inner", cell.errors[0][2])
        self.fails("Object o = null; o.toString()", "java.lang.NullPointerException")
        self.fails("int g(int n) { return g(n + 1) + 1; } g(0)", "java.lang.StackOverflowError")
        self.fails("var hog = new ArrayList<long[]>(); while (true) hog.add(new long[1 << 27]);", "java.lang.OutOfMemoryError")

    def test_what_is_not_declared_yet_may_be_declared_later(self):
        self.says("int outer() { return inner(); }", "")
        cell = self.fails("outer()", "UnresolvedReferenceException")
        self.assertIn("inner()", cell.errors[0][1])
        self.says("int inner() { return 7; }", "")
        self.is_shown("outer()", "7")
        self.assertIn("Missing", self.fails("class C extends Missing {}", "CompilationException").errors[0][1])

    def test_an_interrupt_ends_the_cell_and_the_context_survives(self):
        self.says("int x = 1;", "")
        self.driver.interrupt()
        going = threading.Event()

        def interrupt():
            # As its host does: the code may not have begun.
            while not going.wait(0.3):
                self.driver.interrupt()

        for work in ("Thread.sleep(1000000);", "while (true) {}", "while (true) try { Thread.sleep(10); } catch (InterruptedException e) {}",
                     'new ProcessBuilder("sleep", "1000").inheritIO().start().waitFor(); while (true) {}',
                     "new Object() { void wait_() throws Exception { synchronized (this) { wait(); } } }.wait_();"):
            going.clear()
            again = threading.Thread(target=interrupt)
            cell = self.run_cell('System.out.println("go"); ' + work + ' System.out.println("no");',
                                 on_output=lambda _: again.is_alive() or again.start())
            going.set()
            again.join()
            self.assertEqual((cell.stdout, [error[0] for error in cell.errors]), ("go\n", ["KeyboardInterrupt"]), work)
            self.is_shown("x", "1")

    def test_output_streams_and_keeps_its_order(self):
        os.mkfifo(os.path.join(self.driver.directory, "gate"))
        opened = []

        def on_output(came):
            # The cell waits for this, so what came before was not kept back.
            if "first" in came.stdout and not opened:
                opened.append(True)
                open(os.path.join(self.driver.directory, "gate"), "w").close()

        code = 'System.out.print("first"); new FileInputStream("gate").read(); System.out.println("second"); System.err.println("third");'
        cell = self.run_cell(code, on_output=on_output)
        self.assertEqual((cell.stdout, cell.stderr), ("firstsecond\n", "third\n"))
        cell = self.run_cell('for (int i = 0; i < 100; i++) { System.out.print("a"); System.err.print("b"); }')
        self.assertEqual(cell.all_output, "ab" * 100)

    def test_every_byte_of_a_child_is_kept(self):
        everything = bytes(range(256)) * 3
        with open(os.path.join(self.driver.directory, "bytes"), "wb") as file:
            file.write(everything * 500 + b"\0\0")
        cell = self.run_cell('int status = new ProcessBuilder("cat", "bytes").inheritIO().start().waitFor();')
        self.assertEqual(b"".join(data for _, data in cell.output), everything * 500 + b"\0\0", cell.errors)

    def test_children_get_none_of_our_descriptors(self):
        cell = self.run_cell('new ProcessBuilder("ls", "/proc/self/fd").inheritIO().start().waitFor(); int m;')
        self.assertEqual(cell.stdout.split(), ["0", "1", "2", "3"], cell.errors)

    def test_output_that_is_of_no_use_is_left_out(self):
        cell = self.run_cell('for (int i = 0; i < 20000; i++) System.out.print("x".repeat(1000)); System.err.println("e");', room=1000)
        self.assertEqual((cell.all_output, cell.truncated), ("x" * 1000, 20000 * 1000 - 1000 + 2))
        self.says('System.out.println("on");', "on\n")

    def test_what_a_cell_does_to_its_streams_is_its_own(self):
        self.says("System.out.close(); System.err.close(); System.setOut(null);", "")
        self.says('System.out.println("on");', "on\n")
        self.run_cell("new FileOutputStream(FileDescriptor.out).close();")
        self.says('System.out.println("still on");', "still on\n")

    def test_threads_that_outlive_the_cell_do_not_hold_it(self):
        self.says("var ready = new CountDownLatch(1);", "")
        self.says('var e = Executors.newSingleThreadExecutor(); e.submit(() -> { ready.await(); return 1; }); System.out.println("on");', "on\n")
        self.says("ready.countDown(); e.shutdown();", "")

    def test_forged_frames_are_output(self):
        forged = f"done {2:032x} 0\n"
        self.is_shown('System.out.printf("done %032x 0%n", 2); 1', "1")
        self.says('System.out.printf("done %032x 0%n", 4);', f"done {4:032x} 0\n")
        self.says('System.out.print("' + forged.strip() + '\\n");', forged)
        self.says('System.out.println("on");', "on\n")

    def test_variables_of_a_cell_are_its_own(self):
        code = 'System.out.println(System.getenv("A")); var made = new ProcessBuilder("sh", "-c", "echo ${A-none}").inheritIO(); ' \
               "made.environment(); made.start().waitFor(); int k;"
        self.says(code, "null\nnone\n")
        self.says(code, "b c\nb c\n", env={"A": "b c"})
        self.says(code, "null\nnone\n")

    def test_variables_are_properties_too(self):
        # As those who come from E2B look for them.
        code = 'System.out.println(System.getProperty("B", "none") + " " + System.getenv("B")); int p;'
        self.says(code, "none null\n")
        self.says(code, "b c b c\n", env={"B": "b c"})
        self.says(code, "none null\n")
        self.says('System.out.println(System.getProperty("TMPDIR").equals(System.getenv("TMPDIR")));', "true\n")
        # Those of the virtual machine itself are no variables.
        version = 'System.out.println(System.getProperty("java.version") + System.getenv("java.version")); int q;'
        before = self.run_cell('System.out.println(System.getProperty("java.version"));').stdout.strip()
        self.says(version, f"{before}9\n", env={"java.version": "9"})
        # What a cell makes of one is its own.
        self.says('System.setProperty("B", "own");', "")
        self.says(code, "own null\n")

    def test_large_code_and_large_results(self):
        self.assertEqual(self.run_cell('"' + "é" * 30000 + '".length()\n//' + "x" * 5_000_000).text, "30000")
        self.assertEqual(len(self.run_cell('"x".repeat(1000000)').text), 1000002)
        cell = self.run_cell('"x".repeat(20_000_000)')
        self.assertEqual((cell.main, cell.omitted), ({}, {"text/plain": 20_000_002}))

    def test_an_end_of_the_virtual_machine_is_the_end_of_the_context(self):
        cell = self.driver.start('System.out.print("last"); System.exit(3);')
        self.assertEqual(self.driver.until_the_end(cell), (b"last", 3))

    def test_one_that_is_killed_ends_as_it_was(self):
        self.driver.start('new ProcessBuilder("kill", "-9", "" + ProcessHandle.current().pid()).start().waitFor();')
        self.assertEqual(self.driver.process.wait(PATIENCE), -9)

    def test_an_end_of_input_is_the_end(self):
        self.says("int a;", "")
        self.driver.process.stdin.close()
        self.assertEqual(self.driver.process.wait(PATIENCE), 0)


class Starts(unittest.TestCase):
    def start(self, source, path):
        directory = tempfile.mkdtemp(prefix="offleash-driver-")
        self.addCleanup(shutil.rmtree, directory)
        if path:
            os.symlink(shutil.which("bash"), os.path.join(directory, "bash"))
        environment = {**os.environ, "TMPDIR": directory, **({"PATH": directory} if path else {})}
        given = b"source %s %d\n%s" % (b"0" * 32, len(source), source)
        done = subprocess.run(["bash", "-c", bootstrap("JAVA"), "java"], input=given, capture_output=True, env=environment, timeout=PATIENCE)
        self.assertEqual([name for name in os.listdir(directory) if name != "bash"], [])
        return done

    def test_without_java_it_is_not_found(self):
        self.assertEqual(self.start(b"", True).returncode, 127)

    def test_what_java_says_of_a_driver_that_does_not_start_is_read(self):
        done = self.start(b"final class Driver { nonsense }", False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"Driver.java:1: error", done.stderr)


if __name__ == "__main__":
    unittest.main()
