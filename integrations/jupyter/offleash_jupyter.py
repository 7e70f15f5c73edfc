"""A kernel provisioner of Jupyter: kernels run in sandboxes of offleash.

A kernel's specification (`kernel.json`) asks for it:

    "metadata": {"kernel_provisioner": {"provisioner_name": "offleash-provisioner", "config": {"options": ["--no-network"]}}}
"""

import os
import sys

from jupyter_client.provisioning import LocalProvisioner
from traitlets import List, Unicode

PORTS = ("shell_port", "iopub_port", "stdin_port", "hb_port", "control_port")


class OffleashProvisioner(LocalProvisioner):
    """The kernel's five ports are published at this machine; the notebook's directory is the workspace."""

    #: More options of `offleash run`, such as `--template` and `--allow`.
    options = List(Unicode(), config=True)
    #: What becomes of changes in the notebook's directory: `rw`, `overlay` or `ro`.
    mode = Unicode("rw", config=True)

    async def launch_kernel(self, cmd, **kwargs):
        connection = self.parent.connection_file
        words = [os.environ.get("OFFLEASH_BINARY", "offleash"), "run", "--quiet", "--wall-time", "unlimited"]
        words += ["--workspace", f"{kwargs.get('cwd') or os.getcwd()}:{self.mode}", "--mount", f"{connection}:{connection}"]
        for port in PORTS:
            words += ["--publish", f"{self.connection_info[port]}:{self.connection_info[port]}"]
        # The Python that Jupyter has, where it is not the system's, which is there anyway.
        for prefix in {sys.prefix, sys.base_prefix} - {"/usr"}:
            words += ["--mount", f"{prefix}:{prefix}"]
        return await super().launch_kernel([*words, *self.options, "--", *cmd], **kwargs)
