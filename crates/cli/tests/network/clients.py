"""Servers for the programs that people use, run by `internet.py` among its own: pages, an index of Python packages, a
registry of npm, git over HTTPS and over SSH. All want the value of a secret but for `/open`."""

import base64, http.server, io, time, zipfile

for label in ["web", "other"]:
    NAMES[label + ".clients.example.net"] = [("A", "93.184.216.34")]
VALUE = "sk-REAL0123456789/REAL+REAL=\"REAL\"&0123456789REAL"
CREDENTIALS = base64.b64encode(("me:" + VALUE).encode()).decode()
# Of somebody whose password needs no escape in a URL.
OTHERS = base64.b64encode(b"ann:hunter2hunter2").decode()
making = threading.Lock()
PUBLISHED = {}


def wheel():
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("hello/__init__.py", "WORD = 'hello from a package'\n")
        archive.writestr("hello-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: hello\nVersion: 1.0\n")
        archive.writestr("hello-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("hello-1.0.dist-info/RECORD", "")
    return packed.getvalue()


def published(name, document):
    """What a registry tells of a package that was published to it."""
    (attachment,) = document["_attachments"].values()
    PUBLISHED[name] = base64.b64decode(attachment["data"])
    (version,) = document["versions"].values()
    version["dist"]["tarball"] = "https://web.clients.example.net:9643/npm-files/" + name
    del document["_attachments"]
    PUBLISHED[name + " document"] = json.dumps(document).encode()


class Client(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, body, kind="text/plain", status=200, **fields):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in fields.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def sent(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def is_welcome(self):
        given = self.headers.get("Authorization", "")
        return given in ("Bearer " + VALUE, "Basic " + CREDENTIALS, "Basic " + OTHERS) or self.headers.get("X-Key") == VALUE

    def handle_request(self):
        write(at=machine, kind="client", method=self.command, path=self.path, agent=self.headers.get("User-Agent"),
              authorization=self.headers.get("Authorization"))
        body = self.sent()
        path, _, query = self.path.partition("?")
        if path == "/open":
            return self.answer(b"open to everybody\n")
        if path == "/echo":
            given = self.headers.get("Authorization", "nothing")
            decoded = base64.b64decode(given.partition(" ")[2] + "==").decode("latin-1")
            return self.answer(("%s\n%s\n" % (given, decoded)).encode("latin-1"))
        if path.startswith("/away/"):
            away = "https://other.clients.example.net:9643/echo?" + path.removeprefix("/away/")
            return self.answer(b"", status=302, Location=away)
        if path.startswith("/public/simple/"):
            return self.answer(b'<a href="/public/files/hello-1.0-py3-none-any.whl">hello-1.0-py3-none-any.whl</a>', "text/html")
        if path.startswith("/public/files/"):
            return self.answer(wheel(), "application/octet-stream")
        if not self.is_welcome():
            return self.answer(b"who are you?\n", status=401, WWW_Authenticate='Basic realm="clients"')
        if path == "/":
            return self.answer(b"welcome by " + self.command.encode() + b" of %d bytes\n" % len(body))
        if path == "/simple/hello/":
            return self.answer(b'<a href="/files/hello-1.0-py3-none-any.whl">hello-1.0-py3-none-any.whl</a>', "text/html")
        if path.startswith("/files/"):
            return self.answer(wheel(), "application/octet-stream")
        if path.startswith("/npm/"):
            name = path.removeprefix("/npm/")
            if self.command == "PUT":
                published(name, json.loads(body))
                return self.answer(b"{}", "application/json", 201)
            known = PUBLISHED.get(name + " document")
            return self.answer(known or b"{}", "application/json", 200 if known else 404)
        if path.startswith("/npm-files/"):
            return self.answer(PUBLISHED[path.removeprefix("/npm-files/")], "application/octet-stream")
        if path.startswith("/git/"):
            return self.git(path.removeprefix("/git"), query, body)
        return self.answer(b"nothing here\n", status=404)

    do_GET = do_HEAD = do_POST = do_PUT = handle_request

    def git(self, path, query, body):
        # A repository is there once somebody who may asks for it.
        repository = "%s/git/%s" % (directory, path.split("/")[1])
        with making:
            if repository.endswith(".git") and not os.path.exists(repository):
                for words in [["init", "--quiet", "--bare", "--initial-branch=main", repository],
                              ["-C", repository, "config", "http.receivepack", "true"]]:
                    subprocess.run(["git", *words], check=True, env={"PATH": "/usr/local/bin:/usr/bin:/bin"})
        environment = {
            "PATH": "/usr/local/bin:/usr/bin:/bin", "GIT_PROJECT_ROOT": directory + "/git", "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*", "REMOTE_USER": "me", "REQUEST_METHOD": self.command, "PATH_INFO": path,
            "QUERY_STRING": query, "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""), "CONTENT_LENGTH": str(len(body))}
        done = subprocess.run(["git", "http-backend"], input=body, env=environment, stdout=subprocess.PIPE)
        head, _, answer = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        status = int(fields.pop("Status", "200").split(" ")[0])
        kind = fields.pop("Content-Type", "text/plain")
        self.answer(answer, kind, status, **{name.replace("-", "_"): value for name, value in fields.items()})


class Serving(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        pass


class ServingTls(Serving):
    def finish_request(self, request, address):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(directory + "/vault.pem", directory + "/vault.key")
        with context.wrap_socket(request, server_side=True) as tunnel:
            super().finish_request(tunnel, address)


def serve_ssh():
    """OpenSSH's own server, which wants a user that it knows and, as root, a directory of its own. For an ordinary user,
    whom nobody may know here, it sees another list of users."""
    def begin():
        libc.prctl(1, signal.SIGKILL)
        if os.geteuid() != 0:
            checked(libc.unshare(0x20000))
            checked(libc.mount((directory + "/passwd").encode(), b"/etc/passwd", None, MS_BIND, None))

    if not os.path.exists("/usr/sbin/sshd") or not os.path.exists(directory + "/ssh-host-key"):
        return
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", exist_ok=True)
    with open(directory + "/passwd", "w") as users:
        users.write("tester:x:%d:%d::%s:/bin/sh\n" % (os.getuid(), os.getgid(), directory))
    with open(directory + "/sshd.conf", "w") as config:
        config.write("\n".join([
            "Port 2022", "ListenAddress 93.184.216.34", "HostKey %s/ssh-host-key" % directory, "PidFile none",
            "AuthorizedKeysFile %s/ssh-user-key.pub" % directory, "StrictModes no", "UsePAM no", "PermitRootLogin yes",
            "PasswordAuthentication no", "KbdInteractiveAuthentication no", ""]))
    with open(directory + "/sshd.log", "w") as log:
        server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", directory + "/sshd.conf"], stdin=subprocess.DEVNULL,
                                  stdout=log, stderr=log, preexec_fn=begin)
    while server.poll() is None:
        try:
            return socket.create_connection(("93.184.216.34", 2022)).close()
        except OSError:
            time.sleep(0.01)


def serve_clients():
    for port, kind in [(9680, Serving), (9643, ServingTls)]:
        start(kind(("93.184.216.34", port), Client).serve_forever)
    serve_ssh()
