"""Calls that webhooks have a say in, in one order. The answers are recorded in `golden/webhooks.txt`.

Most objects choose their webhook by a label: `v` the one that validates, `m` the one that mutates, and `i` one that is passed
over when it cannot be asked. What each of them answers says `hooks.py`.
"""

import json
from dataclasses import dataclass

import hooks
from manifests import WIDGET_CRD
from request_cases import APPLY, CRDS, JSON_PATCH, MERGE, STRATEGIC, Call, crd

GROUP = "/apis/admissionregistration.k8s.io/v1"
MUTATING, VALIDATING = f"{GROUP}/mutatingwebhookconfigurations", f"{GROUP}/validatingwebhookconfigurations"
PLACES = {"Mutating": MUTATING, "Validating": VALIDATING}
SPACES = "/api/v1/namespaces"
CM, WIDGETS = f"{SPACES}/hooks/configmaps", "/apis/example.com/v1/namespaces/hooks/widgets"
# How long the slow one has, in seconds.
PATIENCE = 1
SHOWN = ["metadata.name", "metadata.labels", "metadata.annotations", "metadata.finalizers", "data"]


@dataclass
class Asking(Call):
    """A request and the webhooks that were asked: who, and when `review` says so, what."""

    review: bool = False


def call(method, path, body=None, kind=None, **options):
    headers = options.pop("headers", {}) | ({"Content-Type": kind} if kind else {})
    return Asking(method, path, body, headers, **{"show": SHOWN} | options)


def labelled(name, data=None, **labels):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, **({"data": data} if data else {})}


def widget(name, spec=None, **labels):
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name, "labels": labels}, "spec": {"colour": "red"} | (spec or {})}


def rule(resources, operations=("*",), groups=("",), versions=("v1",), **more):
    return {"operations": list(operations), "apiGroups": list(groups), "apiVersions": list(versions), "resources": resources, **more}


EVERY = rule(["configmaps", "widgets", "widgets/status", "namespaces"], groups=("", "example.com"))


def hook(name, label="v", at=None, address="$HOOKS", bundle="$CA", rules=EVERY, **more):
    """A webhook for objects with the label `label: name`, which is asked at `/label/at`, or at the name."""
    config = {"url": f"https://{address}/{label}/{at or name}", **({"caBundle": bundle} if bundle else {})}
    return {"name": f"{name}.{label}.example.com", "clientConfig": config, "rules": [rules], "admissionReviewVersions": ["v1"],
            "sideEffects": "None", "objectSelector": {"matchLabels": {label: name}}} | more


def configuration(kind, name, *items):
    return {"apiVersion": "admissionregistration.k8s.io/v1", "kind": f"{kind}WebhookConfiguration", "metadata": {"name": name},
            "webhooks": list(items)}


def in_force(kind, name, *items):
    """Writes a configuration, and waits until it is asked: its last webhook says so."""
    sign = hook(name, "in-force", at=f"{name}/in-force", rules=rule(["configmaps"]))
    return [call("POST", PLACES[kind], configuration(kind, name, *items, sign), show="code", note=f"{name}, {len(items)} webhooks"),
            call("POST", f"{CM}?dryRun=All", labelled("probe", **{"in-force": name}), until=f"{name}/in-force is in force")]


def condition(expression, name="it"):
    return {"name": name, "expression": expression}


PATCHES = [name for name in hooks.RESPONSES if name.startswith("patch")]
JUDGED = [*(name for name in hooks.RESPONSES if name not in PATCHES), "patch-data", "patch-only-type", "patch-untyped", *hooks.ANSWERS, "close"]
CHANGED = ["allow", "deny-message", "deny-whole", "deny-patch", "warn", "silent", "uid-other", "500", "garbage", "no-response", "other-version", "close", *PATCHES]
PASSED_OVER = ["deny-message", "500", "302", "garbage", "no-response", "uid-other", "patch-data", "close"]
FAR = {"unreachable": {"address": "$CLOSED"}, "other-name": {"address": "$OTHER"}, "stranger": {"bundle": "$STRANGER"}, "no-bundle": {"bundle": ""}}
# The way to them, where it is not the usual one.
ODD = [("slow", {"timeoutSeconds": PATIENCE}), *((name, {"at": "allow"} | more) for name, more in FAR.items()),
       ("service", {"clientConfig": {"service": {"namespace": "system", "name": "hooks", "path": "/v/allow"}, "caBundle": "$CA"}})]
