"""What tests of states share: a context saves what its cells left, and others load it."""

import os

# More than any state here has.
GENEROUS = 1 << 30


class Carrying:
    """Beside a test case of a driver; `part` is what its driver is given first."""

    def setUp(self):
        super().setUp()
        self.others = []

    def tearDown(self):
        first = self.driver
        for self.driver in self.others:
            super().tearDown()
        self.driver = first
        super().tearDown()

    def another(self):
        """A driver of a context in which no cell has run."""
        return type(self.driver)()

    @property
    def file(self):
        return os.path.join(self.driver.directory, "the state")

    def write(self, data):
        with open(self.file, "wb") as file:
            file.write(data)

    def ask(self, driver, kind, payload):
        number = driver.fresh()
        driver.give("part", "0" * 32, self.part)
        driver.give(kind, number, payload)
        obstacles = []
        while True:
            word, of, answer = driver.frame()
            if of != number:
                continue
            if word == "obstacle":
                obstacles.append(tuple(answer.decode().split("\n")))
            else:
                return word, answer.decode(), obstacles

    def save(self, seconds=60, most=GENEROUS, skips=0, file=None):
        return self.ask(self.driver, "save", f"{seconds} {most} {skips}\n{file or self.file}".encode())

    def load(self, expected="loaded"):
        driver = self.another()
        self.others.append(driver)
        word, answer, left_out = self.ask(driver, "load", self.file.encode())
        self.assertEqual(word, expected, answer)
        self.assertFalse(os.path.lexists(self.file), "who loads it removes it")
        return driver, answer, left_out

    def carry(self, *cells):
        """A context in which what these cells left is found again."""
        for code in cells:
            self.assertEqual(self.run_cell(code).errors, [], code)
        word, answer, left_out = self.save()
        self.assertEqual((word, left_out), ("saved", []), answer)
        self.assertEqual(os.path.getsize(self.file), int(answer))
        self.assertEqual(os.stat(self.file).st_mode & 0o777, 0o600)
        return self.load()[0]

    def refused(self, why, **options):
        """Nothing is saved, and the context is as it was."""
        word, answer, obstacles = self.save(**options)
        self.assertEqual((word, answer.split("\n")[0]), ("refused", why), answer)
        self.assertFalse(os.path.lexists(options.get("file", self.file)))
        self.goes_on()
        return answer.split("\n", 1)[1], obstacles

    def loads_nothing_else(self):
        """Files that are no states are refused, and removed."""
        for make in (
            lambda: os.symlink("/etc/passwd", self.file),
            lambda: os.mkfifo(self.file),
            lambda: self.write(b""),
            lambda: self.write(os.urandom(5000)),
            lambda: None,
        ):
            make()
            other, _, _ = self.load("refused")
            self.driver, first = other, self.driver
            self.goes_on()
            self.driver = first
        self.assertEqual(self.save()[0], "saved")
        with open(self.file, "r+b") as file:
            file.truncate(os.path.getsize(self.file) - 30)
        self.load("refused")
