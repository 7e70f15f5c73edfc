"""A backend of LangChain's Deep Agents: its agent's commands and files are in a sandbox of offleash."""

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

import offleash


class OffleashBackend(BaseSandbox):
    """Takes a sandbox, or makes one with what `offleash.Sandbox.create` takes."""

    def __init__(self, sandbox=None, *, cwd=None, timeout=1800, **options):
        self.sandbox = sandbox or offleash.Sandbox.create(**options)
        self._cwd = cwd
        self._timeout = timeout

    @property
    def id(self):
        return self.sandbox.sandbox_id

    def execute(self, command, *, timeout=None):
        limit = self._timeout if timeout is None else timeout
        result = self.sandbox.run(command, cwd=self._cwd, timeout=limit)
        output = "\n".join(text for text in (result.stdout, result.stderr) if text)
        if result.timed_out:
            return ExecuteResponse(f"{output}\nkilled after {limit} s", 124, result.truncated)
        code = result.exit_code if result.exit_code is not None else 128 + (result.signal or 0)
        return ExecuteResponse(output, code, result.truncated)

    def upload_files(self, files):
        return [FileUploadResponse(path, self._tried(path, self.sandbox.files.write, content)[1]) for path, content in files]

    def download_files(self, paths):
        return [self._download(path) for path in paths]

    def _download(self, path):
        content, error = self._tried(path, self.sandbox.files.read, "bytes")
        return FileDownloadResponse(path, None if error else bytes(content), error)

    def _tried(self, path, act, argument):
        if not path.startswith("/"):
            return None, "invalid_path"
        try:
            return act(path, argument), None
        except offleash.FileNotFoundException:
            return None, "file_not_found"
        except offleash.PermissionDeniedException:
            return None, "permission_denied"
        except offleash.InvalidArgumentException as error:
            return None, "is_directory" if "directory" in str(error) else "invalid_path"
