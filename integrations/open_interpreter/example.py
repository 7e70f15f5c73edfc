"""An interpreter whose code runs in a sandbox."""

from interpreter import interpreter

from offleash_open_interpreter import use

use(interpreter, allow_internet_access=False)
interpreter.auto_run = True
interpreter.chat("What is the 30th Fibonacci number?")
