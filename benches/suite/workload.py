"""The API servers of many clusters in one process, which is what stands in for them: one real kube-apiserver takes 250 MB.

Each cluster has an address of its own, and there the certificate of its own authority. What is stored is what was written, by its
path: nobody validates or defaults it, and nobody asks who wrote it. Lists, watches with their history, merge patches and discovery
are as client-go wants them. Objects that come as protobuf are kept as they are, and given back to who asks for such.
"""

import base64
import json
import queue
import re
import socket
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from wait import check_output

PORT = 6443
# What discovery names: resources by group and version, with their kinds. Those after the bar have no namespace.
RESOURCES = {
    "api/v1": "pods:Pod secrets:Secret configmaps:ConfigMap services:Service | nodes:Node namespaces:Namespace",
    "apis/apps/v1": "daemonsets:DaemonSet deployments:Deployment |",
    "apis/rbac.authorization.k8s.io/v1": "roles:Role rolebindings:RoleBinding | clusterroles:ClusterRole clusterrolebindings:ClusterRoleBinding",
    "apis/storage.k8s.io/v1": "| volumeattachments:VolumeAttachment",
}
KINDS = {(path, word.partition(":")[0]): word.partition(":")[2] for path, words in RESOURCES.items() for word in words.split() if word != "|"}
PATH = re.compile(r"/(api/v1|apis/[^/]+/[^/]+)(?:/namespaces/([^/]+))?/([a-z]+)(?:/([^/]+))?(?:/([a-z]+))?$")
# One of a selector's terms: a label that is there, that has this value, or one of these.
TERM = re.compile(r"([\w./-]+)(?:(==?)([\w.-]*)|(\s+in\s+)\(([^)]*)\))?")
PROTOBUF, MAGIC = "application/vnd.kubernetes.protobuf", b"k8s\0"
# Events of the past that a watch may begin after.
HISTORY = 10_000
# How often a watch looks whether its cluster is still there, in seconds.
LOOK = 2.0


def fields(message):
    """Numbers and contents of the length-delimited fields of a protobuf message."""
    at = 0

    def number():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
    while at < len(message):
        key = number()
        if key & 7 == 2:
            length = number()
            yield key >> 3, message[at:at + length]
            at += length
        elif key & 7 == 0:
            number()
        else:
            at += {1: 8, 5: 4}[key & 7]


def first(message, wanted):
    return next((content for number, content in fields(message) if number == wanted), b"")


def name_in(body):
    """The name of an object as Kubernetes writes it in protobuf: `Unknown.raw`, `metadata` and `name`."""
    return first(first(first(body[len(MAGIC):], 2), 1), 1).decode()


def merged(old, patch):
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def selected(item, query):
    """Whether an object is one of those that a query's selectors ask for."""
    labels = item["metadata"].get("labels") or {}
    for key, equal, value, _, values in TERM.findall(query.get("labelSelector", "")):
        wanted = {value} if equal else {one.strip() for one in values.split(",")} if values else None
        if key not in labels or (wanted is not None and labels[key] not in wanted):
            return False
    values = {"metadata.name": item["metadata"]["name"], "metadata.namespace": item["metadata"].get("namespace"),
              "spec.nodeName": (item.get("spec") or {}).get("nodeName")}
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        key, _, value = term.partition("=")
        if values.get(key) != value.lstrip("="):
            return False
    return True