IGNORE = {"failurePolicy": "Ignore"}
WHEN = [
    ("when-true", "request.operation == 'CREATE' && object.metadata.name == 'v-when-true'", {}),
    ("when-false", "request.operation == 'DELETE'", {}),
    ("when-error", "object.data.nothing == 'x'", {}),
    ("when-error-ignored", "object.data.nothing == 'x'", IGNORE),
    ("when-user", "request.userInfo.username == 'slipway-admin' && 'system:masters' in request.userInfo.groups", {}),
    ("when-old", "oldObject == null && request.kind.kind == 'ConfigMap' && !request.dryRun", {}),
    ("when-label", "has(object.metadata.labels) && object.metadata.labels.exists(key, key.startsWith('v'))", {}),
]


def when(name, *expressions, **more):
    return hook(name, at="deny-message", matchConditions=[condition(text, f"c{i}") for i, text in enumerate(expressions)], **more)


def only(name, resources, groups=("",), **more):
    """For everything of a kind, whatever its labels."""
    return hook(name, rules=rule(resources, groups=groups), objectSelector={}, **more)


SETUP = [
    call("POST", SPACES, {"metadata": {"name": "hooks", "labels": {"space": "here"}}}, show="code"),
    call("POST", SPACES, {"metadata": {"name": "aside", "labels": {"space": "there"}}}, show="code"),
    call("POST", CRDS, WIDGET_CRD.encode(), kind="application/yaml", show="code", note="widgets"),
    call("GET", "/apis/example.com/v1", until="widgets/status", show="code"),
    *in_force("Validating", "validating", *(hook(name) for name in JUDGED), *(hook(name, **more) for name, more in ODD),
              *(when(name, text, **more) for name, text, more in WHEN),
              when("when-error-false", "object.data.nothing == 'x'", "false"), when("when-two-errors", "object.a == 1", "object.b == 1"),
              when("when-long", "object.metadata.name.matches('(v|w)+-when-long') && [1, 2, 3].all(x, x > 0)"),
              hook("nothing", at="deny-message", rules=rule(["secrets"])),
              hook("versions", at="deny-message", rules=rule(["configmaps"], versions=("v2",))),
              *(hook(scope.lower(), at="deny-message", rules=EVERY | {"scope": scope}) for scope in ("Cluster", "Namespaced")),
              hook("here", at="deny-message", namespaceSelector={"matchLabels": {"space": "here"}}),
              hook("there", at="deny-message", namespaceSelector={"matchExpressions": [{"key": "space", "operator": "NotIn", "values": ["here"]}]}),
              hook("keep", at="deny-message", rules=EVERY | {"operations": ["DELETE"]}),
              hook("fixed", at="deny-message", rules=EVERY | {"operations": ["UPDATE"]}),
              hook("dry", at="deny-message", sideEffects="NoneOnDryRun"),
              hook("both", at="warn-twice"), hook("both", label="b", at="deny-message", objectSelector={"matchLabels": {"v": "both"}}),
              only("scales", ["widgets/scale"], groups=("example.com",), at="allow"),
              only("configurations", ["*"], groups=("admissionregistration.k8s.io",), at="deny-message")),
    *in_force("Validating", "ignoring", *(hook(name, "i", **IGNORE) for name in PASSED_OVER),
              *(hook(name, "i", **IGNORE | more) for name, more in ODD)),
    *in_force("Mutating", "mutating", *(hook(name, "m") for name in CHANGED), hook("slow", "m", timeoutSeconds=PATIENCE),
              hook("z-first", "m", at="patch-count", objectSelector={"matchLabels": {"m": "order"}}),
              hook("a-second", "m", at="patch-data", objectSelector={"matchLabels": {"m": "order"}}),
              hook("again", "m", at="allow", reinvocationPolicy="IfNeeded"),
              hook("again-never", "m", at="warn", objectSelector={"matchLabels": {"m": "again"}}),
              hook("again-change", "m", at="patch-data", reinvocationPolicy="IfNeeded", objectSelector={"matchLabels": {"m": "again"}}),
              hook("again-more", "m", at="patch-count", objectSelector={"matchLabels": {"m": "again"}}),
              hook("still", "m", at="allow", reinvocationPolicy="IfNeeded"),
              hook("still-none", "m", at="patch-none", objectSelector={"matchLabels": {"m": "still"}}),
              only("scales", ["widgets/scale"], label="m", groups=("example.com",), at="patch-scale")),
    *in_force("Mutating", "a-first", hook("order", "m", at="warn")),
    *in_force("Mutating", "passing", *(hook(name, "i", **IGNORE) for name in ("500", "patch-missing", "patch-json", "patch-object", "silent"))),
]


