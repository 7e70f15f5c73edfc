import errno, hashlib, json, os, socket, ssl, struct, sys, threading, time

# What a control does has an address of its own, by which the servers know it.
CONTROL = os.environ.get("CONTROL") == "1"
TIMEOUT = 30
results = {}


def attempt(name, action, *values, **more):
    """Tries something; what the network refuses is a refusal, and a mistake of the test is neither."""
    try:
        results[name] = {"done": str(action(*values, **more))}
    except TimeoutError as failure:
        results[name] = {"slow": str(failure)}
    except OSError as failure:
        results[name] = {"refused": "%s %s" % (errno.errorcode.get(failure.errno or 0, type(failure).__name__), failure)}
    except BaseException as failure:
        results[name] = {"broken": repr(failure)}


def dial(host, port):
    """A connection, made as every program makes it."""
    failure = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            return dial_address(family, address)
        except OSError as error:
            failure = error
    raise failure


def dial_address(family, address):
    connection = socket.socket(family, socket.SOCK_STREAM)
    connection.settimeout(TIMEOUT)
    if CONTROL:
        loopback = address[0].startswith("127.") or address[0] == "0.0.0.0"
        if family == socket.AF_INET:
            connection.bind(("127.0.0.9" if loopback else "151.101.64.3", 0))
        else:
            connection.bind(("2606:2800:220::3", 0))
    connection.connect(address)
    return connection


def secured(connection, name, authority=None):
    context = ssl.create_default_context(cafile=authority)
    if not authority:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(connection, server_hostname=name)


class Ended(ConnectionError):
    """The other side hung up where an answer was due."""


class Refused(ConnectionError):
    """The gateway said so, in place of a server."""


def response(connection, waiting=b""):
    """One answer of an HTTP server: its status and its body."""
    while b"\r\n\r\n" not in waiting:
        read = connection.recv(1 << 16)
        if not read:
            raise Ended("no answer after %r" % waiting)
        waiting += read
    head, body = waiting.split(b"\r\n\r\n", 1)
    # Of a large body, adding bytes to bytes would copy all of it each time.
    body = bytearray(body)
    length = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    while not length or len(body) < length[0]:
        read = connection.recv(1 << 16)
        if not read:
            break
        body += read
    status = head.split(b"\r\n")[0].decode()
    if body.startswith(b"offleash: "):
        raise Refused("%s: %s" % (status, body.decode()))
    return status, bytes(body)


def say(connection, request):
    """Sends a request and answers the status and the body, as text."""
    connection.sendall(request.encode("latin-1"))
    status, body = response(connection)
    return status + "\n" + body.decode("latin-1")


def get(host, port=80, path="/", asked=None):
    with dial(host, port) as connection:
        bracketed = "[%s]" % host if ":" in host else host
        asked = asked or (bracketed if port in (80, 443) else "%s:%d" % (bracketed, port))
        return say(connection, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (path, asked))


def get_secure(host, port=443, sni="", authority=None):
    with dial(host, port) as connection, secured(connection, host if sni == "" else sni, authority) as tunnel:
        return say(tunnel, "GET / HTTP/1.1\r\nHost: %s\r\n\r\n" % host)


def page(host, request, port=80):
    """Sends these bytes and answers everything that comes back."""
    with dial(host, port) as connection:
        connection.sendall(request.encode("latin-1"))
        return response(connection)[0]


def echoed(host, port=7, text=b"hello"):
    with dial(host, port) as connection:
        connection.sendall(text)
        back = b""
        while len(back) < len(text):
            read = connection.recv(1 << 16)
            if not read:
                raise Ended("after %d bytes" % len(back))
            back += read
        return back == text


def datagram(address, port=7):
    """Sends a datagram and waits for its echo; an error that comes at once is what a QUIC client needs."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as connection:
        connection.settimeout(TIMEOUT)
        if CONTROL:
            connection.bind(("2606:2800:220::3" if ":" in address else "151.101.64.3", 0))
        connection.connect((address, port))
        connection.send(b"hello")
        return connection.recv(100)


def question(name, kind=1, identity=b"\x12\x34"):
    labels = b"".join(bytes([len(label)]) + label.encode("latin-1") for label in name.split(".") if label)
    return identity + b"\1\0\0\1\0\0\0\0\0\0" + labels + b"\0" + struct.pack(">HH", kind, 1)


def code_and_answers(reply):
    return "code %d, answers %d" % (reply[3] & 15, struct.unpack(">H", reply[6:8])[0])


def ask(name, kind=1, server="198.18.0.1"):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as connection:
        connection.settimeout(TIMEOUT)
        connection.connect((server, 53))
        connection.send(question(name, kind))
        return code_and_answers(connection.recv(4096))


def ask_by_connection(name, server="198.18.0.1"):
    with socket.create_connection((server, 53), timeout=TIMEOUT) as connection:
        asked = question(name)
        connection.sendall(struct.pack(">H", len(asked)) + asked)
        length = struct.unpack(">H", connection.recv(2, socket.MSG_WAITALL))[0]
        return code_and_answers(connection.recv(length, socket.MSG_WAITALL))
