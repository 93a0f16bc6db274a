"""A webhook for the cases of `webhook_cases.py`: the last part of a URL's path says what it answers.

It remembers what it was asked. Beside it listens one with a certificate for another name.
"""

import base64
import http.server
import json
import socket
import ssl
import threading
from pathlib import Path

from servers import check_output, free_port

REVIEW = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
# As much longer than the second that is waited for it as a busy machine may need.
SLOW = 5


def encoded(patch):
    return base64.b64encode(patch if isinstance(patch, bytes) else json.dumps(patch).encode()).decode()


def patched(patch, **more):
    return {"allowed": True, "patchType": "JSONPatch", "patch": encoded(patch)} | more


def add(path, value):
    return {"op": "add", "path": path, "value": value}


def denied(**status):
    return {"allowed": False, "status": status}


def whole(value, status=200, **headers):
    """An answer that is no review of its own: its status and its body as they are."""
    return status, headers, value if isinstance(value, bytes) else json.dumps(value).encode()


# The `response` of a review, without its uid.
RESPONSES = {
    "allow": {"allowed": True},
    "deny": {"allowed": False},
    "deny-message": denied(message="not here"),
    "deny-reason": denied(reason="Forbidden"),
    "deny-code": denied(code=403),
    "deny-whole": denied(code=403, reason="Forbidden", message="not here"),
    "deny-odd": denied(code=418, reason="Teapot", message="short and stout"),
    "deny-200": denied(code=200, message="all is well"),
    "deny-302": denied(code=302, message="elsewhere"),
    "deny-700": denied(code=700, message="far out"),
    "deny-negative": denied(code=-1, message="below"),
    "deny-409": denied(code=409, reason="Conflict", message="come again"),
    "deny-success": denied(status="Success", message="it went well"),
    "deny-details": denied(code=422, reason="Invalid", message="fields", details={
        "name": "x", "kind": "ConfigMap", "causes": [{"reason": "FieldValueInvalid", "message": "too blue", "field": "data.colour"}]}),
    "deny-retry": denied(code=429, reason="TooManyRequests", message="later", details={"retryAfterSeconds": 3}),
    "deny-lines": denied(message="one\ntwo\t\"three\""),
    "deny-warn": denied(message="not here") | {"warnings": ["think twice"]},
    "deny-patch": denied(message="not here") | {"patchType": "JSONPatch", "patch": encoded([add("/data/x", "y")])},
    "allow-status": {"allowed": True, "status": {"code": 403, "message": "ignored"}},
    "warn": {"allowed": True, "warnings": ["once", "a \"word\" \\ more", "\u00fcber"]},
    "warn-odd": {"allowed": True, "warnings": ["", "two\nlines", "tab\there", "x" * 300]},
    "warn-many": {"allowed": True, "warnings": [f"{i} " + "y" * 250 for i in range(20)]},
    "warn-twice": {"allowed": True, "warnings": ["same", "same"]},
    "warn-null": {"allowed": True, "warnings": None},
    "annotate": {"allowed": True, "auditAnnotations": {"key": "value"}},
    "annotate-odd": {"allowed": True, "auditAnnotations": {"": "empty", "a/b/c": "slashes", "?": "odd"}},
    "unknown-field": {"allowed": True, "nonsense": {"a": 1}},
    "not-a-boolean": {"allowed": "yes"},
    "silent": {},
    "uid-other": {"allowed": True, "uid": "other"},
    "uid-none": {"allowed": True, "uid": None},
    "uid-number": {"allowed": True, "uid": 5},
    "status-text": {"allowed": False, "status": "no"},
    "patch-data": patched([add("/data", {"patched": "yes"})]),
    "patch-label": patched([add("/metadata/labels/patched", "yes")]),
    "patch-count": patched([add("/metadata/annotations", {"seen": "yes"})]),
    "patch-warn": patched([add("/data", {"patched": "yes"})], warnings=["changed"]),
    "patch-none": patched([]),
    "patch-test": patched([{"op": "test", "path": "/metadata/name", "value": "other"}]),
    "patch-missing": patched([{"op": "remove", "path": "/data/none"}]),
    "patch-replace": patched([{"op": "replace", "path": "/data/none", "value": "x"}]),
    "patch-parent": patched([add("/nothing/here", "x")]),
    "patch-op": patched([{"op": "nonsense", "path": "/data"}]),
    "patch-no-op": patched([{"path": "/data"}]),
    "patch-pointer": patched([add("data", {"a": "b"})]),
    "patch-object": patched({"data": {"a": "b"}}),
    "patch-text": patched(b"data"),
    "patch-json": patched(b"[{"),
    "patch-base64": {"allowed": True, "patchType": "JSONPatch", "patch": "***"},
    "patch-untyped": {"allowed": True, "patch": encoded([])},
    "patch-only-type": {"allowed": True, "patchType": "JSONPatch"},
    "patch-merge": {"allowed": True, "patchType": "MergePatch", "patch": encoded({"data": {"a": "b"}})},
    "patch-name": patched([{"op": "replace", "path": "/metadata/name", "value": "renamed"}]),
    "patch-namespace": patched([add("/metadata/namespace", "elsewhere")]),
    "patch-uid": patched([add("/metadata/uid", "mine")]),
    "patch-generation": patched([add("/metadata/generation", 7)]),
    "patch-revision": patched([add("/metadata/resourceVersion", "1")]),
    "patch-finalizers": patched([add("/metadata/finalizers", ["example.com/f"])]),
    "patch-managers": patched([add("/metadata/managedFields", [])]),
    "patch-label-odd": patched([add("/metadata/labels/patched", "not a label!")]),
    "patch-key-odd": patched([add("/data", {"not a key": "x"})]),
    "patch-kind": patched([{"op": "replace", "path": "/kind", "value": "Secret"}]),
    "patch-version": patched([{"op": "replace", "path": "/apiVersion", "value": "v2"}]),
    "patch-no-kind": patched([{"op": "remove", "path": "/kind"}]),
    "patch-wrong-type": patched([add("/data", 5)]),
    "patch-field": patched([add("/nonsense", 5)]),
    "patch-null": patched([{"op": "replace", "path": "", "value": None}]),
    "patch-list": patched([{"op": "replace", "path": "", "value": []}]),
    "patch-spec": patched([add("/spec/size", "5cm"), add("/spec/nonsense", 1)]),
    "patch-spec-odd": patched([add("/spec/size", "five")]),
    "patch-status": patched([add("/status", {"phase": "Patched"})]),
    "patch-scale": patched([{"op": "replace", "path": "/spec/replicas", "value": 7}]),
}
FAILURE = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "a status of its own"}
# Whole answers.
ANSWERS = {
    "500": whole(b"boom", 500),
    "500-empty": whole(b"", 500),
    "500-status": whole(FAILURE | {"code": 500, "reason": "InternalError"}, 500, **{"Content-Type": "application/json"}),
    "503": whole(b"not now", 503),
    "404": whole(b"404 page not found\n", 404),
    "400": whole(b"what?", 400),
    "401": whole(b"who?", 401),
    "403": whole(b"no", 403),
    "403-status": whole(FAILURE, 403, **{"Content-Type": "application/json"}),
    "405": whole(b"how?", 405),
    "409": whole(b"again", 409),
    "413": whole(b"much", 413),
    "415": whole(b"what?", 415),
    "418": whole(b"short and stout", 418),
    "429": whole(b"later", 429),
    "302": whole(b"", 302, Location="https://127.0.0.1:1/allow"),
    "307": whole(b"", 307, Location="/allow"),
    "204": whole(b"", 204),
    "empty": whole(b""),
    "garbage": whole(b"<html>hello</html>", **{"Content-Type": "text/html"}),
    "half": whole(b'{"apiVersion":"admission.k8s.io/v1","kind":"Admiss'),
    "trailing": whole(json.dumps(REVIEW | {"response": {"uid": "$UID", "allowed": True}}).encode() + b" more"),
    "no-object": whole({}),
    "null": whole(None),
    "list": whole([]),
    "number": whole(5),
    "no-response": whole(REVIEW),
    "null-response": whole(REVIEW | {"response": None}),
    "text-response": whole(REVIEW | {"response": "yes"}),
    "other-kind": whole({"apiVersion": "v1", "kind": "Status", "status": "Success"}),
    "other-group": whole({"apiVersion": "example.com/v1", "kind": "AdmissionReview", "response": {"uid": "$UID", "allowed": True}}),
    "other-version": whole({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "response": {"uid": "$UID", "allowed": True}}),
    "no-version": whole({"kind": "AdmissionReview", "response": {"uid": "$UID", "allowed": True}}),
    "no-kind": whole({"apiVersion": "admission.k8s.io/v1", "response": {"uid": "$UID", "allowed": True}}),
    "text-type": whole(REVIEW | {"response": {"uid": "$UID", "allowed": True}}, **{"Content-Type": "text/plain"}),
    "yaml": whole(b"apiVersion: admission.k8s.io/v1\nkind: AdmissionReview\nresponse: {uid: $UID, allowed: true}\n",
                  **{"Content-Type": "application/yaml"}),
}


