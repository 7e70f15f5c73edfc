"""What E2B's SDK for desktops does with a screen: it looks, clicks, types, drags and streams, by programs of the sandbox."""

import base64
import os
import socket

from e2b_desktop import Sandbox

from cases import case, equal, eventually, raises, says


def size(picture):
    picture = bytes(picture)
    equal(picture[:8], b"\x89PNG\r\n\x1a\n")
    return int.from_bytes(picture[16:20], "big"), int.from_bytes(picture[20:24], "big")


def at(address, head):
    """What is answered at the address of a stream, which is a name below `localhost`, and the connection."""
    host = address.removeprefix("https://").split("/")[0]
    connection = socket.create_connection(("127.0.0.1", int(host.split(":")[1])), timeout=60)
    connection.sendall(f"GET {head[0]} HTTP/1.1\r\nHost: {host}\r\n{head[1]}\r\n".encode())
    stream = connection.makefile("rb")
    answer = [stream.readline().decode().strip()]
    while answer[-1]:
        answer.append(stream.readline().decode().strip())
    return answer[0].split(" ", 1)[1], stream


UPGRADE = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {}\r\n"


def greeting(address):
    """What the screen says first to a viewer in a browser."""
    key = base64.b64encode(os.urandom(16)).decode()
    status, stream = at(address, ("/websockify", UPGRADE.format(key)))
    says(status, "101")
    opcode, length = stream.read(2)
    return opcode & 15, stream.read(length)


@case
def a_desktop_is_seen_driven_and_streamed():
    desktop = Sandbox.create(resolution=(800, 600), dpi=100, timeout=600)
    try:
        run = lambda line: desktop.commands.run(line).stdout
        equal(desktop.get_screen_size(), (800, 600))
        equal(size(desktop.screenshot()), (800, 600))
        equal(size(b"".join(desktop.screenshot(format="stream"))), (800, 600))
        before = bytes(desktop.screenshot())

        # A window with a program that keeps what is typed.
        desktop.commands.run("xterm -T typing -e sh -c 'cat >/tmp/typed'", background=True)
        (window,) = eventually(lambda: "a window", lambda: windows(desktop, "XTerm"))
        equal(desktop.get_window_title(window), "typing")
        desktop.left_click(400, 300)
        equal(desktop.get_cursor_position(), (400, 300))
        eventually(lambda: "the focus", lambda: desktop.get_current_window_id() == window)
        desktop.write("it's <b>", delay_in_ms=5)
        desktop.press("enter")
        desktop.press(["ctrl", "d"])
        equal(eventually(lambda: "what was typed", lambda: run("cat /tmp/typed")), "it's <b>\n")
        equal(windows_later_gone(desktop), True)

        desktop.right_click(10, 20)
        desktop.middle_click()
        desktop.double_click()
        desktop.scroll("down", 2)
        desktop.drag((10, 20), (200, 210))
        equal(desktop.get_cursor_position(), (200, 210))
        desktop.wait(1)
        assert bytes(desktop.screenshot()) != before

        # A program that is not there does not open anything, and the desktop goes on.
        desktop.launch("nothing")
        desktop.open("/tmp/typed")

        streams(desktop)
    finally:
        desktop.kill()


def windows(desktop, name):
    found = desktop.commands.run(f"xdotool search --onlyvisible --class {name} || true").stdout.split()
    return found and desktop.get_application_windows(name)


def windows_later_gone(desktop):
    return eventually(lambda: "no window", lambda: not windows(desktop, "XTerm"))


def streams(desktop):
    raises(RuntimeError, desktop.stream.get_auth_key)
    desktop.stream.start(require_auth=True)
    says(raises(RuntimeError, desktop.stream.start), "already running")
    key = desktop.stream.get_auth_key()
    address = desktop.stream.get_url(auth_key=key, view_only=True)
    says(address, f"https://6080-{desktop.sandbox_id}.localhost", "view_only=true", f"password={key}")
    status, page = at(address, ("/vnc.html", "Connection: close\r\n"))
    says(status, "200")
    says(page.read().decode(), "noVNC")
    equal(greeting(address), (2, b"RFB 003.008\n"))
    desktop.stream.stop()
    says(at(address, ("/vnc.html", "Connection: close\r\n"))[0], "502")