def every(label, *names, **options):
    return [call("POST", CM, labelled(f"{label}-{name}", **{label: name}), **options) for name in names]


ADMISSION = [
    *every("v", *JUDGED, *(name for name, _ in ODD), *(name for name, _, _ in WHEN), "when-error-false", "when-two-errors", "when-long",
           "nothing", "versions", "cluster", "namespaced", "here", "there", "both"),
    *every("i", *PASSED_OVER, *(name for name, _ in ODD), "patch-missing", "patch-json", "patch-object", "silent"),
    *every("m", *CHANGED, "slow", "order", "again", "still"),
    # As they are told to others, and where they are not asked.
    call("POST", f"{SPACES}/aside/configmaps", labelled("x", v="there")),
    call("POST", f"{SPACES}/nowhere/configmaps", labelled("x", v="there")),
    call("POST", SPACES, {"metadata": {"name": "x", "labels": {"v": "deny-message"}}}),
    call("POST", SPACES, {"metadata": {"name": "x", "labels": {"v": "cluster"}}}, show="code"),
    call("POST", SPACES, {"metadata": {"name": "y", "labels": {"v": "namespaced", "space": "here"}}}, show="code"),
    call("POST", SPACES, {"metadata": {"name": "z", "labels": {"v": "here", "space": "here"}}}),
    call("POST", SPACES, {"metadata": {"name": "z", "labels": {"v": "here"}}}, show="code"),
    call("POST", SPACES, {"metadata": {"name": "zz", "labels": {"v": "there"}}}),
    call("PATCH", f"{SPACES}/z", {"metadata": {"labels": {"space": "here"}}}, kind=MERGE),
    call("POST", VALIDATING, configuration("Validating", "own", hook("deny-message")), show="code", note="own"),
    call("DELETE", f"{VALIDATING}/own", show="code"),
    # Judged before webhooks are asked, and after.
    call("POST", CM, labelled("Not a name", v="deny-message")),
    call("POST", CM, labelled("v-allow", v="deny-message")),
    call("POST", f"{CM}?fieldValidation=Strict", labelled("x", v="deny-message") | {"nonsense": 1}),
    call("POST", CM, labelled("x", v="not a label!", m="allow")),
    call("POST", WIDGETS, widget("x", {"colour": "pink"}, v="deny-message")),
    call("POST", WIDGETS, widget("x", {"colour": "pink"}, m="allow")),
    call("PUT", f"{CM}/none", labelled("none", v="deny-message")),
    call("PATCH", f"{CM}/none", {"metadata": {"labels": {"v": "deny-message"}}}, kind=MERGE),
    call("DELETE", f"{CM}/none"),
    # What they are asked, of each way to write.
    call("POST", f"{CM}?fieldManager=tester", labelled("full", {"a": "1"}, v="allow", m="allow"), review=True),
    call("POST", f"{CM}?fieldManager=tester&dryRun=All&fieldValidation=Strict", labelled("dry", v="allow", m="patch-data"), review=True),
    call("POST", CM, {"metadata": {"generateName": "gen-", "labels": {"v": "allow", "m": "allow"}}}, show=["data"], review=True),
    call("PUT", f"{CM}/full?fieldManager=tester", labelled("full", {"a": "2"}, v="allow", m="allow"), review=True),
    call("PUT", f"{CM}/full?fieldManager=tester", labelled("full", {"a": "2"}, v="allow", m="allow")),
    call("PATCH", f"{CM}/full", {"data": {"b": "1"}}, kind=MERGE, review=True),
    call("PATCH", f"{CM}/full", {"data": {"b": "1"}}, kind=MERGE),
    call("PATCH", f"{CM}/full", {"data": {"b": "2"}}, kind=STRATEGIC),
    call("PATCH", f"{CM}/full", [{"op": "replace", "path": "/data/b", "value": "3"}], kind=JSON_PATCH),
    call("PATCH", f"{CM}/full?fieldManager=one&force=true", labelled("full", {"a": "5"}, v="allow", m="allow"), kind=APPLY, review=True),
    call("PATCH", f"{CM}/applied?fieldManager=one", labelled("applied", {"a": "1"}, v="allow", m="allow"), kind=APPLY, review=True),
    call("PATCH", f"{CM}/applied?fieldManager=one&dryRun=All", labelled("applied", {"a": "2"}, v="allow"), kind=APPLY),
    call("PATCH", f"{CM}/refused?fieldManager=one", labelled("refused", {"a": "1"}, v="deny-whole"), kind=APPLY),
    call("PATCH", f"{CM}/applied?fieldManager=one", labelled("applied", {"a": "9"}, v="deny-whole"), kind=APPLY),
    call("PATCH", f"{CM}/full", {"metadata": {"labels": {"v": "deny-code"}}}, kind=MERGE),
    call("PATCH", f"{CM}/full", {"metadata": {"labels": {"m": "patch-data"}}}, kind=MERGE),
    call("PATCH", f"{CM}/full", {"metadata": {"labels": {"m": "patch-name"}}}, kind=MERGE),
    call("GET", f"{CM}/full", show="fields"),
    call("DELETE", f"{CM}/full"),
    call("PATCH", f"{CM}/full", {"metadata": {"labels": {"m": "allow"}}}, kind=MERGE),
    call("DELETE", f"{CM}/full?dryRun=All", show=["kind", "status", "metadata.name"]),
    call("DELETE", f"{CM}/full?propagationPolicy=Background", {"gracePeriodSeconds": 5, "preconditions": {}}, show=["kind", "status"], review=True),
    call("POST", CM, labelled("keep", v="keep")),
    call("DELETE", f"{CM}/keep"),
    call("DELETE", f"{CM}?labelSelector=v%3Dkeep"),
    call("DELETE", f"{CM}?labelSelector=v%3Dallow", show=["kind"]),
    call("POST", CM, labelled("fixed", v="fixed")),
    call("PUT", f"{CM}/fixed", labelled("fixed", {"a": "b"}, v="fixed")),
    call("PATCH", f"{CM}/fixed", {"metadata": {"labels": {"v": None}}}, kind=MERGE),
    call("POST", f"{CM}?dryRun=All", labelled("dry", v="dry")),
    call("POST", CM, labelled("held", v="allow") | {"metadata": {"name": "held", "labels": {"v": "allow"}, "finalizers": ["example.com/f"]}}),
    call("DELETE", f"{CM}/held", show="code"),
    call("DELETE", f"{CM}/held", show="code"),
    call("PATCH", f"{CM}/held", {"metadata": {"finalizers": None}}, kind=MERGE, show="code"),
    # A kind of users.
    call("POST", WIDGETS, widget("w", v="allow", m="patch-spec"), show=["spec"], review=True),
    call("POST", WIDGETS, widget("x", m="patch-spec-odd")),
    call("POST", WIDGETS, widget("x", m="patch-status"), show=["status"]),
    *(call("POST", WIDGETS, widget("x", m=name)) for name in ("patch-kind", "patch-version", "patch-no-kind", "patch-null", "patch-list", "patch-name", "patch-parent")),
    call("PATCH", f"{WIDGETS}/w/status", {"status": {"phase": "Made"}}, kind=MERGE, show=["status"], review=True),
    call("PATCH", f"{WIDGETS}/w/status", {"metadata": {"labels": {"v": "deny-message"}}, "status": {"phase": "Lost"}}, kind=MERGE, show=["status"]),
    call("GET", f"{WIDGETS}/w/scale"),
    call("PATCH", f"{WIDGETS}/w/scale", {"spec": {"replicas": 2}}, kind=MERGE, show=["spec"], review=True),
    call("GET", f"{WIDGETS}/w", show=["spec", "metadata.generation"]),
    call("DELETE", f"{WIDGETS}/w"),
    call("PATCH", f"{WIDGETS}/w", {"metadata": {"labels": {"m": None}}}, kind=MERGE, show="code"),
    call("DELETE", f"{WIDGETS}/w", show=["kind", "status"], review=True),
]

