"""Two machines in network namespaces: the host, where offleash runs, and an internet for it to reach.

Started as `internet.py DIRECTORY` where networks may be made; says `ready`, does what its standard input says, and lives
until that ends, when it removes the directory.
"""

import ctypes, hashlib, json, os, resource, shutil, signal, socket, ssl, struct, subprocess, sys, threading, time

NEWNET, MS_BIND = 0x40000000, 4096
# A connection is a file, and there may be a thousand.
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
libc = ctypes.CDLL(None, use_errno=True)
directory = sys.argv[1]
journal = os.open(directory + "/journal", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

# Where the host asks for names, its own addresses (the first for what it does by itself, the second for controls of a
# test), and those of the internet.
RESOLVER = "9.9.9.9"
PROXY = "172.16.0.10"
HOST = ["151.101.64.2", "151.101.64.3"]
HOST6 = ["2606:2800:220::2", "2606:2800:220::3"]
ROUTER, ROUTER6 = "151.101.64.1", "2606:2800:220::1"
ELSEWHERE = [
    RESOLVER, "93.184.216.34", "93.184.216.35", "151.101.0.223", "169.254.169.254", "100.100.100.200", "168.63.129.16",
    "10.0.0.5", "172.16.0.10", "192.168.1.1", "192.168.1.2", "172.16.0.9", "100.64.0.7",
    "93.184.216.99"]
ELSEWHERE6 = ["2606:2800:220:1::5", "fd00:ec2::254"]

NAMES = {
    "www.example.com": [("A", "93.184.216.34"), ("AAAA", ROUTER6)],
    "secret.example.com": [("A", "93.184.216.35")],
    "api.example.com": [("A", "151.101.0.223")],
    "example.com": [("A", "93.184.216.34")],
    "notexample.com": [("A", "93.184.216.35")],
    "six.example.com": [("AAAA", "2606:2800:220:1::5")],
    "alias.example.com": [("CNAME", "www.example.com"), ("A", "93.184.216.34")],
    "alias-inside.example.com": [("CNAME", "inside.example.net"), ("A", "10.0.0.5")],
    "loopback.example.com": [("A", "127.0.0.1")],
    "loopback-six.example.com": [("AAAA", "::1")],
    "mapped.example.com": [("AAAA", "::ffff:127.0.0.1")],
    "nat64.example.com": [("AAAA", "64:ff9b::7f00:1")],
    "zero.example.com": [("A", "0.0.0.0")],
    "host.example.com": [("A", HOST[0])],
    "host-six.example.com": [("AAAA", HOST6[0])],
    "metadata.example.com": [("A", "169.254.169.254")],
    "metadata-six.example.com": [("AAAA", "fd00:ec2::254")],
    "metadata-alibaba.example.com": [("A", "100.100.100.200")],
    "metadata-azure.example.com": [("A", "168.63.129.16")],
    "private.example.com": [("A", "10.0.0.5")],
    "home.example.com": [("A", "192.168.1.1")],
    "corporate.example.com": [("A", "172.16.0.9")],
    "shared.example.com": [("A", "100.64.0.7")],
    "mixed.example.com": [("A", "93.184.216.34"), ("A", "10.0.0.5")],
    "moved.example.com": [("A", "93.184.216.99")],
    "nothing.example.com": [],
}
KINDS = {"A": 1, "CNAME": 5, "AAAA": 28}
rebound = [0]


def write(**entry):
    os.write(journal, json.dumps(entry).encode() + b"\n")


def plain(address):
    return address[7:] if address.startswith("::ffff:") else address


def met(kind, connection, **more):
    """Notes that somebody reached a server."""
    local, peer = connection.getsockname(), connection.getpeername()
    write(at=machine, kind=kind, local=plain(local[0]), port=local[1], peer=plain(peer[0]), **more)


# Names.

def encoded(name):
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


def records(name, server):
    if name.startswith("split."):
        # Only one of those who are asked knows it.
        return [("A", "10.0.0.5" if ".inside." in name else "93.184.216.34")] if server != RESOLVER else None
    if name == "rebind.example.com":
        rebound[0] += 1
        return [("A", "93.184.216.34" if rebound[0] % 2 else "10.0.0.5")]
    if name.endswith(".wild.example.org"):
        return [("A", "93.184.216.34")]
    return NAMES.get(name)


def answer(question, peer, server=RESOLVER):
    labels, at = [], 12
    while question[at]:
        labels.append(question[at + 1:at + 1 + question[at]].decode("latin-1"))
        at += 1 + question[at]
    kind = struct.unpack(">H", question[at + 1:at + 3])[0]
    name = ".".join(labels).lower()
    write(at=machine, kind="question", name=name, peer=plain(peer[0]), server=server)
    known = [] if kind == KINDS["AAAA"] and name == "rebind.example.com" else records(name, server)
    answers, owner = [], name
    for type_, value in known or []:
        if type_ == "CNAME":
            data, next_owner = encoded(value), value
        else:
            data, next_owner = socket.inet_pton(socket.AF_INET6 if type_ == "AAAA" else socket.AF_INET, value), owner
        if type_ == "CNAME" or KINDS[type_] == kind:
            answers.append(encoded(owner) + struct.pack(">HHIH", KINDS[type_], 1, 0, len(data)) + data)
        owner = next_owner
    head = struct.pack(">HHHHHH", struct.unpack(">H", question[:2])[0], 0x8580 if known is not None else 0x8583,
                       1, len(answers), 0, 0)
    return head + question[12:at + 5] + b"".join(answers)


def names_by_datagram(address=RESOLVER):
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, 53))
    while True:
        question, peer = server.recvfrom(4096)
        if b"\x06silent" in question:
            continue
        server.sendto(answer(question, peer, address), peer)


