# The pages that a test's browser visits.
import http.server

PAGE = b"""<!doctype html><title>shop</title><h1>Shop</h1>
<form><input name=who aria-label=who><button>Go</button></form>
<iframe src=/frame></iframe><a href=/file download>file</a>
<script>
console.log('from the page')
document.querySelector('form').addEventListener('submit', (event) => {
  event.preventDefault()
  document.querySelector('h1').textContent = 'Hello ' + event.target.who.value
})
</script>"""


class Site(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(302 if self.path == "/moved" else 200)
        if self.path == "/moved":
            self.send_header("Location", "/frame")
        if self.path == "/login":
            # One that ends with the browser, and one that does not.
            self.send_header("Set-Cookie", "login=sesame")
            self.send_header("Set-Cookie", "lasting=yes; Max-Age=9999")
        kind = {"/file": "application/octet-stream"}.get(self.path, "text/html")
        self.send_header("Content-Type", kind)
        if self.path == "/file":
            self.send_header("Content-Disposition", "attachment; filename=file.bin")
        self.end_headers()
        self.wfile.write({"/": PAGE, "/file": b"the file", "/frame": b"<p>inside</p>"}.get(self.path, b"<title>empty</title>"))

    def log_message(self, *words):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Site)
print("ready", flush=True)
server.serve_forever()
