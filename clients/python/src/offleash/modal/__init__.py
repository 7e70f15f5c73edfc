"""Sandboxes by the names of Modal's library: `import offleash.modal as modal`.

What Modal has and offleash has not is an `UnimplementedError` when it is asked for.
"""

from . import exception
from ._tunnel import Tunnel
from .app import App
from .container_process import ContainerProcess
from .exception import Error
from .filesystem import FileInfo, FileIO, FileType, SandboxFilesystem
from .image import Image
from .io_streams import StreamReader, StreamType, StreamWriter
from .sandbox import Sandbox
from .secret import Secret
from .volume import FileEntry, FileEntryType, Volume

__all__ = [
    "App",
    "ContainerProcess",
    "Error",
    "FileEntry",
    "FileEntryType",
    "FileIO",
    "FileInfo",
    "FileType",
    "Image",
    "Sandbox",
    "SandboxFilesystem",
    "Secret",
    "StreamReader",
    "StreamType",
    "StreamWriter",
    "Tunnel",
    "Volume",
    "exception",
]
