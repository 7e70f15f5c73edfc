"""Servers for connections that are opened, run by `internet.py` among its own: with certificates that an authority of
the test has made, for names below `opened.example.net`."""

import base64

OPENED = "93.184.216.34"
for label in ["api", "other", "expired", "untrusted", "misnamed", "down"]:
    NAMES[label + ".opened.example.net"] = [("A", OPENED)]


class Messages:
    """Requests of HTTP/1.1 as they stand on a connection."""

    def __init__(self, connection):
        self.connection, self.waiting = connection, b""

    def more(self):
        read = self.connection.recv(1 << 16)
        if not read:
            raise OSError("the other side hung up")
        self.waiting += read

    def line(self):
        while b"\r\n" not in self.waiting:
            self.more()
        line, self.waiting = self.waiting.split(b"\r\n", 1)
        return line.decode("latin-1")

    def exactly(self, length):
        while length:
            if not self.waiting:
                self.more()
            part, self.waiting = self.waiting[:length], self.waiting[length:]
            length -= len(part)
            yield part

    def head(self):
        first, fields = self.line(), []
        while line := self.line():
            name, value = line.split(":", 1)
            fields.append((name.lower(), value.strip()))
        return first.split(" "), fields

    def body(self, fields):
        of = dict(fields)
        if of.get("transfer-encoding") == "chunked":
            while size := int(self.line(), 16):
                yield from self.exactly(size)
                self.line()
            while self.line():
                pass
        else:
            yield from self.exactly(int(of.get("content-length", 0)))


# Answers that two clients would read differently, most of them with another one hidden in their bodies.
HIDDEN = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nsmuggled"
AMBIGUOUS = {
    "CL.TE": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "TE.CL": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
             % (len(HIDDEN), HIDDEN),
    "lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(HIDDEN) + HIDDEN,
    "list": b"HTTP/1.1 200 OK\r\nContent-Length: 0, %d\r\n\r\n" % len(HIDDEN) + HIDDEN,
    "coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "folded": b"HTTP/1.1 200 OK\r\nX: y\r\n Content-Length: 0\r\nContent-Length: 0\r\n\r\n" + HIDDEN,
    "space": b"HTTP/1.1 200 OK\r\nContent-Length : 0\r\n\r\n" + HIDDEN,
    "lines": b"HTTP/1.1 200 OK\nContent-Length: 5\n\nplain",
    "again": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nplain",
}


def opened_web(connection, name):
    messages = Messages(connection)
    while True:
        (method, target, version), fields = messages.head()
        met("opened", connection, name=name, method=method, target=target, fields=fields)
        of = dict(fields)
        if of.get("upgrade") == "websocket":
            accept = base64.b64encode(hashlib.sha1(
                (of["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
            connection.sendall(("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                                "Sec-WebSocket-Accept: %s\r\n\r\n" % accept).encode())
            return echo(connection, messages.waiting)
        path = target.split("?")[0].split("/")
        if path[-2] == "heard":
            heard.tell(path[-1])
        if path[-2] == "events":
            return events(connection, path[-1])
        seen, total = hashlib.sha256(), 0
        for part in messages.body(fields):
            seen.update(part)
            total += len(part)
        if path[-2] == "big":
            left = int(path[-1])
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % left)
            piece = b"0123456789abcdef" * 4096
            while left:
                connection.sendall(piece[:left])
                left -= len(piece[:left])
            continue
        if path[-2] == "cut":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
            return
        if path[-2] == "ambiguous":
            connection.sendall(AMBIGUOUS[path[-1]])
            continue
        if path[-2] == "chunked":
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n"
                               b"5\r\nhello\r\n6\r\n world\r\n0\r\nX-Sum: 11\r\n\r\n")
            continue
        body = json.dumps({"method": method, "target": target, "fields": fields, "bytes": total,
                           "sha256": seen.hexdigest()}).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nKeep-Alive: timeout=5\r\nAlt-Svc: h3=\":443\"\r\n\r\n" % len(body)
        connection.sendall(head if method == "HEAD" else head + body)


class Heard:
    """How many events of a stream its client has told that it saw."""

    def __init__(self):
        self.changed, self.seen = threading.Condition(), {}

    def tell(self, stream):
        with self.changed:
            self.seen[stream] = self.seen.get(stream, 0) + 1
            self.changed.notify_all()

    def wait(self, stream, number):
        with self.changed:
            return self.changed.wait_for(lambda: self.seen.get(stream, 0) > number, 60)


heard = Heard()


def events(connection, stream):
    """Says the next thing when it was told that the last one has come."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
    for number in range(3):
        event = b"data: %d\n\n" % number
        connection.sendall(b"%x\r\n%s\r\n" % (len(event), event))
        if not heard.wait(stream, number):
            return
    connection.sendall(b"0\r\n\r\n")


before = secure_web


def secure_web(connection, curve=None):
    """As before for other names."""
    greeting = connection.recv(1 << 12, socket.MSG_PEEK)
    if b".opened.example.net" not in greeting:
        return before(connection, curve)
    names = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def choose(tunnel, name, _):
        names.append(name)
        label = name.split(".")[0]
        chosen = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        odd = label if label in ("expired", "untrusted", "misnamed") else "opened"
        chosen.load_cert_chain(directory + "/" + odd + ".pem", directory + "/opened.key")
        tunnel.context = chosen
    context.load_cert_chain(directory + "/opened.pem", directory + "/opened.key")
    context.sni_callback = choose
    with context.wrap_socket(connection, server_side=True) as tunnel:
        opened_web(tunnel, names[0] if names else None)