def names_by_connection(connection):
    length = struct.unpack(">H", connection.recv(2, socket.MSG_WAITALL))[0]
    question = connection.recv(length, socket.MSG_WAITALL)
    if b"\x06silent" in question:
        return silent(connection)
    reply = answer(question, connection.getpeername())
    connection.sendall(struct.pack(">H", len(reply)) + reply)


# Servers.

def web(connection, greeting=None):
    """Answers every request with what it was; `/big` with as many bytes as its name says."""
    waiting = b""

    def more():
        nonlocal waiting
        read = connection.recv(1 << 16)
        waiting += read
        return read

    while True:
        while b"\r\n\r\n" not in waiting:
            if not more():
                return
        head, waiting = waiting.split(b"\r\n\r\n", 1)
        text = head.decode("latin-1")
        met("request", connection, head=text, greeting=greeting)
        fields = dict(line.lower().split(": ", 1) for line in text.split("\r\n")[1:] if ": " in line)
        if fields.get("upgrade") == "websocket":
            connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
            return echo(connection, waiting)
        left, digest, total = int(fields.get("content-length", 0)), hashlib.sha256(), 0
        while left:
            if not waiting and not more():
                return
            part, waiting = waiting[:left], waiting[left:]
            digest.update(part)
            left, total = left - len(part), total + len(part)
        if "/big/" in text.split(" ")[1]:
            body = b"0123456789abcdef" * (int(text.split(" ")[1].split("/")[-1]) // 16)
        elif "/redirect/" in text.split(" ")[1]:
            target = text.split(" ")[1].split("/redirect/")[1]
            connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: http://%s/\r\nContent-Length: 0\r\n\r\n" % target.encode())
            continue
        else:
            local = plain(connection.getsockname()[0])
            body = json.dumps({"local": local, "head": text, "bytes": total, "sha256": digest.hexdigest(),
                               "greeting": greeting}).encode()
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def secure_web(connection, curve=None):
    names = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if curve:
        context.set_ecdh_curve(curve)
    context.load_cert_chain(directory + "/certificate", directory + "/key")
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    with context.wrap_socket(connection, server_side=True) as tunnel:
        web(tunnel, names[0] if names else None)


def choosy_web(connection):
    """Has every client greet again, with a key of another curve than any begins with."""
    secure_web(connection, "secp521r1")


def echo(connection, first=b""):
    connection.sendall(first)
    while read := connection.recv(1 << 16):
        connection.sendall(read)


def banner(connection):
    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
    echo(connection)


def digest(connection):
    """Reads to the end and then says what it was: the connection is closed one way only."""
    seen, total = hashlib.sha256(), 0
    while read := connection.recv(1 << 16):
        seen.update(read)
        total += len(read)
    connection.sendall(b"%d %s" % (total, seen.hexdigest().encode()))


def hasty(connection):
    """Answers and hangs up before it has read what it was sent."""
    connection.sendall(b"too long")


def silent(connection):
    """Neither answers nor hangs up."""
    connection.recv(1)
    threading.Event().wait()


def endless(connection):
    """Sends for as long as it is read."""
    block = b"0123456789abcdef" * 4096
    while True:
        connection.sendall(block)


def echo_datagrams(address, port):
    """At one address, so that the answer comes from there."""
    server = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, port))
    while True:
        read, peer = server.recvfrom(4096)
        write(at=machine, kind="datagram", port=port, peer=plain(peer[0]))
        server.sendto(read, peer)