def set_path(target, path, value):
    for part in path[:-1]:
        target = target.setdefault(part, {})
    target[path[-1]] = value


def moved(item, wanted):
    """What this webhook does when it is right: the size has another name in v2."""
    item = json.loads(json.dumps(item))
    item["apiVersion"] = wanted
    spec = item.get("spec") or {}
    before, after = ("size", "length") if wanted.endswith("/v2") else ("length", "size")
    if before in spec:
        spec[after] = spec.pop(before)
    return item


def changed(*path, to):
    def change(item):
        set_path(item, path, to)
        return item
    return change


def without(*path):
    def change(item):
        inner = item
        for part in path[:-1]:
            inner = inner.get(part, {})
        inner.pop(path[-1], None)
        return item
    return change


# What becomes of one converted object.
CONVERTED = {
    "name": changed("metadata", "name", to="renamed"),
    "namespace": changed("metadata", "namespace", to="elsewhere"),
    "uid": changed("metadata", "uid", to="mine"),
    "no-uid": without("metadata", "uid"),
    "no-metadata": without("metadata"),
    "labels": changed("metadata", "labels", to={"converted": "yes"}),
    "labels-odd": changed("metadata", "labels", to={"converted": "not a label!"}),
    "labels-number": changed("metadata", "labels", to={"converted": 5}),
    "annotations": changed("metadata", "annotations", to={"converted": "yes"}),
    "annotations-odd": changed("metadata", "annotations", to={"not a key": "yes"}),
    "finalizers": changed("metadata", "finalizers", to=["example.com/f"]),
    "generation": changed("metadata", "generation", to=77),
    "time": changed("metadata", "creationTimestamp", to="2000-01-01T00:00:00Z"),
    "owners": changed("metadata", "ownerReferences", to=[{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "y"}]),
    "metadata-text": changed("metadata", to="text"),
    "version": changed("apiVersion", to="example.com/v9"),
    "group": changed("apiVersion", to="example.org/v2"),
    "no-version": without("apiVersion"),
    "kind": changed("kind", to="Other"),
    "no-kind": without("kind"),
    "field": changed("spec", "nonsense", to=1),
    "type": changed("spec", "replicas", to="many"),
    "invalid": changed("spec", "replicas", to=-5),
    "no-spec": without("spec"),
    "null": lambda item: None,
    "number": lambda item: 5,
    "text": lambda item: "text",
    "empty": lambda item: {},
}
# What becomes of the response.
CONVERSIONS = {
    "failed": lambda response: response | {"result": {"status": "Failed", "message": "cannot"}},
    "failed-silent": lambda response: response | {"result": {"status": "Failed"}},
    "failed-reason": lambda response: response | {"result": {"status": "Failure", "reason": "Forbidden", "code": 403}},
    "no-result": lambda response: {key: value for key, value in response.items() if key != "result"},
    "few": lambda response: response | {"convertedObjects": []},
    "many": lambda response: response | {"convertedObjects": 2 * response["convertedObjects"]},
    "no-objects": lambda response: {key: value for key, value in response.items() if key != "convertedObjects"},
    "uid-other": lambda response: response | {"uid": "other"},
    "no-response": lambda response: None,
}
# What becomes of the whole answer.
CONVERSION_ANSWERS = {
    "500": whole(b"boom", 500),
    "404": whole(b"404 page not found\n", 404),
    "302": whole(b"", 302, Location="https://127.0.0.1:1/convert"),
    "garbage": whole(b"<html>hello</html>"),
    "no-object": whole({}),
    "other-kind": whole({"apiVersion": "v1", "kind": "Status", "status": "Success"}),
    "other-version": whole({"apiVersion": "apiextensions.k8s.io/v1beta1", "kind": "ConversionReview", "response": {"uid": "$UID"}}),
}


