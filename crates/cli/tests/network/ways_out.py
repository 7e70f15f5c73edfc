# Part of `internet.py`: servers on the way out, by which somebody else than the machine's owner may be served.

OTHER_RESOLVERS = ["93.184.216.35", "10.0.0.5"]


def take(connection, count):
    read = connection.recv(count, socket.MSG_WAITALL)
    if len(read) < count:
        raise OSError("it hung up")
    return read


def carry(one, other):
    try:
        while read := one.recv(1 << 16):
            other.sendall(read)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def socks(connection, password=None):
    """SOCKS 5 by RFC 1928, for `me` with the password if there is one (RFC 1929)."""
    version, count = take(connection, 2)
    methods = take(connection, count)
    chosen = 2 if password else 0
    if version != 5 or chosen not in methods:
        return connection.sendall(b"\x05\xff")
    connection.sendall(bytes([5, chosen]))
    if password:
        take(connection, 1)
        name = take(connection, take(connection, 1)[0])
        said = take(connection, take(connection, 1)[0])
        known = (name, said) == (b"me", password)
        connection.sendall(b"\x01\x00" if known else b"\x01\x01")
        if not known:
            return
    _, _, _, kind = take(connection, 4)
    host = (take(connection, take(connection, 1)[0]).decode() if kind == 3 else
            socket.inet_ntop(socket.AF_INET, take(connection, 4)) if kind == 1 else
            socket.inet_ntop(socket.AF_INET6, take(connection, 16)))
    port = struct.unpack(">H", take(connection, 2))[0]
    met("socks", connection, asked=host, asked_port=port, known=bool(password))
    try:
        other = socket.create_connection((host, port), 60)
    except OSError:
        return connection.sendall(b"\x05\x05\x00\x01\0\0\0\0\0\0")
    other.settimeout(None)
    with other:
        connection.sendall(b"\x05\x00\x00\x01\0\0\0\0\0\0")
        back = threading.Thread(target=carry, args=(other, connection), daemon=True)
        back.start()
        carry(connection, other)
        back.join()


def serve_ways_out():
    serve(1080, socks)
    serve(1081, lambda connection: socks(connection, b"s3cret"))
    for address in OTHER_RESOLVERS:
        start(names_by_datagram, address)
