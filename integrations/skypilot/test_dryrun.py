"""`sky launch --dryrun` of the task, without a network: a server in the place of Kubernetes says that it has one node.

SkyPilot's own server places the task, and stops before it makes anything. `--image-id` spares it a list of images that it would
fetch. It wants `socat` and `nc` to be there, and uses neither; where they are not, programs that do nothing stand in.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HERE = Path(__file__).resolve().parent
SKY = Path(sys.executable).parent / "sky"
#: Where SkyPilot's own server listens, which cannot be chosen.
PORT = 46580
ROOM = {"cpu": "8", "memory": "32Gi", "pods": "110", "ephemeral-storage": "500Gi"}
NODE = {
    "metadata": {"name": "one", "labels": {"kubernetes.io/arch": "amd64", "kubernetes.io/hostname": "one"}, "annotations": {}},
    "spec": {},
    "status": {"capacity": ROOM, "allocatable": ROOM, "conditions": [{"type": "Ready", "status": "True"}]},
}
asked = []


class Kubernetes(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        asked.append((self.command, self.path))
        path = self.path.partition("?")[0]
        found = {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": [NODE] if path == "/api/v1/nodes" else []}
        if path == "/version":
            found = {"major": "1", "minor": "31", "gitVersion": "v1.31.0"}
        content = json.dumps(found).encode()
        self.rfile.read(int(self.headers.get("content-length") or 0))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def log_message(self, *_):
        pass


def home_in(place, port):
    """A home whose Kubernetes is that server."""
    (place / ".kube").mkdir()
    cluster = {"name": "here", "cluster": {"server": f"http://127.0.0.1:{port}"}}
    context = {"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "default"}}
    config = {"apiVersion": "v1", "kind": "Config", "current-context": "here", "clusters": [cluster], "contexts": [context]}
    # JSON is YAML, too.
    (place / ".kube" / "config").write_text(json.dumps({**config, "users": [{"name": "me", "user": {"token": "none"}}]}))
    (place / "bin").mkdir()
    for name in ("socat", "nc", "rsync"):
        if not shutil.which(name):
            (place / "bin" / name).write_text("#!/bin/sh\nexit 0\n")
            (place / "bin" / name).chmod(0o755)
    (place / "offleash").write_bytes(b"")
    path = f"{place / 'bin'}{os.pathsep}{SKY.parent}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(place), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1", "NO_COLOR": "1"}


def main():
    with socket.socket() as taken:
        if taken.connect_ex(("127.0.0.1", PORT)) == 0:
            print(f"SKIP a server of SkyPilot is there already, at {PORT}")
            return
    server = ThreadingHTTPServer(("127.0.0.1", 0), Kubernetes)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        place = Path(name)
        variables = home_in(place, server.server_port)

        def sky(*words):
            return subprocess.run([SKY, *words], cwd=place, env=variables, capture_output=True, text=True, timeout=240)

        def launched(text):
            (place / "server.yaml").write_text(text)
            key = "OFFLEASH_KEY=e2b_" + "6" * 40
            return sky("launch", "-y", "--dryrun", "-c", "offleash-1", "--image-id", "docker:ubuntu:22.04", "--secret", key, "server.yaml")

        try:
            enabled = sky("check", "kubernetes")
            assert "No infra" not in enabled.stdout, enabled
            text = (HERE / "server.yaml").read_text()
            done = launched(text)
            assert done.returncode == 0 and "Dryrun finished" in done.stdout and "Kubernetes (here)" in done.stdout, done
            assert "e2b_666" not in done.stdout + done.stderr, "the key is shown"
            # There is a node with 8 CPUs.
            assert launched(text.replace("cpus: 4+", "cpus: 64+")).returncode != 0
            assert launched(text.replace("disk_size:", "disk_sizes:")).returncode != 0
            assert {method for method, _ in asked} == {"GET"}, "nothing is made"
        finally:
            sky("api", "stop")
    print("ok")


if __name__ == "__main__":
    main()
