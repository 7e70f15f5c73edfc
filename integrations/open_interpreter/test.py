"""The languages as Open Interpreter's terminal runs them, without a model."""

from interpreter import interpreter
from offleash_open_interpreter import languages

from offleash import Sandbox


def said(language, code):
    pieces = interpreter.computer.run(language, code, stream=True)
    return "".join(piece["content"] for piece in pieces if piece.get("format") == "output")


with Sandbox.create() as sandbox:
    interpreter.computer.languages = languages(sandbox)
    assert "42" in said("python", "x = 42\nprint(x)")
    assert "43" in said("python", "x + 1")
    assert "ZeroDivisionError" in said("python", "1 / 0")
    assert "/home/user" in said("shell", "pwd")
print("ok")
