"""Servers for secrets, run by `internet.py` among its own: `https` at port 9443, which echo what they are sent and know
the keys that requests are signed with. Their certificate has an authority of its own."""

import gzip, hmac, urllib.parse

for label in ["api", "other"]:
    NAMES[label + ".vault.example.net"] = [("A", "93.184.216.34")]
# What was given before, by the last part of the path.
remembered = {}
KEY_ID, KEY = "AKIAREALREALREALREAL", "real-signing-key/with+signs=0123456789ab"


def hashed(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def strict(text):
    return urllib.parse.quote(text, safe="-_.~")


def is_signed(method, target, fields, body):
    """Whether a request has the signature that the key makes, in its header or in its query."""
    path, _, query = target.partition("?")
    parameters = urllib.parse.parse_qsl(query, keep_blank_values=True)
    of = dict(parameters)
    if "X-Amz-Signature" in of:
        credential, names, signature = of["X-Amz-Credential"], of["X-Amz-SignedHeaders"], of["X-Amz-Signature"]
        date, payload = of["X-Amz-Date"], "UNSIGNED-PAYLOAD"
    else:
        parts = dict(part.strip().split("=", 1) for part in fields["authorization"].split(" ", 1)[1].split(","))
        credential, names, signature = parts["Credential"], parts["SignedHeaders"], parts["Signature"]
        date = fields["x-amz-date"]
        payload = fields.get("x-amz-content-sha256", hashlib.sha256(body).hexdigest())
    key_id, scope = credential.split("/", 1)
    parameters = sorted((strict(name), strict(value)) for name, value in parameters if name != "X-Amz-Signature")
    canonical = "\n".join([
        method, path, "&".join("%s=%s" % pair for pair in parameters),
        "".join("%s:%s\n" % (name, fields[name].strip()) for name in names.split(";")), names, payload])
    text = "AWS4-HMAC-SHA256\n%s\n%s\n%s" % (date, scope, hashlib.sha256(canonical.encode()).hexdigest())
    key = ("AWS4" + KEY).encode()
    for part in scope.split("/"):
        key = hashed(key, part)
    return key_id == KEY_ID and hmac.new(key, text.encode(), hashlib.sha256).hexdigest() == signature


def vault(connection):
    waiting = b""
    while True:
        while b"\r\n\r\n" not in waiting:
            read = connection.recv(1 << 16)
            if not read:
                return
            waiting += read
        head, waiting = waiting.split(b"\r\n\r\n", 1)
        text = head.decode("latin-1")
        lines = text.split("\r\n")
        fields = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines[1:])}
        length = int(fields.get("content-length", 0))
        while len(waiting) < length:
            read = connection.recv(1 << 16)
            if not read:
                return
            waiting += read
        sent, waiting = waiting[:length], waiting[length:]
        method, target, _ = lines[0].split(" ")
        met("vault", connection, head=text, body=sent.decode("latin-1"))
        body, more = json.dumps({"head": text}).encode(), ""
        given = fields.get("authorization", "")
        if target.startswith("/socket"):
            connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
            message = given.encode("latin-1")
            for part in [bytes([0x81, len(message)]) + message[:20], message[20:], b"\x81\x04over"]:
                connection.sendall(part)
            return
        if target.startswith("/slowly"):
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for byte in given.encode("latin-1"):
                connection.sendall(b"1\r\n%c\r\n" % byte)
            connection.sendall(b"0\r\nX-Trailer: %s\r\n\r\n" % given.encode("latin-1"))
            continue
        if target.startswith("/header"):
            more = "X-Echo: %s\r\nX-Url: /?k=%s\r\n" % (given, urllib.parse.quote(given, safe=""))
        if target.startswith("/packed"):
            body, more = gzip.compress(body), "Content-Encoding: gzip\r\n"
        if target.startswith("/recoded"):
            packed = gzip.compress(given.encode("latin-1"))
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(packed), packed))
            continue
        if target.startswith("/remember/"):
            remembered[target.split("/")[2]] = given
        if target.startswith("/remembered/"):
            body = remembered[target.split("/")[2]].encode("latin-1")
        if target.startswith("/parts"):
            body, more = given.encode("latin-1"), "Accept-Ranges: bytes\r\n"
            asked = fields.get("range") or fields.get("request-range") or ("bytes=9-12" if "anyway" in target else None)
            if asked:
                first, last = asked[6:].split("-")
                more += "Content-Range: bytes %s-%s/%d\r\n" % (first, last, len(body))
                body = body[int(first):int(last) + 1]
        if target.startswith("/redirect"):
            more = "Location: https://other.vault.example.net:9443/\r\n"
        if target.startswith("/signed"):
            try:
                body = b"signed" if is_signed(method, target, fields, sent) else b"not signed by the key"
            except (KeyError, ValueError, IndexError) as error:
                body = b"unreadable: " + repr(error).encode()
        status = "302 Found" if "Location" in more else "206 Partial Content" if "Content-Range" in more else "200 OK"
        connection.sendall(("HTTP/1.1 %s\r\n%sContent-Length: %d\r\n\r\n" % (status, more, len(body))).encode("latin-1"))
        if method != "HEAD":
            connection.sendall(body)


def secure_vault(connection):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory + "/vault.pem", directory + "/vault.key")
    with context.wrap_socket(connection, server_side=True) as tunnel:
        vault(tunnel)


def serve_vault():
    serve(9443, secure_vault)
    serve(9080, vault)