class Workload:
    """What one cluster has. It answers while a machine of its control plane is on."""

    def __init__(self, name):
        self.name, self.lock = name, threading.RLock()
        # Objects, and the bytes of those that came as protobuf, by (group and version, plural, namespace, name).
        self.objects, self.history, self.watchers, self.revision = {}, [], set(), 1
        self.planes, self.context = set(), None

    def answers(self):
        return self.context is not None and bool(self.planes)

    def put(self, key, item, event=None):
        with self.lock:
            known = key in self.objects
            self.revision += 1
            if not isinstance(item, bytes):
                about = item["metadata"]
                about["resourceVersion"] = str(self.revision)
                about.setdefault("uid", f"00000000-0000-4000-8000-{self.revision:012x}")
                about.setdefault("creationTimestamp", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
                item |= {"apiVersion": key[0].partition("/")[2], "kind": KINDS.get(key[:2], "Unknown")}
            self.objects[key] = item
            self.tell(event or ("MODIFIED" if known else "ADDED"), key, item)
            return item

    def remove(self, key):
        with self.lock:
            item = self.objects.pop(key, None)
            if item is not None:
                self.revision += 1
                if not isinstance(item, bytes):
                    item = item | {"metadata": item["metadata"] | {"resourceVersion": str(self.revision)}}
                self.tell("DELETED", key, item)
            return item

    def tell(self, event, key, item):
        if isinstance(item, bytes):
            return
        self.history.append((self.revision, event, key, item))
        del self.history[:-HISTORY]
        for watcher in self.watchers:
            watcher.put((event, key, item))

    def listed(self, path, plural, namespace, query):
        """Objects of a kind that JSON tells of."""
        return [item for key, item in self.objects.items() if key[:2] == (path, plural) and namespace in (None, key[2])
                and not isinstance(item, bytes) and selected(item, query)]


class Handler(BaseHTTPRequestHandler):
    """One connection to one cluster."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, servers, workload, connection, peer):
        self.servers, self.workload = servers, workload
        super().__init__(connection, peer, None)

    def log_message(self, *_):
        pass

    def reply(self, code, body, kind="application/json"):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response_only(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def fail(self, code, reason):
        self.reply(code, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason, "message": reason, "code": code})

    def serve(self):
        workload, servers = self.workload, self.servers
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not workload.answers():
            self.close_connection = True
            return
        servers.count(self.command, self.path)
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        found = PATH.match(url.path)
        if not found:
            self.discover(url.path.strip("/"))
            return
        path, namespace, plural, name, subresource = found.groups()
        if (path, plural) not in KINDS:
            self.fail(404, "NotFound")
            return
        key = (path, plural, namespace, name)
        if self.command == "GET" and name:
            item = workload.objects.get(key)
            if isinstance(item, bytes):
                self.reply(200, item, PROTOBUF)
            elif item is None:
                self.fail(404, "NotFound")
            else:
                self.reply(200, item)
        elif self.command == "GET" and query.get("watch") in ("true", "1"):
            self.watch(key, query)
        elif self.command == "GET":
            with workload.lock:
                items, revision = workload.listed(path, plural, namespace, query), workload.revision
                self.reply(200, {"kind": f"{KINDS[path, plural]}List", "apiVersion": path.partition("/")[2],
                                 "metadata": {"resourceVersion": str(revision)}, "items": items})
        else:
            self.change(key, subresource, body)

    def change(self, key, subresource, body):
        workload = self.workload
        path, plural, namespace, name = key
        with workload.lock:
            if self.command == "POST" and subresource == "eviction":
                workload.remove(key)
                self.reply(201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})
            elif self.command == "POST" or self.command == "PUT":
                raw = body.startswith(MAGIC)
                item = body if raw else json.loads(body)
                key = (path, plural, namespace, name or (name_in(body) if raw else item["metadata"]["name"]))
                if self.command == "POST" and key in workload.objects:
                    self.fail(409, "AlreadyExists")
                    return
                item = workload.put(key, item)
                self.reply(201 if self.command == "POST" else 200, item, PROTOBUF if raw else "application/json")
            elif key not in workload.objects:
                self.fail(404, "NotFound")
            elif self.command == "DELETE":
                workload.remove(key)
                self.reply(200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})
            else:
                old, patch = workload.objects[key], json.loads(body)
                wanted = patch["metadata"].get("resourceVersion") if isinstance(patch, dict) and "metadata" in patch else None
                if isinstance(old, bytes) or not isinstance(patch, dict):
                    self.fail(415, "UnsupportedMediaType")
                elif wanted and wanted != old["metadata"]["resourceVersion"]:
                    self.fail(409, "Conflict")
                else:
                    self.reply(200, workload.put(key, merged(old, patch)))

    def watch(self, key, query):
        workload, events = self.workload, queue.SimpleQueue()
        path, plural, namespace, _ = key
        since = int(query.get("resourceVersion") or 0)
        with workload.lock:
            if query.get("sendInitialEvents") == "true" or not since:
                for item in workload.listed(path, plural, namespace, query):
                    events.put(("ADDED", key, item))
                if query.get("sendInitialEvents") == "true":
                    mark = {"kind": KINDS[path, plural], "apiVersion": path.partition("/")[2], "metadata": {
                        "resourceVersion": str(workload.revision), "annotations": {"k8s.io/initial-events-end": "true"}}}
                    events.put(("BOOKMARK", None, mark))
            else:
                for revision, event, about, item in workload.history:
                    if revision > since:
                        events.put((event, about, item))
            workload.watchers.add(events)
        self.send_response_only(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        end = time.monotonic() + float(query.get("timeoutSeconds") or 300)
        try:
            while workload.answers() and time.monotonic() < end:
                try:
                    event, about, item = events.get(timeout=LOOK)
                except queue.Empty:
                    continue
                if about and (about[:2] != (path, plural) or namespace not in (None, about[2]) or not selected(item, query)):
                    continue
                line = json.dumps({"type": event, "object": item}).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.write(b"0\r\n\r\n")
        finally:
            with workload.lock:
                workload.watchers.discard(events)
            self.close_connection = True

    def discover(self, path):
        if path == "version":
            self.reply(200, {"major": "1", "minor": "34", "gitVersion": "v1.34.3", "gitCommit": "", "gitTreeState": "", "buildDate": "",
                             "goVersion": "", "compiler": "", "platform": ""})
        elif path in ("", "healthz", "readyz", "livez"):
            self.reply(200, b"ok", "text/plain")
        elif path == "api":
            self.reply(200, {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
        elif path == "apis":
            versions = [{"groupVersion": one.removeprefix("apis/"), "version": "v1"} for one in RESOURCES if one.startswith("apis/")]
            groups = [{"name": one["groupVersion"].partition("/")[0], "versions": [one], "preferredVersion": one} for one in versions]
            self.reply(200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        elif path in RESOURCES:
            spaced, _, global_ = RESOURCES[path].partition("|")
            verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
            found = [{"name": word.partition(":")[0], "singularName": "", "namespaced": words is spaced, "kind": word.partition(":")[2], "verbs": verbs}
                     for words in (spaced, global_) for word in words.split()]
            self.reply(200, {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": path.partition("/")[2], "resources": found})
        else:
            self.fail(404, "NotFound")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = serve


class Servers:
    """All clusters, at one port of many addresses."""

    def __init__(self, folder):
        self.folder, self.workloads, self.requests, self.lock = Path(folder), {}, {}, threading.Lock()
        self.socket = socket.create_server(("0.0.0.0", PORT), backlog=1024, family=socket.AF_INET)
        key = ["openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", self.folder / "server.key"]
        check_output(key, deadline=60)
        threading.Thread(target=self.accept, daemon=True).start()

    def place(self, name, address):
        """A cluster, of which nothing answers yet."""
        self.workloads[address] = Workload(name)
        return self.workloads[address]

    def certify(self, workload, address, secret):
        """Gives a cluster's API server a certificate of the authority in its Secret."""
        base = self.folder / workload.name
        for end, name in (("ca.crt", "tls.crt"), ("ca.key", "tls.key")):
            Path(f"{base}-{end}").write_bytes(base64.b64decode(secret["data"][name]))
        check_output(["openssl", "req", "-x509", "-CA", f"{base}-ca.crt", "-CAkey", f"{base}-ca.key", "-key", self.folder / "server.key", "-days", "30",
                      "-out", f"{base}.crt", "-subj", "/CN=kube-apiserver", "-addext", "basicConstraints=critical,CA:FALSE",
                      "-addext", f"subjectAltName=IP:{address}", "-addext", "extendedKeyUsage=serverAuth"], deadline=60)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{base}.crt", self.folder / "server.key")
        context.set_alpn_protocols(["http/1.1"])
        workload.context = context

    def accept(self):
        while True:
            try:
                connection, peer = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self.hold, args=(connection, peer), daemon=True).start()

    def hold(self, connection, peer):
        """Serves a connection to its end."""
        workload = self.workloads.get(connection.getsockname()[0])
        try:
            if workload is None or not workload.answers():
                return
            connection.settimeout(600)
            connection = workload.context.wrap_socket(connection, server_side=True)
            Handler(self, workload, connection, peer)
        except (OSError, ValueError):
            # Who asked is gone.
            pass
        finally:
            connection.close()

    def count(self, method, path):
        """How often each kind of request came, for a note in the log."""
        key = f"{method} " + re.sub(r"/(nodes|pods|secrets|configmaps|roles|rolebindings)/[^/?]+", r"/\1/*", path.partition("?")[0]) \
            + (" watch" if "watch=" in path else "")
        with self.lock:
            self.requests[key] = self.requests.get(key, 0) + 1

    def stop(self):
        # Whoever waits for a connection wakes.
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
