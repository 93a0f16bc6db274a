"""Shows files as the Nodes of a cluster, over HTTPS, to who has the token."""

import json
import ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TOP = Path("/var/lib/stand-in")
NODES = "/api/v1/nodes"


def answer(path):
    """Status and object for a path."""
    path = path.partition("?")[0]
    if path == "/version":
        return 200, {"major": "1", "minor": "35", "gitVersion": "v1.35.4"}
    nodes = {file.stem: json.loads(file.read_text()) for file in sorted((TOP / "nodes").glob("*.json"))}
    if path == NODES:
        return 200, {"apiVersion": "v1", "kind": "NodeList", "metadata": {"resourceVersion": "1"}, "items": list(nodes.values())}
    found = nodes.get(path.removeprefix(f"{NODES}/"))
    return (200, found) if found else (404, status(404, "NotFound"))


def status(code, reason):
    return {"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason, "message": reason, "code": code}


class Handler(BaseHTTPRequestHandler):
    """GET only."""

    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self):
        token = (TOP / "pki/token").read_text().strip()
        known = self.headers.get("Authorization") == f"Bearer {token}"
        code, said = answer(self.path) if known else (401, status(401, "Unauthorized"))
        body = json.dumps(said).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(TOP / "pki/api.crt", TOP / "pki/api.key")
server = ThreadingHTTPServer(("", 6443), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
server.serve_forever()
