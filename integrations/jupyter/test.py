"""A kernel that the provisioner starts, asked as a notebook asks it."""

import json
import os
import sys
import tempfile
from pathlib import Path

with tempfile.TemporaryDirectory() as place:
    # What installing the package would bring: its entry point, and a specification that names it.
    about = Path(place) / "offleash_jupyter-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: offleash-jupyter\nVersion: 0.1.0\n")
    points = "[jupyter_client.kernel_provisioners]\noffleash-provisioner = offleash_jupyter:OffleashProvisioner\n"
    (about / "entry_points.txt").write_text(points)
    sys.path.insert(0, place)
    kernel = Path(place) / "jupyter" / "kernels" / "python-offleash"
    kernel.mkdir(parents=True)
    spec = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python in a sandbox",
        "language": "python",
        "metadata": {"kernel_provisioner": {"provisioner_name": "offleash-provisioner"}},
    }
    (kernel / "kernel.json").write_text(json.dumps(spec))
    os.environ["JUPYTER_PATH"] = str(Path(place) / "jupyter")
    os.environ["JUPYTER_RUNTIME_DIR"] = str(Path(place) / "runtime")
    project = Path(place) / "project"
    project.mkdir()
    secret = Path(place) / "secret"
    secret.write_text("secret")

    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(startup_timeout=60, kernel_name="python-offleash", cwd=str(project))
    try:
        heard = []

        def said(code):
            heard.clear()
            hook = lambda message: heard.append(message["content"].get("text") or message["content"].get("ename") or "")
            client.execute_interactive(code, output_hook=hook, timeout=60)
            return "".join(heard)

        assert said("x = 6 * 7; print(x)") == "42\n"
        assert said("print(x + 1)") == "43\n"
        assert "FileNotFoundError" in said(f"open({str(secret)!r})"), heard
        said("open('made.txt', 'w').write('made')")
        looping = client.execute("print('loops', flush=True)\nwhile True: pass")
        while client.get_iopub_msg(timeout=60)["content"].get("text") != "loops\n":
            pass
        manager.interrupt_kernel()
        while (reply := client.get_shell_msg(timeout=60))["parent_header"]["msg_id"] != looping:
            pass
        assert reply["content"]["ename"] == "KeyboardInterrupt", reply
        assert said("print('still')") == "still\n", heard
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    assert (project / "made.txt").read_text() == "made"
print("ok")
