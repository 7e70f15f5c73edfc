#!/usr/bin/env python3
"""The index of servers that server.yaml started: a tunnel to each, and its address on a line.

    python3 servers.py [--first-port 13000]          # until it is interrupted

Lines are `NAME URL`, one for each machine of each cluster whose name begins with `offleash`. When a tunnel ends it is opened anew.
"""

import argparse
import subprocess
import sys
import time

#: What names of clusters begin with.
PREFIX = "offleash"
#: How long a tunnel that ended is left alone, seconds.
AGAIN = 5.0


def hosts(clusters):
    """The machines of clusters that are up, by the names that SkyPilot writes into the configuration of SSH."""
    found = []
    for cluster in clusters:
        name, status = cluster["name"], cluster["status"]
        if not name.startswith(PREFIX) or getattr(status, "value", status) != "UP":
            continue
        handle = cluster["handle"]
        count = getattr(handle, "launched_nodes", 1) or 1
        found += [name, *(f"{name}-worker{number}" for number in range(1, count))]
    return found


def tunnel(host, port):
    """What leads from a port of this machine to the server of another."""
    forward = f"127.0.0.1:{port}:127.0.0.1:3000"
    words = ["ssh", "-N", "-o", "ExitOnForwardFailure=yes", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=5", "-L", forward, host]
    return subprocess.Popen(words, stdin=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--first-port", type=int, default=13000)
    first = parser.parse_args().first_port
    import sky

    names = hosts(sky.get(sky.status()))
    if not names:
        sys.exit(f"no cluster whose name begins with `{PREFIX}` is up: sky launch -c {PREFIX}-1 server.yaml")
    tunnels = {name: (first + number, tunnel(name, first + number)) for number, name in enumerate(names)}
    for name, (port, _) in tunnels.items():
        print(name, f"http://127.0.0.1:{port}", flush=True)
    try:
        while True:
            time.sleep(AGAIN)
            for name, (port, process) in list(tunnels.items()):
                if process.poll() is not None:
                    print(f"{name}: the tunnel ended with {process.returncode} and is opened anew", file=sys.stderr, flush=True)
                    tunnels[name] = (port, tunnel(name, port))
    except KeyboardInterrupt:
        pass
    finally:
        for _, process in tunnels.values():
            process.terminate()


if __name__ == "__main__":
    main()
