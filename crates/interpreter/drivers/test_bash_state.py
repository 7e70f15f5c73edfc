"""Tests of `state.sh`: what cells of one Bash context left is found by those of another."""

import os
import unittest

import test_bash
from carrying import Carrying
from harness import driver_file


class Contexts(Carrying, test_bash.Cells):
    part = driver_file("state.sh")

    def goes_on(self):
        self.assertEqual(self.run_cell("echo on").stdout, "on\n")

    def test_what_cells_left_is_carried(self):
        other = self.carry(
            "x=1; y=$'a\\nb\"c$d`e\\\\'; declare -a arr=(1 'two 2' $'th\\nree'); declare -A m=(['a b']=c [$'n\\n']=d); declare -i n=5\n"
            "declare -r ro=7; declare -n ref=x; id=9 kind=8 length=3 IFS=,: name=5 path=6 empty=; export EX='e x'; PATH=$PATH:/opt/q\n"
            "f() { echo \"f $1 $x\"; local z; }; export -f f; unset HOME; umask 027; cd /usr; trap 'echo usr' USR1; big=$(printf %099999d 1)",
            "shopt -s extglob nullglob; set -u; set -o pipefail; alias hi='echo hello'",
            "ext() { case $1 in +(a|b)) echo yes;; esac; }; hi",
        )
        cell = other.run(
            "printf '<%s>' \"$x\" \"$y\" \"${arr[@]}\" \"${m[a b]}\" \"${m[$'n\\n']}\" \"$n\" \"$ro\" \"$EX\" \"${HOME-none}\" \"$ref\" \"$id$kind$length$name$path\" "
            "\"$IFS\" \"${empty-unset}\" \"${PATH##*:}\" ${#big}; echo; pwd; f 1; ext ab; hi; umask; shopt -q nullglob && echo nullglob\n"
            "set -o | grep -c 'pipefail.*on'; [[ $- == *u* ]] && echo u; kill -USR1 $BASHPID; bash -c 'f 2'; n=n+1; echo $n"
        )
        self.assertEqual((cell.count, cell.stderr, cell.errors), (4, "", []))
        self.assertEqual(
            cell.stdout,
            "<1><a\nb\"c$d`e\\><1><two 2><th\nree><c><d><5><7><e x><none><1><98356><,:><></opt/q><99999>\n/usr\nf 1 1\nyes\nhello\n0027\n"
            "nullglob\n1\nu\nusr\nf 2 \n6\n",
        )
        other.run("x=2")
        self.says("echo $x", "1\n")
        self.assertFalse(os.path.exists(self.file))

    def test_what_a_sandbox_was_given_is_its_own(self):
        self.run_cell("x=1")
        self.assertEqual(self.save()[0], "saved")
        with open(self.file, encoding="utf-8") as file:
            self.assertNotIn("PATH=", file.read())

    def test_names_of_functions_that_cells_replaced_harm_nobody(self):
        other = self.carry("x=1; local() { echo mine; }; declare() { :; }; printf() { :; }; set() { :; }; trap() { :; }; read() { :; }; eval() { :; }")
        self.assertEqual(other.run("builtin echo $x; local").stdout, "1\nmine\n")

    def test_open_files_cannot_be_carried(self):
        self.run_cell("exec 5</dev/null; x=1")
        _, obstacles = self.refused("obstacles")
        self.assertEqual([one[0] for one in obstacles], ["(descriptor 5)"])
        word, _, left_out = self.save(skips=1)
        self.assertEqual((word, left_out), ("saved", obstacles))
        self.assertEqual(self.load()[0].run("echo $x").stdout, "1\n")

    def test_size_and_time_are_bounded(self):
        self.run_cell("big=$(printf %03000000d 1)")
        self.assertIn("1000000 bytes", self.refused("large", most=1_000_000)[0])
        # A program in place of one that is needed, which never ends; a function in its place is none.
        self.run_cell("mkdir bin; printf '#!/bin/sh\nsleep 1000\n' >bin/wc; chmod +x bin/wc; PATH=$PWD/bin:$PATH; big=1; head() { sleep 1000; }")
        self.refused("time", seconds=1)
        self.run_cell("rm bin/wc; ulimit -f 50; big=$(printf %0300000d 1)")
        self.assertEqual(self.save()[0], "refused")
        self.says("echo ${#big}", "300000\n")

    def test_a_place_that_is_none_is_refused(self):
        self.run_cell("x=1")
        target = os.path.join(self.driver.directory, "target")
        for make in (lambda: os.symlink(target, self.file), lambda: self.write(b"")):
            make()
            self.assertEqual(self.save()[0], "refused")
            self.assertFalse(os.path.exists(target))
        self.refused("other", file="/nowhere/at/all")

    def test_a_file_that_is_none_of_ours_is_refused(self):
        self.run_cell("x=1")
        self.loads_nothing_else()

    def test_a_directory_that_is_gone_is_told(self):
        self.run_cell("mkdir gone; cd gone; x=1")
        self.assertEqual(self.save()[0], "saved")
        os.rmdir(os.path.join(self.driver.directory, "gone"))
        other, _, missing = self.load()
        self.assertEqual([one[0] for one in missing], ["(working directory)"])
        self.assertEqual(other.run("echo $x").stdout, "1\n")

    def test_random_numbers_are_others(self):
        self.run_cell("RANDOM=5")
        self.assertEqual(self.save()[0], "saved")
        with open(self.file, "rb") as file:
            state = file.read()
        seen = {self.run_cell("echo $RANDOM $RANDOM $RANDOM $RANDOM").stdout}
        for _ in range(2):
            self.write(state)
            seen.add(self.load()[0].run("echo $RANDOM $RANDOM $RANDOM $RANDOM").stdout)
        self.assertEqual(len(seen), 3)


def load_tests(loader, _tests, _pattern):
    """Those of this file alone, and not those that its class inherits."""
    names = [name for name in vars(Contexts) if name.startswith("test_")]
    return unittest.TestSuite(map(Contexts, sorted(names)))


if __name__ == "__main__":
    unittest.main()
