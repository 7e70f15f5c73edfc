"""Interactive runs of Piston's, over a WebSocket that knows nothing of this server."""

import json
import os

import websocket

url, key = os.environ["E2B_API_URL"], os.environ["E2B_API_KEY"]


def connect(shown=key, path="/api/v2/connect"):
    return websocket.create_connection(url.replace("http", "ws", 1) + path, header={"Authorization": shown}, timeout=90)


def init(content, language="bash", **others):
    return {"type": "init", "language": language, "version": "*", "files": [{"name": "main", "content": content}], **others}


def talk(*said, after=None):
    """What is told after `said`, until it ends: messages, and the code with its word. `after` answers to messages."""
    socket = connect()
    for message in said:
        socket.send(message if isinstance(message, str) else json.dumps(message))
    told = []
    while True:
        opcode, data = socket.recv_data()
        if opcode == websocket.ABNF.OPCODE_CLOSE:
            return told, (int.from_bytes(data[:2], "big"), data[2:].decode())
        told.append(json.loads(data))
        answer = after and after(told)
        if answer:
            socket.send(json.dumps(answer))


def written(told, stream="stdout"):
    return "".join(message["data"] for message in told if message["type"] == "data" and message["stream"] == stream)


def exit_of(told):
    return next(message for message in told if message["type"] == "exit")


def answer_it(told):
    if written(told) == "name? " and told[-1].get("data"):
        return {"type": "data", "stream": "stdin", "data": "door\n"}


def stop_it(told):
    if written(told).endswith("ready\n") and told[-1].get("data"):
        return {"type": "signal", "signal": "SIGTERM"}


# A program that is asked, answers and is answered.
told, end = talk(init("printf 'name? '; read name; echo \"hello $name\"; echo bad >&2; exit 3"), after=answer_it)
assert [message["type"] for message in told[:2]] == ["runtime", "stage"], told
assert (told[0]["language"], told[1]["stage"]) == ("bash", "run"), told
assert (written(told), written(told, "stderr")) == ("name? hello door\n", "bad\n"), told
assert (exit_of(told)["code"], exit_of(told)["signal"], exit_of(told)["stage"]) == (3, None, "run"), told
assert end == (4999, "Job Completed"), end
told, end = talk(init("trap 'echo trapped; exit 5' TERM; echo ready; while :; do read -t 1 line; done"), after=stop_it)
assert (written(told), exit_of(told)["code"]) == ("ready\ntrapped\n", 5), told
# No character is divided.
told, _ = talk(init("print('ä' * 200_000)", language="python"))
assert written(told) == "ä" * 200_000 + "\n", len(written(told))
# Limits are those of other runs.
told, _ = talk(init("read line", run_timeout=300))
assert (exit_of(told)["signal"], exit_of(told)["status"]) == ("SIGKILL", "TO"), told
told, _ = talk(init("yes"))
assert (len(written(told)), exit_of(told)["status"]) == (1 << 20, "OL"), exit_of(told)
# What is said in vain.
for said, code in [
    ([{"type": "data", "stream": "stdin", "data": "x"}], 4003),
    ([{"type": "signal", "signal": "SIGKILL"}], 4003),
    ([{"type": "else"}, init("read line"), init("true")], 4000),
    ([init("read line"), {"type": "data", "stream": "stdout", "data": "x"}], 4004),
    ([init("read line"), {"type": "signal", "signal": "SIGNOTHING"}], 4005),
    (["no json"], 4002),
    ([init("true", language="cow")], 4002),
    ([init("true", run_timeout=60_001)], 4002),
    (["[" * 100_000], 4002),
]:
    told, end = talk(*said)
    assert end[0] == code, (said, told, end)
    assert code != 4002 or told[-1]["type"] == "error", told
# A client that goes away takes its program with it, and no key lets nobody in.
socket = connect()
socket.send(json.dumps(init("sleep 50", run_timeout=60_000)))
assert [json.loads(socket.recv())["type"] for _ in range(2)] == ["runtime", "stage"]
socket.shutdown()
for shown, status in [("", 401), ("e2b_" + "0" * 40, 401)]:
    try:
        connect(shown)
    except websocket.WebSocketBadStatusException as error:
        assert error.status_code == status, error
    else:
        raise AssertionError("a stranger was let in")