def start(action, *values):
    threading.Thread(target=action, args=values, daemon=True).start()


def served(action, connection):
    with connection:
        try:
            met("connection", connection)
            action(connection)
        except (OSError, ValueError):
            pass


def serve(port, action, address="::"):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.create_server((address, port), family=family, backlog=1024, dualstack_ipv6=family == socket.AF_INET6)

    def loop():
        while True:
            start(served, action, server.accept()[0])
    start(loop)


def corporate_proxies():
    """Proxies of Debian's, where there are any: one for everybody, and one for whoever knows the password."""
    for port, more in [(3128, "ConnectPort 80\nConnectPort 443\nConnectPort 7\n"), (3129, "BasicAuth me s3cret\n")]:
        path = "%s/proxy-%d" % (directory, port)
        with open(path, "w") as settings:
            settings.write("Port %d\nListen %s\nTimeout 600\nMaxClients 100\nLogFile \"%s.log\"\n%s" % (port, PROXY, path, more))
        subprocess.Popen(["tinyproxy", "-d", "-c", path], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL, preexec_fn=lambda: libc.prctl(1, signal.SIGKILL))
        while True:
            try:
                socket.create_connection((PROXY, port)).close()
                break
            except OSError:
                time.sleep(0.01)


def serve_all():
    for port, action in [(80, web), (8080, web), (443, secure_web), (8443, secure_web), (8444, choosy_web), (7, echo), (22, banner),
                         (9, digest), (10, hasty), (11, silent), (12, endless), (1, echo)]:
        serve(port, action)
    if machine == "internet":
        for port in [443, 7]:
            start(echo_datagrams, "93.184.216.35", port)
            start(echo_datagrams, "2606:2800:220:1::5", port)
        start(names_by_datagram)
        serve(53, names_by_connection, RESOLVER)
        serve_ways_out()
        serve_vault()
        serve_clients()


# Networks.

def checked(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def ip(*words):
    subprocess.run(["ip", *words], check=True, stdin=subprocess.DEVNULL)


def addresses(device, v4, v6):
    for address in v4:
        ip("address", "add", address, "dev", device)
    for address in v6:
        ip("address", "add", address, "dev", device, "nodad")
    ip("link", "set", device, "up")
    ip("link", "set", "lo", "up")


def internet(ours, theirs):
    checked(libc.prctl(1, signal.SIGKILL))
    checked(libc.unshare(NEWNET))
    os.write(ours, b"made")
    os.read(theirs, 1)
    addresses("wan", [ROUTER + "/24"] + [one + "/32" for one in ELSEWHERE],
              [ROUTER6 + "/64"] + [one + "/128" for one in ELSEWHERE6])
    serve_all()
    if shutil.which("tinyproxy"):
        corporate_proxies()
    os.write(ours, b"done")
    threading.Event().wait()


for name in ["opened.py", "secrets.py", "clients.py", "ways_out.py"]:
    with open(directory + "/" + name) as more:
        exec(compile(more.read(), name, "exec"))

up, up_writer = os.pipe()
down, down_writer = os.pipe()
other = os.fork()
machine = "host" if other else "internet"
if other == 0:
    internet(up_writer, down)
os.read(up, 4)
ip("link", "add", "name", "uplink", "type", "veth", "peer", "name", "wan", "netns", str(other))
addresses("uplink", [one + "/24" for one in HOST], [one + "/64" for one in HOST6])
os.write(down_writer, b"!")
if os.read(up, 4) != b"done":
    sys.exit("the internet did not come up")
# The source is what replies go to; the second address is only for whoever asks for it.
ip("route", "add", "default", "via", ROUTER, "src", HOST[0])
ip("-6", "route", "add", "default", "via", ROUTER6, "src", HOST6[0])
ip("-6", "route", "replace", "2606:2800:220::/64", "dev", "uplink", "src", HOST6[0])
with open(directory + "/resolv.conf", "w") as resolvers:
    resolvers.write("nameserver %s\n" % RESOLVER)
checked(libc.mount((directory + "/resolv.conf").encode(), os.path.realpath("/etc/resolv.conf").encode(), None, MS_BIND, None))
serve_all()
print("ready", flush=True)
# What is to be changed at the host's network.
for line in sys.stdin:
    ip(*line.split())
os.kill(other, signal.SIGKILL)
shutil.rmtree(directory, ignore_errors=True)
