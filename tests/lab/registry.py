"""A read-only registry of OCI archives: what containerd asks of `/v2/` over plain HTTP, and nothing else."""

import json
import re
import tarfile
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler

from oci import digest
from web import Server

ROUTE = re.compile(r"/v2/(?P<name>[a-z0-9/._-]+)/(?P<kind>manifests|blobs)/(?P<reference>[A-Za-z0-9:._-]+)")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        # containerd adds the name of the registry that this one stands for.
        path = self.path.split("?", 1)[0]
        if path in ("/v2", "/v2/"):
            return self.send(200, "application/json", b"{}", body)
        asked = ROUTE.fullmatch(path)
        content = self.server.content.get((asked["name"], asked["kind"], asked["reference"])) if asked else None
        if content is None:
            return self.send(404, "application/json", b'{"errors": [{"code": "NAME_UNKNOWN", "message": "not here"}]}', body)
        if body and asked["kind"] == "manifests":
            self.server.pulls[asked["name"]] += 1
        kind, archive, offset, size = content
        with archive.open("rb") as file:
            if size < 1 << 20:
                file.seek(offset)
                return self.send(200, kind, file.read(size), body)
            self.head(200, kind, size)
            if body:
                self.wfile.flush()
                self.connection.sendfile(file, offset, size)

    def head(self, status, kind, size, extra=()):
        self.send_response(status)
        for key, value in (("Content-Type", kind), ("Content-Length", str(size)), ("Docker-Distribution-API-Version", "registry/2.0"), *extra):
            self.send_header(key, value)
        self.end_headers()

    def send(self, status, kind, data, body):
        self.head(status, kind, len(data), [("Docker-Content-Digest", digest(data))] if "manifest" in kind else [])
        if body:
            self.wfile.write(data)

    def log_message(self, template, *arguments):
        self.server.log.write(f"{self.client_address[0]} {template % arguments}\n")
        self.server.log.flush()


class Registry:
    """Serves archives, by their images' names (`oci.archives`), on address:port until `stop`."""

    def __init__(self, archives, address, port, log):
        self.server = Server((address, port), Handler)
        self.server.log = open(log, "a")
        # Manifests that were got, by the image's name.
        self.pulls = self.server.pulls = Counter()
        self.server.content = {}
        for name, path in archives.items():
            self.add(name, path)
        self.url = f"http://{address}:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def add(self, name, path):
        """Where each blob of an archive begins in it, under the image's name without its registry's."""
        repository, _, tag = name.partition("/")[2].rpartition(":")
        with tarfile.open(path) as tar:
            index = json.load(tar.extractfile("index.json"))
            types = {found["digest"]: found["mediaType"] for found in index["manifests"]}
            for member in tar:
                if not member.name.startswith("blobs/sha256/"):
                    continue
                reference = f"sha256:{member.name.rpartition('/')[2]}"
                place = (types.get(reference, "application/octet-stream"), path, member.offset_data, member.size)
                self.server.content[repository, "manifests" if reference in types else "blobs", reference] = place
                if reference in types:
                    self.server.content[repository, "manifests", tag] = place

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(timeout=10)
