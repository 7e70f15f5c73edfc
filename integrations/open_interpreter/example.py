"""Open Interpreter whose code runs in a sandbox."""

from interpreter import interpreter

from offleash import Sandbox
from offleash_open_interpreter import languages

with Sandbox.create(allow_internet_access=False, timeout=3600) as sandbox:
    interpreter.computer.languages = languages(sandbox)
    interpreter.chat()
