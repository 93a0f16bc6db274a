"""An HTTP server for image files: GET and HEAD, one byte range, and what a journey wants to go wrong."""

import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    """Files directly below the server's folder. Anything else is 404."""

    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        name = self.path.split("?", 1)[0].lstrip("/")
        path = self.server.folder / name
        if "/" in name or name.startswith(".") or not path.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        size = path.stat().st_size
        first, last = 0, size - 1
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked:
            first, last = int(asked[1]), min(last, int(asked[2] or last))
            if first > last:
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{size}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if not body:
            return
        with path.open("rb") as file:
            try:
                self.connection.sendfile(file, first, last - first + 1)
            except OSError:
                self.close_connection = True

    def log_message(self, template, *arguments):
        self.server.log.write(f"{self.client_address[0]} {template % arguments}\n")
        self.server.log.flush()


class Server(ThreadingHTTPServer):
    """One thread for each connection; what goes wrong in one is a line in the log."""

    daemon_threads = True

    def handle_error(self, request, client_address):
        self.log.write(f"{client_address[0]} {sys.exc_info()[1]!r}\n")
        self.log.flush()


class FileServer:
    """Serves `folder` on address:port until `stop`."""

    def __init__(self, folder, address, port, log):
        self.server = Server((address, port), Handler)
        self.server.folder = Path(folder)
        self.server.log = open(log, "a")
        self.url = f"http://{address}:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(timeout=10)
