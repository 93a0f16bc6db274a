"""Sends the calls of `request_cases.py` one after the other.

    python3 tests/api/raw.py check             to Slipway, compared with what was recorded
    python3 tests/api/raw.py check --accept    the same; records the answers that may differ (accepted.toml)
    python3 tests/api/raw.py record            to a real kube-apiserver, into golden/requests.txt
"""

import json
import re
import sys
import tempfile
import time
from pathlib import Path

import accepted
import servers
from request_cases import CALLS, text_of
from servers import Client, LabError, fail, say
from transcript import TIME, UUID, split

GOLDEN = Path(__file__).resolve().parent / "golden/requests.txt"
# How long a call is repeated that waits for a text.
PATIENCE = 20
# What no two runs share.
NORMAL = [(re.compile(pattern), text) for pattern, text in (
    (TIME, "TIME"), (UUID, "UID"), (r'"(resourceVersion|continue)":"[^"]+"', r'"\1":"…"'), (r"\beyJ[\w-]+\.[\w-]+\.[\w-]+", "TOKEN"),
    (r'(\\"(resourceVersion|uid)\\":)\\"\w+\\"', r'\1…'),
    (r'("credential-id":\["X509SHA256=)\w+', r"\1…"), (r'"gen-\w{5}"', '"gen-SUFFIX"'), (r'"(current|latest|too old) resource version: \d+.*?"', r'"\1"'))]


def pick(value, path):
    """The value at a path with dots; `*` is every item of a list, a number one of them."""
    for i, part in enumerate(path):
        if part == "*":
            return [pick(item, path[i + 1:]) for item in value or []]
        if isinstance(value, list):
            value = value[int(part)] if part.isdigit() and int(part) < len(value) else None
        elif isinstance(value, dict):
            value = value.get(part)
        else:
            return None
    return value


def without_managed_fields(value):
    if isinstance(value, dict):
        return {key: without_managed_fields(item) for key, item in value.items() if key != "managedFields"}
    return [without_managed_fields(item) for item in value] if isinstance(value, list) else value


def settled(value):
    """A Status without what says nothing: the order of causes of a schema, which is random in a real API server, the same
    cause told twice, and parts that are empty."""
    if not isinstance(value, dict) or value.get("kind") != "Status" or not isinstance(value.get("details", {}), dict):
        return value
    details = {key: part for key, part in value.get("details", {}).items() if part not in ("", None, [])}
    if details.get("causes"):
        causes = {json.dumps(cause, sort_keys=True): cause for cause in details["causes"]}
        details["causes"] = [causes[key] for key in sorted(causes)]
        value["message"] = value["message"].split(": ")[0] + ": …"
    value["details"] = details
    if not details:
        del value["details"]
    return value


def compact(value):
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for pattern, stands in NORMAL:
        text = pattern.sub(stands, text)
    return text


def events(body):
    """A watch's answer: what happened to whom."""
    out = []
    for line in body.splitlines():
        event = json.loads(line)
        item = event["object"]
        meta = item.get("metadata", {})
        ends = (meta.get("annotations") or {}).get("k8s.io/initial-events-end")
        what = item.get("message") if event["type"] == "ERROR" else meta.get("name") or ("initial events end" if ends else "")
        out.append(f"{event['type']} {what}".strip())
    return out


def shown(item, status, headers, body):
    """What of an answer counts, as lines."""
    lines = [f"| {status}"]
    lines += [f"! {value}" for key, value in headers.items() if key.lower() == "warning"]
    text = body.decode(errors="replace")
    try:
        value = settled(json.loads(text))
    except ValueError:
        value = None
    if item.show == "code" or item.method == "HEAD":
        return lines
    if item.show == ["watch"] and status == 200:
        return [*lines, *(f"| {line}" for line in events(text))]
    if value is None:
        return [*lines, *(f"| {line}" for line in text.splitlines()[:20])]
    if isinstance(item.show, list) and item.show != ["watch"] and (status < 300 or "code" in item.show):
        return [*lines, *(f"| {path} {compact(pick(value, path.split('.')))}" for path in item.show)]
    return [*lines, f"| {compact(value if item.show == 'fields' else without_managed_fields(value))}"]


