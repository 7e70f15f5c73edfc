# What a browser is to who drives it: HTTP that says where its WebSocket is, and a WebSocket that answers calls. It keeps a
# profile as browsers do, and does on demand what only a hostile one does.
import base64, hashlib, json, os, socket, sys, threading

arguments = sys.argv[1:]
profile = next(word.split("=", 1)[1] for word in arguments if word.startswith("--user-data-dir="))
if "--no-sandbox" not in arguments and not os.environ.get("FAKE_NESTS"):
    sys.exit("FATAL: No usable sandbox! Update your kernel")
os.makedirs(profile + "/Cache", exist_ok=True)
open(profile + "/Cache/large", "wb").write(os.urandom(4096))
visits = 1
try:
    visits += int(open(profile + "/visits").read())
except OSError:
    pass
open(profile + "/visits", "w").write(str(visits))
# Ends with the browser, and is in no file of it.
cookies = []
guid = "/devtools/browser/fake-1"
# How everybody who drives it is told something.
told = []


def frame(payload):
    length = len(payload)
    head = bytes([0x81, length]) if length < 126 else bytes([0x81, 126]) + length.to_bytes(2, "big") if length < 65536 else bytes([0x81, 127]) + length.to_bytes(8, "big")
    return head + payload


def read(stream):
    def exactly(count):
        data = stream.read(count)
        if len(data) < count:
            raise EOFError
        return data
    first, length = exactly(2)
    length &= 127
    if length == 126:
        length = int.from_bytes(exactly(2), "big")
    elif length == 127:
        length = int.from_bytes(exactly(8), "big")
    mask = exactly(4)
    data = bytearray(exactly(length))
    for place in range(length):
        data[place] ^= mask[place % 4]
    if first & 15 == 8:
        raise EOFError
    return bytes(data)


def converse(connection, stream):
    global cookies
    lock = threading.Lock()

    def send(message):
        with lock:
            connection.sendall(frame(json.dumps(message).encode()))

    def event(method, params, session="s"):
        send({"method": method, "params": params, "sessionId": session})

    def others(method, params):
        for tell in [tell for tell in told if tell is not event]:
            try:
                tell(method, params)
            except OSError:
                told.remove(tell)

    told.append(event)
    while True:
        message = json.loads(read(stream))
        method, params, result = message["method"], message.get("params", {}), {}
        if method == "Storage.getCookies":
            result = {"cookies": cookies + [{"name": "kept", "value": "on disk", "session": False}]}
        elif method == "Storage.setCookies":
            cookies = [dict(cookie, session=True, size=1) for cookie in params["cookies"]]
        elif method == "Fake.login":
            cookies = [{"name": "login", "value": "sesame", "domain": "shop.test", "path": "/", "session": True}]
        elif method == "Fake.state":
            result = {"visits": visits, "cookies": cookies, "arguments": arguments, "zone": os.environ.get("TZ")}
        elif method == "Fake.die":
            os._exit(3)
        elif method == "Fake.flood":
            for number in range(1200):
                others("Runtime.consoleAPICalled", {"type": "log", "args": [{"value": "x" * 3000}]})
        elif method == "Fake.large":
            others("Runtime.consoleAPICalled", {"type": "log", "args": [{"value": "x" * (9 << 20)}]})
        send({"id": message["id"], "result": result})
        if method == "Target.setAutoAttach" and "sessionId" not in message:
            send({"method": "Target.attachedToTarget", "params": {"sessionId": "s", "targetInfo": {"targetId": "page-1", "type": "page"}}})
            event("Network.requestWillBeSent", {"requestId": "1", "type": "Document", "request": {"method": "GET", "url": "http://shop.test/", "headers": {"Cookie": "sesame"}}})
            event("Network.loadingFailed", {"requestId": "1", "errorText": "net::ERR_NAME_NOT_RESOLVED", "type": "Document"})
            event("Runtime.consoleAPICalled", {"type": "error", "args": [{"value": "\x1b[31m\u202ehostile"}]})
            event("Page.screencastFrame", {"data": "aGk=", "sessionId": 1})
        if method == "Fake.flood":
            # In the next second what was left out of this one is told.
            threading.Timer(1.1, others, ("Runtime.consoleAPICalled", {"type": "log", "args": []})).start()
        if method == "Browser.close":
            os._exit(0)


def serve(connection):
    stream = connection.makefile("rb")
    line, fields = stream.readline().decode(), {}
    while (field := stream.readline().strip()):
        name, value = field.decode().split(":", 1)
        fields[name.lower()] = value.strip()
    path = line.split(" ")[1]
    # As Chromium does: another host, or the origin of a page, is nobody that it answers.
    if not fields["host"].startswith("localhost") or "origin" in fields or "cookie" in fields:
        connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
    elif path == guid:
        accept = base64.b64encode(hashlib.sha1((fields["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
        connection.sendall(("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n" % accept).encode())
        converse(connection, stream)
    else:
        body = json.dumps({
            "/json/version": {"webSocketDebuggerUrl": "ws://localhost:9222" + guid},
            "/json/list": [{"id": "page-1", "type": "page", "title": "<b>\u202e", "url": "http://shop.test/"}, {"id": "w", "type": "worker"}],
        }.get(path, {})).encode()
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
    connection.close()


def safely(connection):
    try:
        serve(connection)
    except (OSError, EOFError):
        connection.close()


listener = socket.create_server(("127.0.0.1", 9222))
while True:
    threading.Thread(target=safely, args=(listener.accept()[0],), daemon=True).start()
