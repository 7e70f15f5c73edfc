"""Files of this machine: what is written where others may write, too, and what is read of a directory."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Iterator, List, Union

#: A file is made, and never one that is there, nor what a link leads to.
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def written_anew(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes the place of `path` at the end, and that its owner alone can read; nothing stays if that fails.

    Until then it has a name that nobody can guess, so that nothing is there already.
    """
    new = path.with_name(f".offleash-{os.urandom(12).hex()}.new")
    try:
        with os.fdopen(os.open(new, _NEW, 0o600), "wb") as file:
            yield file
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


@contextmanager
def own_directory(path: Path) -> Iterator[Path]:
    """A directory of this user's, which is made if it is not there, by a path that means no other one meanwhile.

    Raises:
        PermissionError: it is another user's, or others can write to it: they could have put anything into it.
    """
    own = os.geteuid()
    existing = next(above for above in (path, *path.parents) if os.path.lexists(above))
    if own == 0 and existing.lstat().st_uid != 0:
        # Nothing of the superuser's is left in a directory of somebody else's.
        raise PermissionError(f"`{existing}` belongs to user {existing.lstat().st_uid}, and this program is the superuser's")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Whoever has the directory above could have put a link there.
    follow = 0 if path.parent.stat().st_uid == own else os.O_NOFOLLOW
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | follow)
    try:
        found = os.fstat(directory)
        if found.st_uid != own:
            raise PermissionError(f"`{path}` belongs to user {found.st_uid}, and this program is user {own}'s")
        if found.st_mode & 0o022:
            raise PermissionError(f"`{path}` can be written to by other users")
        yield Path(f"/proc/self/fd/{directory}")
    finally:
        os.close(directory)


def opened_to_append(path: Path) -> IO[bytes]:
    """A file that is made if it is not there, to be read, too; a link is not followed."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "a+b")


def read_plain(path: Union[str, Path]) -> bytes:
    """What a file holds that was no link when it was found, and is none now."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        return file.read()


def files_below(directory: Path, recursive: bool = True) -> List[Path]:
    """The files of a directory, sorted; links are left out, as is what is below them."""
    found: List[Path] = []
    for above, _, names in os.walk(directory):
        paths = (Path(above, name) for name in names)
        found += [path for path in paths if stat.S_ISREG(path.lstat().st_mode)]
        if not recursive:
            break
    return sorted(found)