# ── what configurations may say ──

GOOD = {"name": "a.example.com", "clientConfig": {"url": "https://hooks.example.com/a", "caBundle": "$CA"}, "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "rules": [rule(["configmaps"])]}
SERVICE = {"namespace": "system", "name": "hooks"}


def url(text):
    return {"clientConfig": {"url": text}}


def service(**more):
    return {"clientConfig": {"service": {key: value for key, value in (SERVICE | more).items() if value is not None}}}


def ruled(**more):
    return {"rules": [GOOD["rules"][0] | more]}


def expressions(*items):
    return [{"matchLabels": {}, "matchExpressions": list(items)}]


BAD = [
    {"name": None}, {"name": ""}, {"name": "a"}, {"name": "a.b"}, {"name": "A.example.com"}, {"name": "a_b.example.com"}, {"name": "a" * 250 + ".example.com"}, {"name": 5},
    {"clientConfig": None}, {"clientConfig": {}}, {"clientConfig": {"url": "https://a/b", "service": SERVICE}}, {"clientConfig": "text"},
    *map(url, ("", "http://a/b", "https://", "https:///b", "://a", "a/b", "/b", "ftp://a", "https://u:p@a/b", "https://u@a/b", "https://a/b?c=d", "https://a/b#c", "https://a:99999/b",
               "https://a:b/c", "https://a b/c", "https://a/%zz", "http://u:p@a/b?c#d")),
    service(), service(name=""), service(namespace=""), service(name=None, namespace=None), service(name="A_B"), service(namespace="a.b"),
    service(port=0), service(port=-1), service(port=65536), service(port="https"), service(port=8443, path="/a/b.c/"),
    *(service(path=path) for path in ("", "/", "//", "a", "/a//b", "/A", "/a?b=c", "/a b", "/a/..")),
    {"clientConfig": {"url": "https://a/b", "caBundle": "***"}}, {"clientConfig": {"url": "https://a/b", "caBundle": "bm90aGluZw=="}},
    {"clientConfig": {"url": "https://a/b", "caBundle": ""}},
    {"rules": None}, {"rules": []}, {"rules": [{}]}, {"rules": "text"},
    *(ruled(operations=value) for value in (None, [], ["*", "CREATE"], ["READ"], ["create"], ["CREATE", "CREATE"], ["CONNECT"], [""])),
    *(ruled(apiGroups=value) for value in (None, [], ["*", "apps"], ["apps", "apps"], ["No Group"])),
    *(ruled(apiVersions=value) for value in (None, [], [""], ["*", "v1"], ["nonsense!"])),
    *(ruled(resources=value) for value in (None, [], [""], ["*", "pods"], ["*/*", "pods"], ["pods/*", "pods/status"], ["*/status", "pods/status"], ["pods", "pods"],
                                           ["*", "*/scale"], ["pods/"], ["/status"], ["a/b/c"], ["*", "pods/status"], ["pods/status", "pods/*"])),
    *(ruled(scope=value) for value in ("Here", "", "*", "Cluster")),
    *({field: value} for field in ("failurePolicy", "matchPolicy", "sideEffects", "reinvocationPolicy") for value in ("Nonsense", "")),
    {"sideEffects": None}, {"sideEffects": "Some"}, {"sideEffects": "Unknown"}, {"sideEffects": "NoneOnDryRun"}, {"reinvocationPolicy": "IfNeeded"}, {"matchPolicy": "Exact"},
    *({"timeoutSeconds": value} for value in (0, 1, 30, 31, -1, "soon", 1.5)),
    *({"admissionReviewVersions": value} for value in (None, [], ["v1beta1"], ["v1", "v1"], ["v2", "v1"], ["V1!"], [""], ["v1", "no version"], ["v2", "v3"])),
    *({field: selector} for field in ("namespaceSelector", "objectSelector") for selector in (
        {"matchExpressions": [{"key": "a", "operator": "Near", "values": ["b"]}]}, {"matchExpressions": [{"key": "a", "operator": "In"}]},
        {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}, {"matchExpressions": [{"key": "not a key", "operator": "Exists"}]},
        {"matchExpressions": [{"key": "a", "operator": "In", "values": ["not a value!"]}]}, {"matchExpressions": [{"operator": "Exists"}]},
        {"matchExpressions": [{}]}, {"matchLabels": {"not a key": "b"}}, {"matchLabels": {"a": "not a value!"}}, {"matchLabels": {"": ""}}, {"matchLabels": {"a": 5}})),
    *({"matchConditions": value} for value in (
        [], [{}], [condition("true", "")], [condition("", "a")], [condition("  ", "a")], [condition("true", "a"), condition("true", "a")], [condition("true", "not a name")],
        [condition("true", "a" * 64)], [condition("true", "example.com/a")], [condition("object.", "a")], [condition("objekt.a == 1", "a")], [condition("1 + 1", "a")], [condition("'text'", "a")],
        [condition("object.a", "a")], [condition("request.nonsense == 1", "a")], [condition("request.operation == 1", "a")], [condition("has(object)", "a")],
        [condition("nonsense(object)", "a")], [condition("object.a.nonsense()", "a")], [condition("namespaceObject.metadata.name == 'a'", "a")],
        [condition("authorizer.group('').resource('pods').check('get').allowed()", "a")], [condition("object.a.matches('(')", "a")],
        [condition("true", f"c{i}") for i in range(65)])),
]


def changed(change):
    """A good webhook with this changed; without what is None."""
    return {key: value for key, value in (GOOD | change).items() if value is not None}


def judged(kind, change):
    text = json.dumps(change, separators=(",", ":"))
    return call("POST", f"{PLACES[kind]}?dryRun=All", configuration(kind, "bad", changed(change)), show=[f"webhooks.0.{field}" for field in change] or ["webhooks"],
                note=text if len(text) <= 200 else text[:199] + "…")


CONFIGURATIONS = [
    *(judged("Mutating", change) for change in BAD),
    *(judged("Validating", change) for change in ({}, {"name": "a"}, {"reinvocationPolicy": "IfNeeded"}, {"sideEffects": None, "timeoutSeconds": 99}, {"clientConfig": {}},
                                                 {"matchConditions": [condition("objekt.a == 1", "a")]}, {"admissionReviewVersions": ["v1beta1"]})),
    *(call("POST", f"{place}?dryRun=All", configuration(kind, "twice", changed({}), changed({})), show="code") for kind, place in PLACES.items()),
    call("POST", f"{VALIDATING}?dryRun=All", {"metadata": {"name": "none"}}, show=["webhooks"]),
    call("POST", f"{VALIDATING}?dryRun=All", {"metadata": {"name": "none"}, "webhooks": None}, show=["webhooks"]),
    call("POST", f"{VALIDATING}?dryRun=All", {"metadata": {"name": "none"}, "webhooks": "text"}),
    call("POST", f"{VALIDATING}?dryRun=All", configuration("Validating", "Not a name", changed({})), note="a bad name"),
    call("POST", f"{VALIDATING}?dryRun=All", configuration("Mutating", "other", changed({})), note="the other kind"),
    call("POST", f"{VALIDATING}?dryRun=All&fieldValidation=Strict", configuration("Validating", "odd", changed({"nonsense": 1})), note="an unknown field"),
    call("POST", f"{VALIDATING}?dryRun=All&fieldValidation=Strict", configuration("Validating", "odd", changed({"reinvocationPolicy": "Never"})), note="a field of the other kind"),
    # Changed, by each way to change.
    call("POST", VALIDATING, configuration("Validating", "shown", changed({"rules": [rule(["nonsense"])]})), show="fields", note="shown"),
    call("PATCH", f"{VALIDATING}/shown", {"webhooks": [{"name": "a.example.com", "failurePolicy": "Ignore"}]}, kind=STRATEGIC, show=["webhooks.*.failurePolicy", "metadata.generation"]),
    call("PATCH", f"{VALIDATING}/shown", {"webhooks": [{"name": "b.example.com"}]}, kind=STRATEGIC),
    call("PATCH", f"{VALIDATING}/shown", {"webhooks": [{"name": "a.example.com", "failurePolicy": "Nonsense"}]}, kind=STRATEGIC),
    call("PATCH", f"{VALIDATING}/shown", [{"op": "add", "path": "/webhooks/0/matchConditions", "value": [condition("true", "a")]}], kind=JSON_PATCH, show=["webhooks.*.matchConditions", "metadata.generation"]),
    call("PATCH", f"{VALIDATING}/shown?fieldManager=one", configuration("Validating", "shown", {**changed({"rules": [rule(["nonsense"])]}), "name": "c.example.com"}), kind=APPLY,
         show=["webhooks.*.name", "metadata.generation"], note="applied"),
    call("PATCH", f"{VALIDATING}/shown?fieldManager=two", configuration("Validating", "shown", {"name": "c.example.com", "timeoutSeconds": 3}), kind=APPLY),
    call("PATCH", f"{VALIDATING}/shown?fieldManager=one", configuration("Validating", "shown"), kind=APPLY, show=["webhooks.*.name", "metadata.generation"]),
    call("GET", f"{VALIDATING}/shown", headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}, show=["columnDefinitions.*.name", "rows.*.cells.0", "rows.*.cells.1"]),
    call("DELETE", f"{VALIDATING}/shown", show=["kind", "status"]),
]

