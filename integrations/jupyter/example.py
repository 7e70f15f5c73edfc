"""A kernel in a sandbox, asked as a notebook asks it."""

from jupyter_client.manager import start_new_kernel

manager, client = start_new_kernel(kernel_name="python-offleash")
client.execute_interactive("import platform; print(platform.node())")
manager.shutdown_kernel()