def admit(name, review):
    uid = review["request"]["uid"]
    if name in RESPONSES:
        response = {"uid": uid} | RESPONSES[name]
        return whole(REVIEW | {"response": response}, **{"Content-Type": "application/json"})
    status, headers, body = ANSWERS[name]
    return status, headers, body.replace(b"$UID", uid.encode())


def convert(review):
    """An object says itself what goes wrong with it: `spec.how` is a version, a colon, and a name of the tables above."""
    request = review["request"]
    wanted = request["desiredAPIVersion"]
    version = wanted.split("/")[1]
    hows = [item.get("spec", {}).get("how", "").partition(f"{version}:")[2] for item in request["objects"]]
    how = next(filter(None, hows), "")
    if how in CONVERSION_ANSWERS:
        status, headers, body = CONVERSION_ANSWERS[how]
        return status, headers, body.replace(b"$UID", request["uid"].encode())
    objects = [CONVERTED.get(one, lambda item: item)(moved(item, wanted)) for one, item in zip(hows, request["objects"])]
    response = {"uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": objects}
    response = CONVERSIONS.get(how, lambda response: response)(response)
    return whole({"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "response": response})


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer's head and body are one piece.
    wbufsize = -1

    def do_POST(self):
        path, _, query = self.path.partition("?")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not body:
            # Whoever asked is gone.
            return None
        review = json.loads(body)
        name = path.rsplit("/", 1)[-1]
        if name == "convert":
            return self.answer(*convert(review))
        self.server.asked.append((path, query, review["request"]))
        if name == "close":
            self.close_connection = True
            return None
        if name == "slow":
            # Whoever asked is gone sooner.
            self.server.ended.wait(SLOW)
            name = "allow"
        if name == "in-force":
            return self.answer(*whole(REVIEW | {"response": {"uid": review["request"]["uid"]} | denied(message=f"{path} is in force")}))
        return self.answer(*admit(name, review))

    def answer(self, status, headers, body):
        self.send_response_only(status)
        for key, value in headers.items():
            self.send_header(key, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, certificate):
        self.asked, self.ended = [], threading.Event()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(certificate)
        super().__init__(("127.0.0.1", free_port()), Handler)
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()

    def finish_request(self, request, client_address):
        """In the thread of its own, so that nobody waits for a handshake."""
        try:
            with self.context.wrap_socket(request, server_side=True) as stream:
                super().finish_request(stream, client_address)
        except OSError:
            # Whoever does not trust it goes away.
            pass

    def stop(self):
        self.ended.set()
        self.shutdown()
        self.thread.join()
        self.server_close()


class Hooks:
    """The webhook, and the one with another's name. `settings` are what stands for them in cases."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def __enter__(self):
        run = lambda *words: check_output(["openssl", *words], deadline=60, cwd=self.folder)
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"]
        for name in ("ca", "stranger"):
            run("req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.crt", "-subj", f"/CN={name}",
                "-addext", "keyUsage=critical,keyCertSign,digitalSignature")
        for name, names in (("good", "IP:127.0.0.1,DNS:hooks.system.svc"), ("other", "DNS:other.example.org")):
            run("req", "-x509", "-CA", "ca.crt", "-CAkey", "ca.key", *key, "-keyout", f"{name}.key", "-out", f"{name}.crt",
                "-subj", "/CN=hooks", "-addext", f"subjectAltName={names}", "-addext", "basicConstraints=critical,CA:FALSE")
            (self.folder / f"{name}.pem").write_text(Path(self.folder, f"{name}.crt").read_text() + Path(self.folder, f"{name}.key").read_text())
        self.server, self.other = Server(self.folder / "good.pem"), Server(self.folder / "other.pem")
        # Bound and not listened to.
        self.closed = socket.socket()
        self.closed.bind(("127.0.0.1", 0))
        bundle = lambda name: base64.b64encode((self.folder / f"{name}.crt").read_bytes()).decode()
        self.settings = {"CA": bundle("ca"), "STRANGER": bundle("stranger"), "HOOKS": f"127.0.0.1:{self.server.server_port}",
                         "OTHER": f"127.0.0.1:{self.other.server_port}", "CLOSED": f"127.0.0.1:{self.closed.getsockname()[1]}"}
        return self

    def __exit__(self, *_):
        self.closed.close()
        for server in (self.server, self.other):
            server.stop()

    @property
    def asked(self):
        return self.server.asked
