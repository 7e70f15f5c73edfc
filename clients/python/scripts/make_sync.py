"""Makes `offleash/_sync` of `offleash/_async`; with `--check` it only says whether that is up to date.

`backend.py` and `watch.py` of both are written by hand: they are what differs.
"""

import re
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "offleash"
BY_HAND = {"__init__.py", "backend.py", "watch.py"}
WORDS = [
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\bStopAsyncIteration\b", "StopIteration"),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\baiter_(bytes|lines)\b", r"iter_\1"),
    (r"\baclose\b", "close"),
    (r"\baread\b", "read"),
]


def sync(text):
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text)
    return text.replace('"""', '# Made by scripts/make_sync.py; change `_async` instead.\n"""', 1)


def main():
    stale = []
    for source in sorted((SOURCE / "_async").glob("*.py")):
        if source.name in BY_HAND:
            continue
        made, target = sync(source.read_text()), SOURCE / "_sync" / source.name
        if not target.exists() or target.read_text() != made:
            stale.append(target.name)
            if "--check" not in sys.argv:
                target.write_text(made)
    if "--check" in sys.argv and stale:
        sys.exit(f"`_sync` is not what `_async` makes: {', '.join(stale)}; run scripts/make_sync.py")


if __name__ == "__main__":
    main()
