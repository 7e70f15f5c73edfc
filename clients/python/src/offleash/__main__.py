"""`python -m offleash`: becomes the program `offleash`."""

import os
import sys

from ._daemon import find_binary
from ._errors import OffleashError


def main() -> None:
    try:
        program = find_binary()
    except OffleashError as error:
        print(f"error: {error}", file=sys.stderr)
        # As the program answers its own failures.
        sys.exit(125)
    os.execv(program, ["offleash", *sys.argv[1:]])


main()