# ── conversion ──

SCHEMA = {"type": "object", "properties": {"spec": {"type": "object", "properties": {
    "how": {"type": "string"}, "size": {"type": "string"}, "length": {"type": "string"}, "replicas": {"type": "integer", "minimum": 0}}}}}
ONE, TWO = ({"name": name, "served": True, "storage": name == "v1", "schema": {"openAPIV3Schema": SCHEMA}, "subresources": {"status": {}}} for name in ("v1", "v2"))


def converting(**more):
    return {"strategy": "Webhook", "webhook": {"clientConfig": {"url": "https://$HOOKS/convert", "caBundle": "$CA"}, "conversionReviewVersions": ["v1"]} | more}


def kind_of(plural, kind, conversion):
    return crd(plural, None, kind=kind, versions=[ONE, TWO], conversion=conversion)


def things(version, plural="things"):
    return f"/apis/example.com/{version}/namespaces/hooks/{plural}"


def thing(name, version="v1", how="", kind="Thing", **spec):
    return {"apiVersion": f"example.com/{version}", "kind": kind, "metadata": {"name": name}, "spec": ({"how": how} if how else {}) | spec}


def serves(plural, kind, conversion, note):
    return [call("POST", CRDS, kind_of(plural, kind, conversion), show="code", note=note),
            call("GET", "/apis/example.com/v2", until=f"{plural}/status", show="code")]


