"""Tests of `state.R`: what cells of one R context left is found by those of another."""

import os
import unittest

import test_r
from carrying import Carrying
from harness import driver_file


class Contexts(Carrying, test_r.Cells):
    part = driver_file("state.R")

    def goes_on(self):
        self.assertEqual(self.run_cell("6 * 7").text, "[1] 42")

    def test_what_cells_left_is_carried(self):
        other = self.carry(
            "x <- 1:3; shared <- new.env(); shared$v <- 5; l <- list(shared); f <- function(y) { x <<- y; y }\n"
            "count <- local({ n <- 0; function() { n <<- n + 1; n } }); invisible(count())\n"
            "library(splines); options(digits = 3, mine = 'o'); invisible(Sys.setenv(ADDED = 'a b')); Sys.unsetenv('HOME'); setwd('/usr')",
            "setClass('P', representation(a = 'numeric')); invisible(setGeneric('area', function(o) standardGeneric('area')))\n"
            "setMethod('area', 'P', function(o) o@a * 2); p <- new('P', a = 4)",
            "df <- data.frame(a = 1:2, b = c('x', 'é')); .hidden <- 7; fit <- lm(a ~ a, df)",
        )
        cell = other.run(
            "cat(identical(l[[1]], shared), f(9), x, count(), 'package:splines' %in% search(), getOption('digits'), getOption('mine'),"
            " Sys.getenv('ADDED'), Sys.getenv('HOME', 'none'), getwd(), area(p), area(new('P', a = 1)), df$b, .hidden, class(fit))"
        )
        self.assertEqual((cell.count, cell.stderr, cell.errors), (4, "", []))
        self.assertEqual(cell.stdout, "TRUE 9 9 2 TRUE 3 o a b none /usr 8 2 x é 7 lm")
        self.assertEqual(other.sync(), 4)
        self.assertEqual(self.run_cell("x").text, "[1] 1 2 3", "neither sees the other")

    def test_what_cannot_be_carried_is_named_and_nothing_saved(self):
        self.run_cell(
            "good <- 1; con <- file('/dev/null', 'r'); deep <- list(a = list(con)); makeActiveBinding('act', function() 1, globalenv())\n"
            "delayedAssign('bad', stop('no')); attach(list(q = 1), name = 'mine')"
        )
        _, obstacles = self.refused("obstacles")
        self.assertEqual([one[0] for one in obstacles], ["act", "bad", "con", "deep", "(attached) mine"])
        word, _, left_out = self.save(skips=1)
        self.assertEqual((word, left_out), ("saved", obstacles))
        self.assertEqual(self.load()[0].run("c(good, exists('con'), exists('act'))").text, "[1] 1 0 0")

    def test_code_of_the_context_is_run_in_a_process_of_its_own(self):
        self.run_cell("x <- 1; delayedAssign('bad', { x <<- 2; repeat {} })")
        self.assertIn("1 second", self.refused("time", seconds=1)[0])
        self.run_cell("delayedAssign('bad', parallel:::mcexit(3))")
        self.refused("other")
        self.assertEqual(self.run_cell("x").text, "[1] 1", "what it did to itself is its own")

    def test_size_and_place_are_bounded(self):
        self.run_cell("x <- runif(1e6)")
        self.assertIn("1000000 bytes", self.refused("large", most=1_000_000)[0])
        self.run_cell("x <- 1")
        self.refused("other", file="/nowhere/at/all")
        target = os.path.join(self.driver.directory, "target")
        os.symlink(target, self.file)
        self.assertEqual(self.save()[0], "refused", "a link is not followed")
        self.assertFalse(os.path.exists(target))

    def test_a_file_that_is_none_of_ours_is_refused(self):
        self.run_cell("x <- 1")
        self.loads_nothing_else()

    def test_a_directory_that_is_gone_is_told(self):
        self.run_cell("dir.create('gone'); setwd('gone'); x <- 1")
        self.assertEqual(self.save()[0], "saved")
        os.rmdir(os.path.join(self.driver.directory, "gone"))
        other, _, missing = self.load()
        self.assertEqual([one[0] for one in missing], ["(working directory)"])
        self.assertEqual(other.run("x").text, "[1] 1")

    def test_random_numbers_are_others(self):
        self.run_cell("set.seed(5)")
        self.assertEqual(self.save()[0], "saved")
        with open(self.file, "rb") as file:
            state = file.read()
        seen = {self.run_cell("cat(runif(3))").stdout}
        for _ in range(2):
            self.write(state)
            seen.add(self.load()[0].run("cat(runif(3))").stdout)
        self.assertEqual(len(seen), 3)

    def test_the_file_is_removed_when_the_next_frame_comes(self):
        self.run_cell("x <- 1")
        self.assertEqual(self.save()[0], "saved")
        self.driver.sync()
        self.assertFalse(os.path.exists(self.file))


def load_tests(loader, _tests, _pattern):
    """Those of this file alone, and not those that its class inherits."""
    names = [name for name in vars(Contexts) if name.startswith("test_")]
    return unittest.TestSuite(map(Contexts, sorted(names)))


if __name__ == "__main__":
    unittest.main()