class Run:
    def __init__(self, server):
        self.server, self.saved = server, {"REV": "1"}
        self.clients = {"admin": server.client(), "nobody": Client(server.kubeconfig, {})}

    def fill(self, text):
        for name, value in self.saved.items():
            text = text.replace(f"${name}", value)
        return text

    def client(self, who):
        if who not in self.clients:
            self.clients[who] = Client(self.server.kubeconfig, {"token": self.saved.get(who, "none")})
        return self.clients[who]

    def ask(self, item, body, headers):
        return self.client(item.who).request(item.method, self.fill(item.path), body, headers)

    def one(self, item):
        body = item.body
        if body is not None and not isinstance(body, bytes):
            body = self.fill(json.dumps(body)).encode()
        headers = {"Accept": "application/json"} | ({"Content-Type": "application/json"} if body is not None else {}) | item.headers
        ends = time.monotonic() + PATIENCE
        while True:
            try:
                status, got, answer = self.ask(item, body, headers)
            except OSError as error:
                return f"$ {text_of(item)}\n? {type(error).__name__}\n"
            if not item.until or item.until in f"{status} " + answer.decode(errors="replace") or time.monotonic() > ends:
                break
            time.sleep(0.1)
        try:
            value = json.loads(answer)
        except ValueError:
            value = {}
        for name, path in item.save.items():
            self.saved[name] = pick(value, path.split(".")) or "none"
        try:
            lines = shown(item, status, got, answer)
        except (KeyError, ValueError, TypeError) as error:
            lines = [f"? not what a Kubernetes API answers: {error!r}"]
        return "\n".join([f"$ {text_of(item)}", *lines]) + "\n"

    def all(self, calls):
        return [self.one(item) for item in calls]


def record():
    with tempfile.TemporaryDirectory() as folder, servers.Peer(Path(folder)) as peer:
        servers.install_kinds(peer)
        GOLDEN.write_text("\n".join(Run(peer).all(CALLS)))
    say(f"{len(CALLS)} requests recorded")


# What is said of a token that was lengthened depends on its length, and so on how many digits the revision in it has.
LENGTHENED = re.compile(r"(?<=continue key is not valid: )"
                        r"(illegal base64 data at input byte \d+|Invalid input length: \d+|invalid character .{1,12} after top-level value)")


def steady(text):
    """The same with the managers of fields in an order that no clock decides: upstream sorts them by the second."""
    def ordered(value):
        if isinstance(value, dict):
            value = {key: ordered(item) for key, item in value.items()}
            if isinstance(value.get("managedFields"), list):
                value["managedFields"].sort(key=lambda one: json.dumps(one, sort_keys=True))
            return value
        return [ordered(item) for item in value] if isinstance(value, list) else value

    def line(text):
        if not text.startswith("| {") or "managedFields" not in text:
            return text
        try:
            return "| " + json.dumps(ordered(json.loads(text[2:])), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        except ValueError:
            return text
    return "\n".join(map(line, LENGTHENED.sub("it was lengthened", text).split("\n")))


def flat(value, path=""):
    """Each leaf of a JSON value with its path."""
    if isinstance(value, dict) and value:
        return {key: leaf for name, item in value.items() for key, leaf in flat(item, f"{path}.{name}").items()}
    if isinstance(value, list) and value:
        return {key: leaf for i, item in enumerate(value) for key, leaf in flat(item, f"{path}[{i}]").items()}
    return {path: json.dumps(value, ensure_ascii=False)}


def compare(want, have):
    """The lines of a difference; within JSON, only the leaves that differ."""
    out = []
    first, second = want.splitlines()[1:], have.splitlines()[1:]
    for i in range(max(len(first), len(second))):
        a, b = (lines[i] if i < len(lines) else "" for lines in (first, second))
        if a == b:
            continue
        try:
            left, right = flat(json.loads(a[2:])), flat(json.loads(b[2:]))
        except ValueError:
            out += [f"-{a}", f"+{b}"]
            continue
        for key in [*left, *(key for key in right if key not in left)]:
            if left.get(key) != right.get(key):
                out += [f"{sign}{key} {side[key]}" for sign, side in (("-", left), ("+", right)) if key in side]
    return out


def check(accept=False):
    allowed = accepted.Accepted("request", accept)
    with tempfile.TemporaryDirectory() as folder, servers.Slipway(Path(folder)) as slipway:
        began = time.monotonic()
        seen = Run(slipway).all(CALLS)
        say(f"{len(CALLS)} requests in {time.monotonic() - began:.0f} s")
    judge(allowed, GOLDEN, seen)


def judge(allowed, golden, seen):
    """Holds our answers against recorded ones; those that may differ against what is recorded beside."""
    pairs = zip(map(steady, split(golden.read_text())), map(steady, seen), strict=True)
    wrong = allowed.check(golden.with_name(f"slipway-{golden.name}"), pairs)
    for want, have in wrong:
        print("\n".join([have.splitlines()[0], *(f"    {line}" for line in compare(want, have))]))
    failed = len(wrong) + allowed.unused()
    if failed:
        raise LabError(f"{failed} answers differ from a real kube-apiserver's")


if __name__ == "__main__":
    try:
        if sys.argv[1:] == ["record"]:
            record()
        elif sys.argv[1:] in (["check"], ["check", "--accept"]):
            check("--accept" in sys.argv)
        else:
            print(__doc__.strip(), file=sys.stderr)
            sys.exit(2)
    except LabError as error:
        fail(error)
