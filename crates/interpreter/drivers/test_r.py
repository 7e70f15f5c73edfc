"""Tests of the driver of R contexts, spoken to as its host does."""

import base64
import os
import shutil
import tempfile
import threading
import unittest

import harness
from harness import PATIENCE, bootstrap, driver_file


class Driver(harness.Driver):
    """A driver of R."""

    def __init__(self, env=None):
        parts = (driver_file("speaker.sh"), b"__offleash_r=$(cat <<'__OFFLEASH_R'\n", driver_file("r.R"), b"__OFFLEASH_R\n)\n", driver_file("r.sh"))
        directory = tempfile.mkdtemp(prefix="offleash-driver-")
        environment = {**os.environ, "TMPDIR": directory, **(env or {})}
        super().__init__(["bash", "-c", bootstrap("BASH"), "r"], b"".join(parts), environment, directory)


class Cells(harness.Cells):
    make = Driver

    def is_shown(self, code, expected, **options):
        cell = self.run_cell(code, **options)
        self.assertEqual((cell.text, cell.errors, cell.all_output), (expected, [], ""), code)
        return cell

    def test_state_is_kept(self):
        first = self.is_shown("x <- 1; twice <- function(n) 2 * n; setwd('/'); library(stats)", None)
        self.assertEqual((first.count, first.results), (1, []))
        second = self.is_shown("x <- x + 1\nc(twice(x), nchar(getwd()))", "[1] 4 1")
        self.assertEqual(second.count, 2)
        self.assertEqual(self.driver.sync(), 2)
        self.is_shown("ls()", '[1] "twice" "x"    ')

    def test_values_are_printed_and_the_last_is_the_result(self):
        cell = self.run_cell("1\ninvisible(2)\n'three'\nNULL\n4")
        self.assertEqual((cell.stdout, cell.text), ('[1] 1\n[1] "three"\nNULL\n', "[1] 4"))
        for code in ("", "# nothing", "y <- 3", "invisible(1)", "1 -> z; f <- function() invisible(2); f()"):
            self.is_shown(code, None)
        self.is_shown("print.mine <- function(x, ...) cat('mine\\n'); structure(1, class = 'mine')", "mine")
        self.is_shown("setClass('P', representation(a = 'numeric')); setMethod('show', 'P', function(object) cat('P\\n')); new('P', a = 1)", "P")
        self.is_shown("\"é日本\"", '[1] "é日本"')
        self.is_shown(".Last.value", '[1] "é日本"')

    def test_an_error_has_its_name_its_message_and_its_way(self):
        cell = self.fails("cat('before\\n')\nf <- function(n) stop('bad ', n)\ng <- function() f(3)\ng()\ncat('no\\n')", "simpleError")
        self.assertEqual(cell.stdout, "before\n")
        self.assertEqual(cell.errors[0][1:], ("bad 3", "Error in f(3): bad 3\n  1: g()\n  2: f(3)"))
        self.assertEqual(self.fails("nothing", "simpleError").errors[0][1:], ("object 'nothing' not found", "Error: object 'nothing' not found"))
        own = "stop(structure(class = c('mine', 'error', 'condition'), list(message = 'own', call = NULL)))"
        self.assertEqual(self.fails(own, "mine").errors[0][1], "own")
        self.assertEqual(len(self.run_cell("f <- function() f(); f()").errors), 1)
        self.is_shown("tryCatch(stop('x'), error = function(e) 'caught')", '[1] "caught"')

    def test_code_that_cannot_be_read_is_an_error_with_its_place(self):
        _, value, trace = self.fails("a <- 1\nb <- <- 2", "SyntaxError").errors[0]
        self.assertIn("cell 1:2:6: unexpected assignment", value)
        self.assertIn("2: b <- <-", trace)
        for code in ("f(", "}", "'", "a\0b"):
            self.fails(code, "SyntaxError")
        # Nothing of it ran.
        self.is_shown("exists('a')", "[1] FALSE")

    def test_warnings_and_messages_are_output(self):
        cell = self.run_cell("f <- function() warning('careful'); f(); message('told'); suppressWarnings(f())")
        self.assertEqual(cell.stderr, "Warning in f() : careful\ntold\n")

    def test_plots_are_pictures(self):
        cell = self.run_cell("plot(1:3); hist(c(1, 2, 2, 3)); 'shown'")
        self.assertEqual((cell.text, len(cell.displayed()), cell.errors), ('[1] "shown"', 2, []))
        for picture in cell.displayed():
            (mime, form), = picture.items()
            self.assertTrue(base64.b64decode(form, validate=True).startswith({"image/png": b"\x89PNG", "application/pdf": b"%PDF"}[mime]))
        self.assertEqual(self.run_cell("f <- tempfile(); pdf(f); plot(1); dev.list()[[1]]; x <- 1").displayed(), [])
        self.is_shown("invisible(dev.off()); file.size(f) > 0", "[1] TRUE")
        self.assertEqual(len(self.run_cell("plot(1); stop('x')").displayed()), 1)

    def test_a_data_frame_has_a_table(self):
        forms = self.run_cell("data.frame(n = c(1.5, NA), s = c('<b>', 'é & y'))").main
        self.assertEqual(forms["text/plain"], "    n     s\n1 1.5   <b>\n2  NA é & y")
        self.assertIn("<tr><th>2</th><td>NA</td><td>é &amp; y</td></tr>", forms["text/html"])
        self.assertIn("&lt;b&gt;", forms["text/html"])
        large = self.run_cell("data.frame(n = seq_len(5000))").main["text/html"]
        self.assertIn("5000 rows, 1 columns", large)
        self.assertEqual(large.count("<tr>"), 61)

    def test_an_interrupt_ends_the_cell_and_the_context_survives(self):
        self.is_shown("x <- 1", None)
        self.driver.interrupt()
        going = threading.Event()

        def interrupt():
            # As its host does: a signal may end a child alone.
            while not going.wait(0.3):
                self.driver.interrupt()

        for work in ("Sys.sleep(1000)", "repeat {}", "system('sleep 1000'); repeat {}", "while (TRUE) Sys.sleep(0.01)", "for (i in 1:1e9) y <- sqrt(i)"):
            going.clear()
            again = threading.Thread(target=interrupt)
            cell = self.run_cell("cat('go\\n'); " + work + "; cat('no\\n')", on_output=lambda _: again.is_alive() or again.start())
            going.set()
            again.join()
            self.assertEqual((cell.stdout, [error[0] for error in cell.errors]), ("go\n", ["KeyboardInterrupt"]), work)
            self.is_shown("x", "[1] 1")

    def test_output_streams(self):
        os.mkfifo(os.path.join(self.driver.directory, "gate"))
        opened = []

        def on_output(came):
            # The cell waits for this, so what came before was not kept back.
            if "first" in came.stdout and not opened:
                opened.append(True)
                open(os.path.join(self.driver.directory, "gate"), "w").close()

        code = "cat('first'); gate <- file('gate', 'r', raw = TRUE); y <- readLines(gate); close(gate); cat('second\\n'); message('third')"
        cell = self.run_cell(code, on_output=on_output)
        self.assertEqual((cell.stdout, cell.stderr), ("firstsecond\n", "third\n"))

    def test_every_byte_of_a_child_is_kept(self):
        everything = bytes(range(256)) * 300 + b"\0\0"
        with open(os.path.join(self.driver.directory, "bytes"), "wb") as file:
            file.write(everything)
        cell = self.run_cell("invisible(system('cat bytes'))")
        self.assertEqual(b"".join(data for _, data in cell.output), everything)

    def test_output_that_is_of_no_use_is_left_out(self):
        cell = self.run_cell("for (i in 1:2000) cat(strrep('x', 1000))", room=1000)
        self.assertEqual((cell.stdout, cell.truncated), ("x" * 1000, 2000 * 1000 - 1000))
        self.says("cat('on\\n')", "on\n")

    def test_children_get_none_of_our_descriptors(self):
        cell = self.run_cell("for (name in system('cd /proc/self/fd; for n in *; do readlink $n; done', intern = TRUE)) cat(name, '\\n')")
        # Beside its three there are that of the driver's file and that of the list.
        others = [name.strip() for name in cell.stdout.splitlines()]
        self.assertEqual([name for name in others if name.startswith("pipe:")], others[1:3], others)

    def test_forged_frames_are_output(self):
        forged = f"done {1:032x} 0\n"
        cell = self.run_cell(f"cat('{forged.strip()}\\n'); cat('{forged.strip()}\\n', file = stderr())")
        self.assertEqual((cell.stdout, cell.stderr), (forged, forged))
        self.says("cat('on\\n')", "on\n")

    def test_what_a_cell_does_to_connections_and_functions_is_its_own(self):
        self.is_shown("sink(tempfile()); cat('lost\\n')", None)
        self.says("cat('a\\n'); closeAllConnections()", "a\n")
        self.is_shown("c <- eval <- file <- paste0 <- sprintf <- function(...) stop('mine'); T <- FALSE", None)
        self.says("cat('b\\n')", "b\n")
        self.is_shown("rm(list = ls(all.names = TRUE)); ls()", "character(0)")
        self.is_shown("data.frame(a = 1)$a", "[1] 1")

    def test_variables_of_a_cell_are_its_own(self):
        self.is_shown("Sys.setenv(A = 'before')", None)
        code = "cat(Sys.getenv('A'), Sys.getenv('B', 'none'), '\\n'); invisible(system('echo $A'))"
        self.says(code, "b c x=y \nb c\n", env={"A": "b c", "B": "x=y"})
        self.says(code, "before none \nbefore\n")

    def test_large_code_and_large_results(self):
        self.is_shown("x <- '" + "é" * 2_000_000 + "'; nchar(x)", "[1] 2000000")
        self.assertEqual(len(self.run_cell("cat(''); structure(1, class = 'large'); print.large <- function(x, ...) cat(strrep('y', 1e6)); structure(1, class = 'large')").text), 1_000_000)
        cell = self.run_cell("print.large <- function(x, ...) cat(strrep('y', 2e7)); structure(1, class = 'large')")
        self.assertEqual((cell.main, cell.omitted), ({}, {"text/plain": 20_000_000}))

    def test_an_end_of_r_is_the_end_of_the_context(self):
        for code, status in (("cat('last'); q(status = 3)", 3), ("cat('last'); invisible(system(paste('kill -9', Sys.getpid())))", -9)):
            self.assertEqual(self.driver.until_the_end(self.driver.start(code)), (b"last", status))
            self.tearDown()
            self.setUp()

    def test_an_end_of_input_is_the_end(self):
        self.says("cat('a')", "a")
        self.assertEqual([name for name in os.listdir(self.driver.directory) if name.startswith("tmp.")], [])
        self.driver.process.stdin.close()
        self.assertEqual(self.driver.process.wait(PATIENCE), 0)
        # R ends, too, whose output this is.
        self.assertEqual(self.driver.process.stdout.read(), b"")


class Starts(unittest.TestCase):
    def start(self, env):
        driver = Driver(env)
        self.addCleanup(shutil.rmtree, driver.directory)
        given = driver.process.communicate(timeout=PATIENCE)
        return driver.process.returncode, given

    def test_without_r_it_is_not_found(self):
        with tempfile.TemporaryDirectory() as directory:
            for name in ("bash", "cat"):
                os.symlink(shutil.which(name), os.path.join(directory, name))
            self.assertEqual(self.start({"PATH": directory})[0], 127)

    def test_what_r_says_that_does_not_start_is_read(self):
        code, (out, _) = self.start({"R_HOME": "/nowhere", "R_PROFILE_USER": "/dev/null", "R_DEFAULT_PACKAGES": "NULL", "RHOME": "/nowhere"})
        self.assertNotEqual(code, 127)


if __name__ == "__main__":
    unittest.main()