READ = ["apiVersion", "kind", "metadata.name", "metadata.namespace", "metadata.labels", "metadata.annotations", "metadata.finalizers", "metadata.generation", "metadata.ownerReferences", "spec"]
HOWS = [*hooks.CONVERTED, *hooks.CONVERSIONS, *hooks.CONVERSION_ANSWERS]


def read_as_other(how):
    name = f"read-{how}".lower()
    return [call("POST", things("v1"), thing(name, how=f"v2:{how}", size="5"), show="code"),
            call("GET", f"{things('v2')}/{name}", show=READ),
            call("DELETE", f"{things('v1')}/{name}", show="code")]


def stanza(conversion):
    text = json.dumps(conversion, separators=(",", ":"))
    return call("POST", f"{CRDS}?dryRun=All", kind_of("oddities", "Oddity", conversion), show=["spec.conversion"], note=text if len(text) <= 200 else text[:199] + "…")


def far(name, address="$HOOKS", bundle="$CA"):
    """A kind whose webhook cannot be asked."""
    plural, kind = f"{name}s".replace("-", ""), name.title().replace("-", "")
    config = {"url": f"https://{address}/convert", **({"caBundle": bundle} if bundle else {})}
    return [*serves(plural, kind, converting(clientConfig=config), name), call("POST", things("v2", plural), thing("x", "v2", kind=kind))]


