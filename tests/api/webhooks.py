"""Sends the calls of `webhook_cases.py` one after the other, with the webhooks of `hooks.py` beside the server.

    python3 tests/api/webhooks.py check             to Slipway, compared with what was recorded
    python3 tests/api/webhooks.py check --accept    the same; records the answers that may differ (accepted.toml)
    python3 tests/api/webhooks.py record            to a real kube-apiserver, into golden/webhooks.txt

A line with `>` is a question to a webhook.
"""

import re
import sys
import tempfile
import time
from itertools import groupby
from pathlib import Path

import accepted
import hooks
import raw
import servers
from servers import LabError, fail, say
from webhook_cases import CALLS

GOLDEN = Path(__file__).resolve().parent / "golden/webhooks.txt"
# A path of an answer at which there is nothing.
NOTHING = re.compile(r"(?m)^\| \S+ null\n")
# What no two runs share: names that the server makes, what a certificate is known by, ports.
NORMAL = [(re.compile(pattern), text) for pattern, text in (
    (r"\bgen-\w{5}\b", "gen-SUFFIX"), (r"X509SHA256=\w+", "X509SHA256"), (r"127\.0\.0\.1:\d+", "PORT"))]


class Run(raw.Run):
    """Calls with the webhooks' addresses and authorities in them, and with what webhooks were asked."""

    def __init__(self, server, webhooks):
        super().__init__(server)
        self.webhooks = webhooks
        self.saved |= webhooks.settings

    def ask(self, item, body, headers):
        self.webhooks.asked.clear()
        return super().ask(item, body, headers)

    def one(self, item):
        text = NOTHING.sub("", super().one(item)) + "".join(f"{line}\n" for line in questions(item, list(self.webhooks.asked)))
        for name, value in self.webhooks.settings.items():
            text = text.replace(value, name)
        for pattern, stands in NORMAL:
            text = pattern.sub(stands, text)
        return text


def questions(item, asked):
    """Who was asked about a call, and what. Those that validate are asked at once: their order is chance."""
    if item.until:
        return []
    out = []
    for validates, some in groupby(asked, lambda one: not one[0].startswith("/m/")):
        some = list(some)
        out += sorted(some, key=lambda one: one[0]) if validates else some
    # A change that met another one, or an old copy in a cache, was made anew.
    said = [(path, request["operation"], request.get("object"), request.get("oldObject")) for path, _, request in out]
    if len(said) % 2 == 0 and said[:len(said) // 2] == said[len(said) // 2:]:
        out = out[:len(out) // 2]
    for path, query, request in out:
        # Whether it heard of it in its time is chance.
        if path.endswith("/slow"):
            continue
        place = "/".join(filter(None, (request["resource"]["resource"], request.get("name"), request.get("subResource"))))
        yield f"> {path}?{query} {request['operation']} {place}"
        if item.review:
            yield f"> {raw.compact(request)}"


def record():
    with tempfile.TemporaryDirectory() as folder, hooks.Hooks(Path(folder, "hooks")) as webhooks, servers.Peer(Path(folder)) as peer:
        GOLDEN.write_text("\n".join(Run(peer, webhooks).all(CALLS)))
    say(f"{len(CALLS)} requests recorded")


def check(accept=False):
    allowed = accepted.Accepted("webhook", accept)
    with tempfile.TemporaryDirectory() as folder, hooks.Hooks(Path(folder, "hooks")) as webhooks:
        # Loopback has to be named, address by address.
        settings = '[api.webhooks]\nallow = ["127.0.0.1"]\n'
        with servers.Slipway(Path(folder), settings) as slipway:
            began = time.monotonic()
            seen = Run(slipway, webhooks).all(CALLS)
            say(f"{len(CALLS)} requests in {time.monotonic() - began:.0f} s")
    raw.judge(allowed, GOLDEN, seen)


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