CONVERSION = [
    *serves("things", "Thing", converting(), "things"),
    call("POST", things("v2"), thing("right", "v2", length="5"), show=READ),
    call("GET", f"{things('v1')}/right", show=READ),
    call("GET", f"{things('v2')}/right", show="fields"),
    call("GET", things("v2"), show=["items.*.spec", "items.*.apiVersion"]),
    call("PATCH", f"{things('v2')}/right", {"spec": {"length": "6"}}, kind=MERGE, show=READ),
    call("PATCH", f"{things('v2')}/right?fieldManager=one", thing("right", "v2", replicas=3), kind=APPLY, show=READ),
    call("PUT", f"{things('v1')}/right", thing("right", size="7"), show=READ),
    call("PATCH", f"{things('v2')}/right/status", {"status": {}}, kind=MERGE, show=READ),
    *(call("POST", things("v2"), thing(f"write-{how}", "v2", how=f"v1:{how}", length="5"), show=READ) for how in HOWS),
    *(one for how in HOWS for one in read_as_other(how)),
    call("GET", f"{things('v1')}/write-field", show=READ),
    call("POST", things("v1"), thing("broken", how="v2:failed"), show="code"),
    call("GET", things("v2")),
    call("GET", f"{things('v2')}?limit=1&labelSelector=a%3Db", show="code"),
    call("GET", f"{things('v2')}?watch=1&timeoutSeconds=1&resourceVersion=0&fieldSelector=metadata.name%3Dbroken", show=["watch"]),
    call("GET", f"{things('v2')}/broken", headers={"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}),
    call("PUT", f"{things('v2')}/broken", thing("broken", "v2")),
    call("PATCH", f"{things('v2')}/broken", {"spec": {"how": ""}}, kind=MERGE),
    call("PATCH", f"{things('v2')}/broken?fieldManager=one", thing("broken", "v2", replicas=3), kind=APPLY),
    call("DELETE", f"{things('v2')}/broken"),
    call("DELETE", f"{things('v1')}/broken", show="code"),
    call("PATCH", f"{things('v2')}/right", {"spec": {"how": "v1:failed"}}, kind=MERGE),
    call("POST", f"{things('v2')}?dryRun=All", thing("dry", "v2", how="v1:failed")),
    *(one for name, more in FAR.items() for one in far(name, **more)),
    *serves("served", "Served", converting(clientConfig={"service": SERVICE, "caBundle": "$CA"}), "by a service"),
    call("POST", things("v2", "served"), thing("x", "v2", kind="Served")),
    call("PATCH", f"{CRDS}/things.example.com", {"spec": {"conversion": converting(clientConfig={"url": "https://$HOOKS/convert", "caBundle": "bm90aGluZw=="})}}, kind=MERGE,
         note="a bundle without a certificate"),
    # What definitions may say.
    stanza({}), stanza({"strategy": ""}), stanza({"strategy": "Nonsense"}), stanza({"strategy": "None"}), stanza({"strategy": "None", "webhook": converting()["webhook"]}),
    stanza({"strategy": "Webhook"}), stanza({"strategy": "Webhook", "webhook": {}}), stanza({"strategy": "Webhook", "webhook": {"conversionReviewVersions": ["v1"]}}),
    stanza({"strategy": "Webhook", "webhook": {"clientConfig": {"url": "https://a/b"}}}), stanza(converting()),
    *(stanza(converting(conversionReviewVersions=versions)) for versions in ([], ["v1beta1"], ["v1", "v1"], ["v2", "v1"], ["V1!"], [""], ["v2"])),
    *(stanza(converting(clientConfig=config)) for config in (
        {}, {"url": "https://a/b", "service": SERVICE}, {"url": "http://a/b"}, {"url": "https://u:p@a/b"}, {"url": "https://a/b?c"}, {"url": ""}, {"url": "https://"}, {"service": {}},
        {"service": SERVICE}, {"service": SERVICE | {"port": 0}}, {"service": SERVICE | {"port": 70000}}, {"service": SERVICE | {"path": "a"}}, {"service": SERVICE | {"name": "A_B"}},
        {"url": "https://a/b", "caBundle": "***"}, {"url": "https://a/b", "caBundle": "bm90aGluZw=="})),
]

CALLS = [*SETUP, *ADMISSION, *CONFIGURATIONS, *CONVERSION]
