"""Calls of the API as no client of ours would make them alone, in one order. The answers are recorded in `golden/requests.txt`."""

import json
from dataclasses import dataclass, field

from manifests import WIDGET_CRD

JSON_PATCH, MERGE, STRATEGIC, APPLY = ("application/json-patch+json", "application/merge-patch+json",
                                       "application/strategic-merge-patch+json", "application/apply-patch+yaml")
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


@dataclass
class Call:
    """One request; `$NAME` in path and body stands for what an earlier one saved."""

    method: str
    path: str
    body: object = None
    headers: dict = field(default_factory=dict)
    # Who asks: admin, nobody, or the name of a saved token.
    who: str = "admin"
    # Name under which a value of the answer, at a path with dots, is kept.
    save: dict = field(default_factory=dict)
    # What of the answer counts: body, fields (body with managedFields), code, lines (a pattern to keep lines by), or a list
    # of paths with dots.
    show: object = "body"
    # Repeated until the answer has this text: for what a controller does in its own time.
    until: str = ""
    # What the transcript calls it when the body is too long or too odd to show.
    note: str = ""


def call(method, path, body=None, kind=None, accept=None, **options):
    headers = options.pop("headers", {})
    if kind:
        headers = headers | {"Content-Type": kind}
    if accept:
        headers = headers | {"Accept": accept}
    return Call(method, path, body, headers, **options)


NS = "/api/v1/namespaces/diff"
CM, SECRETS = f"{NS}/configmaps", f"{NS}/secrets"
WIDGETS, CRDS = "/apis/example.com/v1/namespaces/diff/widgets", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
HOSTS = "/apis/metal3.io/v1alpha1/namespaces/diff/baremetalhosts"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def cm(name, data=None, **meta):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **meta}, **({"data": data} if data else {})}


def secret(name, kind=None, data=None, **more):
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, **({"type": kind} if kind else {}),
            **({"data": data} if data else {}), **more}


def widget(name, spec, **more):
    return {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec, **more}


def crd(plural, schema, kind="Gadget", versions=None, group="example.com", **spec):
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": f"{plural}.{group}"},
            "spec": {"group": group, "scope": "Namespaced", "names": {"plural": plural, "kind": kind}, "versions": versions or [version],
                     **spec}}


def deep(levels):
    return b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"deep"},"data":' + b'{"a":' * levels + b"1" + b"}" * levels + b"}"


# Messages about what is no JSON, or no such type, are in the words of Go's own decoder: code and reason count.
DECODED = ["code", "reason"]

PATHS = [
    call("POST", "/api/v1/namespaces", {"metadata": {"name": "diff"}}, save={"OWNER": "metadata.uid"}),
    call("GET", "/api", show=["kind", "versions"]),
    call("GET", "/apis/metal3.io"),
    call("GET", "/apis/metal3.io/v1alpha1", show=["kind", "groupVersion", "resources.*.namespaced"]),
    call("GET", "/apis/coordination.k8s.io/v1", show=["groupVersion", "kind"]),
    call("GET", "/nowhere", show="code"),
    call("GET", "/api/v2"),
    call("GET", "/apis/nowhere.example.com"),
    call("GET", "/api/v1/nonsense"),
    call("GET", f"{NS}/nonsense"),
    call("GET", f"{NS}/nonsense/x"),
    call("GET", "/apis/metal3.io/v1alpha1/nonsense"),
    call("GET", "/apis/metal3.io/v9/baremetalhosts"),
    call("GET", f"{CM}/x/nonsense"),
    call("GET", f"{CM}/x/status"),
    call("PUT", CM, cm("x")),
    call("POST", f"{CM}/x", cm("x")),
    call("DELETE", "/api/v1/namespaces"),
    call("POST", "/api/v1/configmaps", cm("x")),
    call("POST", HOSTS + "/x", {}, show=DECODED),
    call("HEAD", NS, show="code"),
    call("GET", NS, accept="text/plain"),
    call("GET", NS, accept="application/xml"),
    call("GET", NS, accept="application/yaml", show="code"),
    call("GET", NS, accept="*/*", show=["kind", "metadata.name"]),
    call("GET", HOSTS, accept="application/vnd.kubernetes.protobuf", show="code"),
    call("GET", HOSTS, accept="application/vnd.kubernetes.protobuf,application/json", show=["kind", "items"]),
    call("POST", CM, b"a=b", kind="application/x-www-form-urlencoded"),
    call("POST", CM, b"name: x", kind="text/yaml"),
    call("PATCH", f"{CM}/x", b"{}", kind="application/json"),
    call("PATCH", f"{CM}/x", b"{}", kind="text/plain"),
    call("GET", f"{NS}?pretty=nonsense", show="code"),
    call("GET", f"{CM}?limit=minus", show=DECODED),
    call("GET", f"{CM}?limit=-1", show="code"),
    call("GET", f"{CM}?watch=perhaps&timeoutSeconds=1", show="code"),
    call("GET", f"{CM}?timeoutSeconds=soon&watch=1", show=DECODED),
    call("GET", "/apis/metal3.io/v1alpha1/namespaces/nowhere/baremetalhosts", show=["kind", "items"]),
    call("GET", "/api/v1/namespaces/nowhere/configmaps", show=["kind", "items"]),
    call("GET", "/api/v1/namespaces/nowhere"),
]

CREATE = [
    call("POST", CM, cm("a", {"k": "v"}), show="fields"),
    call("POST", CM, cm("a")),
    call("POST", CM, b"", show=DECODED),
    call("POST", CM, b"{", show=DECODED),
    call("POST", CM, b"[]", show=DECODED),
    call("POST", CM, b"null"),
    call("POST", CM, b'"text"', show=DECODED),
    call("POST", CM, b"{}"),
    call("POST", CM, b'{"metadata":{"name":"\xff\xfe"}}', note="invalid UTF-8"),
    call("POST", CM, b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"dup"},"data":{"a":"1","a":"2"}}'),
    call("POST", f"{CM}?fieldValidation=Strict", b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"dup2"},"data":{"a":"1","a":"2"},"nope":1}'),
    call("POST", f"{CM}?fieldValidation=Warn&dryRun=All", b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"dup3"},"nope":1}'),
    call("POST", f"{CM}?fieldValidation=Ignore&dryRun=All", b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"dup4"},"nope":1}'),
    call("POST", f"{CM}?fieldValidation=Nonsense", cm("x")),
    call("POST", f"{CM}?dryRun=Some", cm("x")),
    call("POST", f"{CM}?dryRun=All", cm("dry", {"a": "b"})),
    call("GET", f"{CM}/dry"),
    call("POST", f"{CM}?fieldManager={'m' * 200}", cm("x")),
    call("POST", CM, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}}, show=DECODED),
    call("POST", CM, {"apiVersion": "v2", "kind": "ConfigMap", "metadata": {"name": "x"}}, show=DECODED),
    call("POST", CM, {"kind": "ConfigMap", "metadata": {"name": "without-version"}}),
    call("POST", CM, {"metadata": {"name": "without-both"}}),
    call("POST", HOSTS, {"metadata": {"name": "without-both"}, "spec": {"online": True}}, show=DECODED),
    call("POST", HOSTS, {"apiVersion": "metal3.io/v1alpha1", "kind": "HardwareData", "metadata": {"name": "x"}}),
    call("POST", CM, cm("x", namespace="other")),
    call("POST", "/api/v1/namespaces/nowhere/configmaps", cm("x")),
    call("POST", CM, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}),
    call("POST", CM, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "gen-"}}, show=["metadata.generateName", "kind"]),
    call("POST", CM, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "Gen_"}}, show=["code", "reason"]),
    call("POST", CM, cm("has.dot/slash")),
    call("POST", CM, cm("a" * 254), show=["code", "reason", "details.causes"]),
    call("POST", CM, cm("x", resourceVersion="5")),
    call("POST", CM, cm("given", uid="11111111-1111-1111-1111-111111111111", creationTimestamp="2001-01-01T00:00:00Z", generation=7,
                        selfLink="/x", deletionTimestamp="2001-01-01T00:00:00Z"), show=["metadata.name", "metadata.generation", "metadata.selfLink",
                                                                                     "metadata.deletionTimestamp"]),
    call("POST", CM, cm("x", labels={"a": "b c"})),
    call("POST", CM, cm("x", labels={"a": 1}), show=DECODED),
    call("POST", CM, cm("x", annotations={"bad key!": "x"})),
    call("POST", CM, cm("x", finalizers=["notqualified"])),
    call("POST", CM, cm("x", finalizers=["a/b/c"])),
    call("POST", CM, cm("x", ownerReferences=[{"apiVersion": "v1", "kind": "ConfigMap", "name": "a"}])),
    call("POST", CM, cm("x", ownerReferences=[{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "1", "controller": True},
                                              {"apiVersion": "v1", "kind": "ConfigMap", "name": "b", "uid": "2", "controller": True}])),
    call("POST", CM, cm("x", {"bad key!": "v"})),
    call("POST", CM, {**cm("x", {"a": "1"}), "binaryData": {"a": "MQ=="}}),
    call("POST", CM, {**cm("x"), "binaryData": {"a": "not base64"}}, show=DECODED),
    call("POST", CM, cm("x", {"a": "v" * 1_100_000}), note="data of 1.1 MB", show=["code", "reason", "message"]),
    call("POST", CM, b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"huge"},"data":{"a":"' + b"v" * 4_000_000 + b'"}}', note="a body of 4 MB"),
    call("POST", CM, deep(20_000), note="20,000 levels", show=["code", "reason"]),
    call("POST", CM, b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: from-yaml}\ndata: {a: b}\n", kind="application/yaml"),
    call("POST", CM, b"a: &a [x, x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\n"
                     b"c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c]\n"
                     b"e: &e [*d, *d, *d, *d, *d, *d, *d, *d, *d]\nf: &f [*e, *e, *e, *e, *e, *e, *e, *e, *e]\n"
                     b"g: &g [*f, *f, *f, *f, *f, *f, *f, *f, *f]\n", kind="application/yaml", note="a YAML bomb", show=["code", "reason"]),
]

SECRET = [
    call("POST", SECRETS, secret("s", data={"a": "eA=="}, stringData={"b": "y"})),
    call("POST", SECRETS, secret("x", data={"a": "***"}), show=DECODED),
    call("POST", SECRETS, secret("x", "kubernetes.io/tls", {"tls.crt": "eA=="})),
    call("POST", SECRETS, secret("x", "kubernetes.io/ssh-auth")),
    call("POST", SECRETS, secret("x", "kubernetes.io/dockerconfigjson", {".dockerconfigjson": "eA=="})),
    call("POST", SECRETS, secret("x", "kubernetes.io/dockercfg", {})),
    call("POST", SECRETS, secret("x", "kubernetes.io/service-account-token", {})),
    call("POST", SECRETS, secret("x", data={"bad key!": "eA=="})),
    call("PATCH", f"{SECRETS}/s", {"stringData": {"c": "z"}}, kind=MERGE, show=["data", "stringData"]),
    call("PATCH", f"{SECRETS}/s", {"type": "other"}, kind=MERGE),
    call("PATCH", f"{SECRETS}/s", {"immutable": True}, kind=MERGE, show=["immutable"]),
    call("PATCH", f"{SECRETS}/s", {"data": {"a": "eQ=="}}, kind=MERGE),
    call("PATCH", f"{SECRETS}/s", {"immutable": False}, kind=MERGE),
    call("DELETE", f"{SECRETS}/s"),
]

UPDATE = [
    call("GET", f"{CM}/a", save={"UID": "metadata.uid", "REV": "metadata.resourceVersion"}),
    call("PUT", f"{CM}/a", cm("a", {"k": "w"}), show="fields"),
    call("PUT", f"{CM}/a", cm("a", {"k": "x"}, resourceVersion="$REV")),
    call("PUT", f"{CM}/a", cm("a", {"k": "x"}, resourceVersion="nonsense")),
    call("PUT", f"{CM}/a", cm("b")),
    call("PUT", f"{CM}/a", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}, "data": {"k": "unnamed"}}),
    call("PUT", f"{CM}/a", cm("a", namespace="other")),
    call("PUT", f"{CM}/a", cm("a", uid="11111111-1111-1111-1111-111111111111")),
    call("PUT", f"{CM}/nobody", cm("nobody")),
    call("PUT", f"{CM}/nobody", cm("nobody", uid="11111111-1111-1111-1111-111111111111")),
    call("PUT", f"{HOSTS}/nobody", {"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": "nobody"}, "spec": {"online": True}}),
    call("PUT", f"{CM}/a", {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}, show=DECODED),
    call("PUT", f"{CM}/a?dryRun=All", cm("a", {"k": "dry"}), show=["data"]),
    call("GET", f"{CM}/a", show=["data"]),
    call("PATCH", f"{CM}/a", {"data": {"m": "1", "k": None}}, kind=MERGE, show=["data"]),
    call("PATCH", f"{CM}/a", {"data": {"s": "1"}}, kind=STRATEGIC, show=["data"]),
    call("PATCH", f"{CM}/a", {"data": {"$patch": "replace", "only": "1"}}, kind=STRATEGIC, show=["data"]),
    call("PATCH", f"{CM}/a", {"data": {"$retainKeys": ["x"]}}, kind=STRATEGIC, show=["code", "reason", "message"]),
    call("PATCH", f"{CM}/a", {"metadata": {"finalizers": ["example.com/one"]}}, kind=STRATEGIC, show=["metadata.finalizers"]),
    call("PATCH", f"{CM}/a", {"metadata": {"finalizers": ["example.com/two"]}}, kind=STRATEGIC, show=["metadata.finalizers"]),
    call("PATCH", f"{CM}/a", {"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/one"]}}, kind=STRATEGIC, show=["metadata.finalizers"]),
    call("PATCH", f"{CM}/a", {"metadata": {"finalizers": None}}, kind=STRATEGIC, show=["metadata.finalizers"]),
    # An owner that exists: garbage collection is free to delete, between any two calls, what has none.
    call("PATCH", f"{CM}/a", {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Namespace", "name": "diff", "uid": "$OWNER"}]}}, kind=STRATEGIC,
         show=["metadata.ownerReferences"]),
    call("PATCH", f"{CM}/a", {"metadata": {"ownerReferences": [{"uid": "$OWNER", "$patch": "delete"}]}}, kind=STRATEGIC, show=["metadata.ownerReferences"]),
    call("PATCH", f"{CM}/a", [{"op": "add", "path": "/data/j", "value": "1"}, {"op": "copy", "from": "/data/j", "path": "/data/l"},
                              {"op": "move", "from": "/data/l", "path": "/data/m"}], kind=JSON_PATCH, show=["data"]),
    call("PATCH", f"{CM}/a", [{"op": "test", "path": "/data/j", "value": "2"}], kind=JSON_PATCH),
    call("PATCH", f"{CM}/a", [{"op": "remove", "path": "/data/none"}], kind=JSON_PATCH),
    call("PATCH", f"{CM}/a", [{"op": "replace", "path": "/data/none", "value": "1"}], kind=JSON_PATCH),
    call("PATCH", f"{CM}/a", [{"op": "nonsense", "path": "/data/j"}], kind=JSON_PATCH),
    call("PATCH", f"{CM}/a", {"op": "add"}, kind=JSON_PATCH, show=DECODED),
    call("PATCH", f"{CM}/a", [{"op": "add", "path": "/data/j", "value": 5}], kind=JSON_PATCH),
    call("PATCH", f"{CM}/a", [{"op": "add", "path": "/data/n", "value": "1"}] * 10_001, kind=JSON_PATCH, note="10,001 operations", show=DECODED),
    call("PATCH", f"{CM}/a", [], kind=MERGE, show=DECODED),
    call("PATCH", f"{CM}/a", b"{", kind=MERGE, show=DECODED),
    call("PATCH", f"{CM}/a", b"", kind=MERGE, show=DECODED),
    call("PATCH", f"{CM}/a", {"metadata": {"resourceVersion": "$REV"}, "data": {"x": "y"}}, kind=MERGE),
    call("PATCH", f"{CM}/a", {"metadata": {"uid": "11111111-1111-1111-1111-111111111111"}}, kind=MERGE),
    call("PATCH", f"{CM}/a", {"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z"}, "data": {"z": "z"}}, kind=MERGE, show=["data"]),
    call("PATCH", f"{CM}/a", {"metadata": {"name": "b"}}, kind=MERGE),
    call("PATCH", f"{CM}/a", {"metadata": {"namespace": "b"}}, kind=MERGE),
    call("PATCH", f"{CM}/a", {"metadata": {"labels": {"a": "b c"}}}, kind=MERGE),
    call("PATCH", f"{CM}/a?fieldValidation=Strict", {"nope": 1}, kind=MERGE, show=DECODED),
    call("PATCH", f"{CM}/a?force=true", {"data": {}}, kind=MERGE),
    call("PATCH", f"{CM}/nobody", {"data": {}}, kind=MERGE),
    call("PATCH", f"{HOSTS}/nobody", {"data": {}}, kind=STRATEGIC),
]

SSA = [
    call("PATCH", f"{CM}/ap", cm("ap", {"a": "1", "b": "2"}), kind=APPLY),
    call("PATCH", f"{CM}/ap?fieldManager=one", cm("ap", {"a": "1", "b": "2"}), kind=APPLY, show="fields"),
    call("PATCH", f"{CM}/ap?fieldManager=one", cm("ap", {"a": "1", "b": "2"}), kind=APPLY, show="fields"),
    call("PATCH", f"{CM}/ap?fieldManager=two", cm("ap", {"a": "x", "c": "3"}), kind=APPLY),
    call("PATCH", f"{CM}/ap?fieldManager=two", cm("ap", {"a": "1", "c": "3"}), kind=APPLY, show="fields"),
    call("PATCH", f"{CM}/ap?fieldManager=two&force=true", cm("ap", {"a": "x", "c": "3"}), kind=APPLY, show="fields"),
    call("PATCH", f"{CM}/ap?fieldManager=two", cm("ap", {"a": "x"}), kind=APPLY, show="fields"),
    call("PATCH", f"{CM}/ap?fieldManager=one", cm("ap"), kind=APPLY, show="fields"),
    call("PATCH", f"{CM}/ap?fieldManager=three", {"data": {"a": "u"}}, kind=MERGE, show="fields"),
    call("PATCH", f"{CM}/ap?fieldManager=two", cm("ap", {"a": "x"}), kind=APPLY),
    call("PATCH", f"{CM}/ap?fieldManager=two", b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ap}\ndata:\n  y: aml\n", kind=APPLY, show="fields"),
    call("PATCH", f"{CM}/ap?fieldManager=two", {"kind": "ConfigMap", "metadata": {"name": "ap"}}, kind=APPLY),
    call("PATCH", f"{CM}/ap?fieldManager=two", {"apiVersion": "v1", "metadata": {"name": "ap"}}, kind=APPLY),
    call("PATCH", f"{CM}/ap?fieldManager=two", {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "ap"}}, kind=APPLY),
    call("PATCH", f"{CM}/ap?fieldManager=two", cm("other"), kind=APPLY),
    call("PATCH", f"{CM}/ap?fieldManager=two", cm("ap", managedFields=[]), kind=APPLY, show=["code", "reason", "message"]),
    call("PATCH", f"{CM}/ap?fieldManager=two", cm("ap", managedFields=[{"manager": "x"}]), kind=APPLY),
    call("PATCH", f"{CM}/ap?fieldManager=two", cm("ap", {"a": 1}), kind=APPLY, show=DECODED),
    call("PATCH", f"{CM}/ap?fieldManager=two&fieldValidation=Strict", {**cm("ap"), "nope": 1}, kind=APPLY),
    call("PATCH", f"{CM}/ap?fieldManager=two", b"[", kind=APPLY, show=DECODED),
    call("PATCH", f"{CM}/ap?fieldManager=two&dryRun=All", cm("ap", {"d": "ry"}), kind=APPLY, show=["data"]),
    call("PATCH", f"{CM}/ap2?fieldManager=two", cm("ap2", resourceVersion="1"), kind=APPLY, show=["code", "reason", "message"]),
    call("PATCH", f"{CM}/ap", {"metadata": {"managedFields": [{}]}}, kind=MERGE, show="fields"),
    call("PATCH", f"{CM}/ap", {"metadata": {"managedFields": [{"manager": "m", "operation": "Nonsense"}]}}, kind=MERGE, show=["code", "reason", "message"]),
    call("PUT", f"{CM}/ap?fieldManager=four", cm("ap", {"put": "1"}), show="fields"),
    call("POST", f"{HOSTS}?fieldManager=maker", {"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {
        "name": "h", "annotations": {"baremetalhost.metal3.io/paused": ""}}, "spec": {"online": True, "bmc": {"address": "redfish://192.0.2.1/", "credentialsName": "c"}}}, show="fields"),
    call("PATCH", f"{HOSTS}/h?fieldManager=one", {"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": "h"},
         "spec": {"online": False}}, kind=APPLY),
    call("PATCH", f"{HOSTS}/h/status?fieldManager=driver&force=true", {"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": "h"},
         "status": {"errorCount": 0, "errorMessage": "", "hardwareProfile": "", "operationalStatus": "OK", "poweredOn": True,
                    "provisioning": {"ID": "", "state": "available"}}}, kind=APPLY, show=["status.poweredOn", "status.operationalStatus"]),
    call("PATCH", f"{HOSTS}/h", {"status": {"poweredOn": False}, "spec": {"description": "x"}}, kind=MERGE, show=["spec", "status.poweredOn", "metadata.generation"]),
    call("PATCH", f"{HOSTS}/h/status", {"status": {"poweredOn": False}, "spec": {"description": "y"}, "metadata": {"labels": {"a": "b"}}}, kind=MERGE,
         show=["spec", "status.poweredOn", "metadata.generation", "metadata.labels"]),
    call("GET", f"{HOSTS}/h/status", show=["kind", "status.poweredOn"]),
    call("DELETE", f"{HOSTS}/h/status"),
    call("POST", HOSTS, {"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost", "metadata": {"name": "h2", "annotations": {"baremetalhost.metal3.io/paused": ""}},
         "spec": {"online": True, "nope": {"a": 1}}, "status": {"poweredOn": True}, "more": 1}, show=["spec", "more"]),
]

READ = [
    *(call("POST", CM, cm(f"l{i}", {"i": str(i)}, labels={"n": str(i % 2), "list": "x"}), show="code") for i in range(5)),
    call("GET", f"{CM}?labelSelector=list", show="body"),
    call("GET", f"{CM}?labelSelector=list%3Dx,n%3D1", accept=PARTIAL_LIST, show=["kind", "apiVersion", "items.*.metadata.name", "items.*.kind", "items.*.data"]),
    call("GET", f"{CM}?labelSelector=n+notin+(1),list", show=["items.*.metadata.name"]),
    call("GET", f"{CM}?labelSelector=n+in", show="body"),
    call("GET", f"{CM}?labelSelector=a+b+c", show="body"),
    call("GET", f"{CM}?fieldSelector=metadata.name%3Dl1", show=["items.*.metadata.name"]),
    call("GET", f"{CM}?fieldSelector=metadata.name%3D%3Dl1,metadata.namespace%3Ddiff", show=["items.*.metadata.name"]),
    call("GET", f"{CM}?fieldSelector=data.x%3D1"),
    call("GET", f"{CM}?fieldSelector=nonsense"),
    call("GET", f"{CM}?limit=2&labelSelector=list", show=["items.*.metadata.name", "metadata.remainingItemCount"], save={"NEXT": "metadata.continue", "LISTREV": "metadata.resourceVersion"}),
    call("GET", f"{CM}?limit=2", show=["items.*.metadata.name"]),
    call("POST", CM, cm("l00", labels={"list": "x"}), show="code"),
    call("GET", f"{CM}?limit=2&labelSelector=list&continue=$NEXT", show=["items.*.metadata.name"], save={"NEXT2": "metadata.continue"}),
    call("GET", f"{CM}?limit=2&labelSelector=list&continue=$NEXT2", show=["items.*.metadata.name", "metadata.continue"]),
    call("GET", f"{CM}?continue=nonsense"),
    call("GET", f"{CM}?continue=$NEXT&resourceVersion=1"),
    call("GET", f"{CM}?resourceVersionMatch=Exact"),
    call("GET", f"{CM}?resourceVersion=$LISTREV&resourceVersionMatch=Exact&labelSelector=list", show=["items.*.metadata.name"]),
    call("GET", f"{CM}?resourceVersion=$LISTREV&resourceVersionMatch=NotOlderThan&labelSelector=list", show=["items.*.metadata.name"]),
    call("GET", f"{CM}?resourceVersion=0&resourceVersionMatch=Exact"),
    call("GET", f"{CM}?resourceVersion=1&resourceVersionMatch=Nonsense"),
    call("GET", f"{CM}?resourceVersion=nonsense"),
    call("GET", f"{CM}?resourceVersion=999999999&resourceVersionMatch=NotOlderThan", show=["code", "reason"]),
    call("GET", f"{CM}/l1?resourceVersion=0", show=["metadata.name"]),
    call("GET", f"{CM}/l1?resourceVersion=nonsense"),
    call("GET", f"{CM}/l1", accept=PARTIAL, show=["kind", "apiVersion", "metadata.name", "data"]),
    call("GET", f"{CM}/l1", accept=TABLE, show=["kind", "apiVersion", "columnDefinitions", "rows.*.object.kind"]),
    call("GET", f"{CM}?labelSelector=list%3Dx&limit=1", accept=TABLE, show=["rows.*.object.metadata.name", "metadata.remainingItemCount"]),
    call("GET", f"{CM}/l1?includeObject=None", accept=TABLE, show=["rows.*.object"]),
    call("GET", f"{CM}/l1?includeObject=Object", accept=TABLE, show=["rows.*.object.data"]),
    call("GET", f"{HOSTS}/h", accept=TABLE, show=["columnDefinitions.*.name", "columnDefinitions.*.type", "columnDefinitions.*.priority", "rows.*.cells.0"]),
    call("GET", "/api/v1/namespaces/diff", accept="application/json;as=Table;v=v9;g=meta.k8s.io"),
    call("GET", "/api/v1/configmaps?labelSelector=list&limit=1", show=["items.*.metadata.name", "kind"]),
    call("GET", f"{CM}?watch=1&timeoutSeconds=1&labelSelector=list&resourceVersion=$LISTREV", show=["watch"]),
    call("GET", f"{CM}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dl3", show=["watch"]),
    call("GET", f"{CM}?watch=1&timeoutSeconds=1&resourceVersion=nonsense"),
    call("GET", f"{CM}?watch=1&timeoutSeconds=1&resourceVersion=$LISTREV&resourceVersionMatch=NotOlderThan"),
    call("GET", f"{CM}?watch=1&timeoutSeconds=1&sendInitialEvents=true&labelSelector=list"),
    call("GET", f"{CM}?watch=1&timeoutSeconds=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&labelSelector=list%3Dx,n%3D1", show=["watch"]),
    call("GET", f"{CM}?sendInitialEvents=true"),
    call("GET", f"{CM}?watch=1&timeoutSeconds=1&limit=1&labelSelector=list%3Dx,n%3D1", show=["watch"]),
    call("GET", f"/api/v1/watch/namespaces/diff/configmaps?timeoutSeconds=1&labelSelector=list%3Dx,n%3D1", show=["watch"]),
    call("GET", f"{CM}/l1?watch=1&timeoutSeconds=1", show=["code", "reason", "kind"]),
    call("DELETE", f"{CM}?labelSelector=n%3D1&dryRun=All", show=["kind", "items.*.metadata.name"]),
    call("DELETE", f"{CM}?labelSelector=n%3D1", show=["kind", "items.*.metadata.name"]),
    call("GET", f"{CM}?labelSelector=list", show=["items.*.metadata.name"]),
]

DELETE = [
    call("DELETE", f"{CM}/nobody"),
    call("DELETE", f"{CM}/l0", {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "11111111-1111-1111-1111-111111111111"}}),
    call("DELETE", f"{CM}/l0", {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"resourceVersion": "1"}}, show=["code", "reason"]),
    call("DELETE", f"{CM}/l0", {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Sideways"}),
    call("DELETE", f"{CM}/l0", {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Orphan", "orphanDependents": True}),
    call("DELETE", f"{CM}/l0", {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": -5}, show=["code", "reason", "status"]),
    call("DELETE", f"{CM}/l2?dryRun=All"),
    call("DELETE", f"{CM}/l2?dryRun=Some"),
    call("DELETE", f"{CM}/l2?propagationPolicy=Nonsense"),
    call("DELETE", f"{CM}/l2", b"nonsense", show=DECODED),
    call("DELETE", f"{CM}/l2", {"kind": "Nonsense", "apiVersion": "v1"}, show=["code", "reason", "message"]),
    call("DELETE", f"{CM}/l2", show=["status", "details.name", "details.kind", "kind"]),
    call("DELETE", f"{HOSTS}/h2", show=["status", "details.name", "details.kind", "details.group", "kind"]),
    call("POST", CM, cm("held", finalizers=["example.com/hold"]), show="code"),
    call("DELETE", f"{CM}/held", show=["kind", "metadata.name", "metadata.deletionGracePeriodSeconds", "metadata.finalizers", "metadata.generation"]),
    call("DELETE", f"{CM}/held", show=["kind", "metadata.name"]),
    call("PATCH", f"{CM}/held", {"data": {"still": "writable"}}, kind=MERGE, show=["data"]),
    call("PATCH", f"{CM}/held", {"metadata": {"finalizers": ["example.com/hold", "example.com/more"]}}, kind=MERGE),
    call("PATCH", f"{CM}/held", {"metadata": {"deletionTimestamp": None}}, kind=MERGE, show=["metadata.finalizers"]),
    call("PATCH", f"{CM}/held", {"metadata": {"finalizers": []}}, kind=MERGE, show=["metadata.name", "metadata.finalizers"]),
    call("GET", f"{CM}/held"),
]

SPACES = [
    call("POST", "/api/v1/namespaces", {"metadata": {"name": "Bad_Name"}}),
    call("POST", "/api/v1/namespaces", {"metadata": {"name": "has.dot"}}),
    call("POST", "/api/v1/namespaces", {"metadata": {"generateName": "gen-"}}, show=["spec", "status", "metadata.generateName"], save={"GEN": "metadata.name"}),
    call("PATCH", "/api/v1/namespaces/diff", {"metadata": {"labels": {"kubernetes.io/metadata.name": "other"}}}, kind=MERGE, show=["metadata.labels"]),
    call("PUT", "/api/v1/namespaces/diff/finalize", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "diff"}, "spec": {"finalizers": ["kubernetes"]}}, show=["spec"]),
    call("PATCH", "/api/v1/namespaces/diff", {"spec": {"finalizers": []}}, kind=MERGE, show=["spec"]),
    call("DELETE", "/api/v1/namespaces/$GEN", show=["kind", "status.phase", "metadata.finalizers", "spec"]),
    call("DELETE", "/api/v1/namespaces/kube-system"),
    call("GET", "/api/v1/namespaces?fieldSelector=status.phase%3DNonsense", show=["items"]),
    call("POST", "/apis/coordination.k8s.io/v1/namespaces/diff/leases", {"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": -1, "leaseTransitions": -1}}),
    call("POST", "/apis/coordination.k8s.io/v1/namespaces/diff/leases", {"metadata": {"name": "l"}, "spec": {"renewTime": "yesterday"}}, show=DECODED),
    call("POST", "/apis/coordination.k8s.io/v1/namespaces/diff/leases", {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a", "renewTime": "2026-01-01T00:00:00Z"}}, show=DECODED),
    call("POST", f"{NS}/events", {"metadata": {"name": "e"}, "involvedObject": {"kind": "ConfigMap", "name": "a", "namespace": "other"}}),
    call("POST", f"{NS}/events", {"metadata": {"name": "e"}, "involvedObject": {"kind": "ConfigMap", "name": "a", "namespace": "diff"}, "reason": "R", "type": "Odd"}),
    call("POST", "/apis/events.k8s.io/v1/namespaces/diff/events", {"metadata": {"name": "n"}, "regarding": {"kind": "ConfigMap", "name": "a", "namespace": "diff"}}),
    call("POST", "/apis/events.k8s.io/v1/namespaces/diff/events", {
        "metadata": {"name": "n"}, "regarding": {"kind": "ConfigMap", "name": "a", "namespace": "diff"}, "eventTime": "2026-01-01T00:00:00.000000Z",
        "type": "Normal", "reason": "R", "action": "A", "note": "N", "reportingController": "example.com/c", "reportingInstance": "i"}),
    call("GET", f"{NS}/events/n", show=["message", "source", "reportingComponent", "involvedObject", "kind", "apiVersion", "action"]),
    call("GET", f"{NS}/events?fieldSelector=involvedObject.name%3Da,reason%3DR", show=["items.*.metadata.name"]),
    call("POST", f"{NS}/serviceaccounts", {"metadata": {"name": "robot"}}),
    call("POST", f"{NS}/serviceaccounts/robot/token", {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 5}}),
    call("POST", f"{NS}/serviceaccounts/robot/token", {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
         save={"ROBOT": "status.token"}, show=["kind", "spec.expirationSeconds"]),
    call("POST", f"{NS}/serviceaccounts/nobody/token", {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}),
    call("GET", f"{NS}/serviceaccounts/robot/token"),
]


def review(kind, spec, version="authorization.k8s.io"):
    return {"apiVersion": f"{version}/v1", "kind": kind, "spec": spec}


def reviews(plural, group="authorization.k8s.io"):
    return f"/apis/{group}/v1/{plural}"


CAN = {"namespace": "diff", "verb": "list", "resource": "configmaps"}
WHO = [
    call("GET", "/version", who="nobody", show=["major", "minor"]),
    call("GET", "/healthz", who="nobody"),
    call("GET", "/livez", who="nobody"),
    call("GET", "/readyz", who="nobody"),
    call("GET", "/livez/ping", who="nobody"),
    call("GET", "/api", who="nobody"),
    call("GET", "/apis", who="nobody"),
    call("GET", "/openapi/v3", who="nobody"),
    call("GET", "/metrics", who="nobody"),
    call("GET", CM, who="nobody"),
    call("GET", "/nowhere", who="nobody"),
    call("POST", CM, cm("x"), who="nobody"),
    call("GET", CM, headers={"Authorization": "Bearer nonsense"}, who="nobody"),
    call("GET", "/version", headers={"Authorization": "Bearer nonsense"}, who="nobody"),
    call("GET", CM, headers={"Authorization": "Basic YTpi"}, who="nobody"),
    call("GET", CM, who="ROBOT"),
    call("GET", f"{CM}/a", who="ROBOT"),
    call("GET", f"{CM}?watch=1", who="ROBOT"),
    call("DELETE", CM, who="ROBOT"),
    call("PATCH", f"{HOSTS}/h/status", {}, kind=MERGE, who="ROBOT"),
    call("GET", "/api/v1/nodes", who="ROBOT"),
    call("GET", "/metrics", who="ROBOT"),
    call("GET", "/api", who="ROBOT", show="code"),
    call("GET", "/openapi/v2", who="ROBOT", show="code"),
    call("POST", reviews("selfsubjectreviews", "authentication.k8s.io"), {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}, who="ROBOT",
         show=["status.userInfo.username", "status.userInfo.groups"]),
    call("POST", reviews("selfsubjectaccessreviews"), review("SelfSubjectAccessReview", {"resourceAttributes": CAN}), who="ROBOT"),
    call("POST", reviews("selfsubjectaccessreviews"), review("SelfSubjectAccessReview", {"nonResourceAttributes": {"path": "/healthz", "verb": "get"}}), who="ROBOT", show=["status.allowed"]),
    call("POST", reviews("selfsubjectaccessreviews"), review("SelfSubjectAccessReview", {}), who="ROBOT"),
    call("POST", reviews("subjectaccessreviews"), review("SubjectAccessReview", {"resourceAttributes": CAN, "user": "jane"}), who="ROBOT"),
    call("POST", reviews("subjectaccessreviews"), review("SubjectAccessReview", {"resourceAttributes": CAN, "user": "jane"}), show=["status"]),
    call("POST", reviews("subjectaccessreviews"), review("SubjectAccessReview", {"resourceAttributes": CAN, "user": "jane", "groups": ["system:masters"]}), show=["status.allowed"]),
    call("POST", reviews("subjectaccessreviews"), review("SubjectAccessReview", {"user": "jane"})),
    call("POST", "/apis/authorization.k8s.io/v1/namespaces/diff/localsubjectaccessreviews", {**review("LocalSubjectAccessReview", {"resourceAttributes": CAN, "user": "jane"}), "metadata": {"namespace": "diff"}}, show=["status"]),
    call("POST", reviews("selfsubjectrulesreviews"), review("SelfSubjectRulesReview", {"namespace": "diff"}), who="ROBOT", show=["status.incomplete", "kind"]),
    call("POST", reviews("selfsubjectrulesreviews"), review("SelfSubjectRulesReview", {}), who="ROBOT"),
    call("POST", reviews("tokenreviews", "authentication.k8s.io"), review("TokenReview", {"token": "nonsense"}, "authentication.k8s.io"), show=["status"]),
    call("POST", reviews("tokenreviews", "authentication.k8s.io"), review("TokenReview", {"token": "$ROBOT"}, "authentication.k8s.io"),
         show=["status.authenticated", "status.user.username", "status.user.groups", "status.audiences"]),
    call("GET", reviews("selfsubjectaccessreviews")),
    call("POST", f"{RBAC}/namespaces/diff/roles", {"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]}]}),
    call("POST", f"{RBAC}/namespaces/diff/roles", {"metadata": {"name": "bad"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": []}]}),
    call("POST", f"{RBAC}/namespaces/diff/roles", {"metadata": {"name": "bad"}, "rules": [{"nonResourceURLs": ["/x"], "verbs": ["get"]}]}),
    call("POST", f"{RBAC}/namespaces/diff/roles", {"metadata": {"name": "bad"}, "rules": [{"resources": ["x"], "verbs": ["get"]}]}),
    call("POST", f"{RBAC}/namespaces/diff/rolebindings", {"metadata": {"name": "b"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
         "subjects": [{"kind": "ServiceAccount", "name": "robot", "namespace": "diff"}]}),
    call("POST", f"{RBAC}/namespaces/diff/rolebindings", {"metadata": {"name": "bad"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Nonsense", "name": "r"}}),
    call("POST", f"{RBAC}/namespaces/diff/rolebindings", {"metadata": {"name": "bad"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
         "subjects": [{"kind": "ServiceAccount", "name": "robot"}, {"kind": "Dog", "name": "rex"}, {"kind": "User"}]}),
    call("POST", f"{RBAC}/clusterrolebindings", {"metadata": {"name": "bad"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}}),
    call("PATCH", f"{RBAC}/namespaces/diff/rolebindings/b", {"roleRef": {"name": "other"}}, kind=MERGE),
    call("GET", CM, who="ROBOT", show="code", until="200"),
    call("GET", f"{CM}/a", who="ROBOT", show="code"),
    call("GET", f"{CM}?watch=1&timeoutSeconds=1", who="ROBOT"),
    call("GET", "/api/v1/configmaps", who="ROBOT"),
    call("POST", f"{RBAC}/namespaces/diff/roles", {"metadata": {"name": "r2"}, "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]}, who="ROBOT"),
    call("PATCH", f"{RBAC}/namespaces/diff/roles/r", {"rules": [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]},
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings"], "verbs": ["*"]}]}, kind=MERGE, show=["rules"]),
    call("GET", f"{RBAC}/namespaces/diff/roles/r", who="ROBOT", show="code", until="200"),
    call("POST", f"{RBAC}/namespaces/diff/roles", {"metadata": {"name": "r2"}, "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]}, who="ROBOT"),
    call("POST", f"{RBAC}/namespaces/diff/roles", {"metadata": {"name": "r3"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]}, who="ROBOT", show="code"),
    call("POST", f"{RBAC}/namespaces/diff/rolebindings", {"metadata": {"name": "b2"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}}, who="ROBOT",
         show=["code", "reason", "details"]),
    call("GET", CM, headers={"Impersonate-User": "jane"}),
    call("GET", CM, headers={"Impersonate-User": "jane", "Impersonate-Group": "system:masters"}, show="code"),
    call("GET", CM, headers={"Impersonate-User": "jane"}, who="ROBOT"),
    call("GET", CM, headers={"Impersonate-Group": "x"}, show=DECODED),
    call("GET", CM, headers={"Impersonate-User": "system:serviceaccount:diff:robot"}, show="code"),
    call("DELETE", f"{NS}/serviceaccounts/robot", show="code"),
    call("GET", CM, who="ROBOT", show="code", until="401"),
]

STRING = {"type": "string"}
CUSTOM = [
    call("POST", CRDS, crd("gadgets", {"type": "object"}, scope="Nonsense")),
    call("POST", CRDS, crd("gadgets", {"type": "object", "properties": {"spec": {"properties": {"a": {"type": "string"}}}}})),
    call("POST", CRDS, crd("gadgets", {"type": "nonsense"})),
    call("POST", CRDS, crd("gadgets", {"type": "object"}, versions=[{"name": "v1", "served": True, "storage": True}])),
    call("POST", CRDS, crd("gadgets", None, versions=[{"name": "v1", "served": True, "storage": False, "schema": {"openAPIV3Schema": {"type": "object"}}}])),
    call("POST", CRDS, {**crd("gadgets", {"type": "object"}), "metadata": {"name": "other.example.com"}}),
    call("POST", CRDS, crd("gadgets", {"type": "object"}, kind="lower case")),
    call("POST", CRDS, crd("gadgets", {"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-validations": [{"rule": "self.nope > 1"}]}}}), show=["code", "reason", "message"]),
    call("POST", CRDS, crd("gadgets", {"type": "object", "properties": {"l": {"type": "array", "x-kubernetes-list-type": "map", "items": {"type": "object"}}}}), show=["code", "reason", "details.causes"]),
    call("POST", CRDS, WIDGET_CRD.encode(), kind="application/yaml", show=["kind", "metadata.generation", "spec.conversion", "spec.names"]),
    call("GET", f"{CRDS}/widgets.example.com", until="InitialNamesAccepted", show=["status.acceptedNames", "status.storedVersions"]),
    call("GET", "/apis/example.com/v1", until="widgets/status", show=["kind", "groupVersion", "resources.*.name", "resources.*.kind", "resources.*.version"]),
    call("POST", CRDS, crd("widgets2", {"type": "object"}, kind="Widget"), show="code"),
    call("GET", f"{CRDS}/widgets2.example.com", until="KindConflict", show=["status.conditions.*.type", "status.conditions.*.status", "status.conditions.*.reason", "status.conditions.*.message"]),
    call("DELETE", f"{CRDS}/widgets2.example.com", show="code"),
    call("POST", WIDGETS, widget("w", {"colour": "red"}), show="body"),
    call("POST", WIDGETS, widget("bad", {"colour": "pink", "replicas": -1, "size": "x", "parts": [{}]})),
    call("POST", WIDGETS, widget("bad", {"colour": 5, "replicas": "many", "parts": {}})),
    call("POST", WIDGETS, {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "bad"}}),
    call("POST", WIDGETS, {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "bad"}, "spec": None}),
    call("POST", WIDGETS, widget("bad", {"colour": "red", "replicas": 1.5})),
    call("POST", WIDGETS, widget("bad", {"colour": "red", "replicas": 4294967296})),
    call("POST", WIDGETS, widget("null", {"colour": "red", "size": None, "replicas": None})),
    call("POST", WIDGETS, widget("pruned", {"colour": "red", "nope": 1}, nope={"a": 1}), show=["spec", "nope"]),
    call("POST", f"{WIDGETS}?fieldValidation=Strict", widget("strict", {"colour": "red", "nope": 1}, nope={"a": 1})),
    call("POST", WIDGETS, widget("odd", {"colour": "red"}, status={"phase": "Made"}), show=["status"]),
    call("GET", f"{WIDGETS}/w/scale"),
    call("PATCH", f"{WIDGETS}/w/scale", {"spec": {"replicas": 5}}, kind=MERGE, show=["kind", "spec", "status"]),
    call("PUT", f"{WIDGETS}/w/scale", {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "w", "namespace": "diff"}, "spec": {"replicas": 6}}, show=["spec"]),
    call("PUT", f"{WIDGETS}/w/scale", {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "w", "namespace": "diff"}, "spec": {"replicas": -6}}),
    call("GET", f"{WIDGETS}/w", show=["spec", "metadata.generation"]),
    call("GET", f"{WIDGETS}/w/nonsense"),
    call("PATCH", f"{WIDGETS}/w", {"spec": {"parts": [{"name": "a"}, {"name": "a"}]}}, kind=MERGE),
    call("PATCH", f"{WIDGETS}/w?fieldManager=one", widget("w", {"parts": [{"name": "a", "count": 1}]}), kind=APPLY, show="fields"),
    call("PATCH", f"{WIDGETS}/w?fieldManager=two", widget("w", {"parts": [{"name": "b", "count": 1}]}), kind=APPLY, show="fields"),
    call("PATCH", f"{WIDGETS}/w?fieldManager=two", widget("w", {"parts": [{"name": "a", "count": 9}]}), kind=APPLY),
    call("PATCH", f"{WIDGETS}/w?fieldManager=two", widget("w", {"parts": [{"count": 9}]}), kind=APPLY),
    call("PATCH", f"{WIDGETS}/w?fieldManager=two", widget("w", {"nope": 1}), kind=APPLY),
    call("PATCH", f"{WIDGETS}/w?fieldManager=one", widget("w", {}), kind=APPLY, show="fields"),
    call("GET", f"{WIDGETS}?fieldSelector=spec.colour%3Dred", show=["items.*.metadata.name"]),
    call("POST", CRDS, crd("rules", {"type": "object", "properties": {"spec": {
        "type": "object", "x-kubernetes-validations": [{"rule": "self.min <= self.max", "message": "min must not be more than max"},
                                                       {"rule": "self.fixed == oldSelf.fixed", "messageExpression": "'fixed was ' + oldSelf.fixed"}],
        "required": ["min", "max", "fixed"], "properties": {
            "min": {"type": "integer"}, "max": {"type": "integer"}, "fixed": {"type": "string", "maxLength": 10},
            "any": {"x-kubernetes-preserve-unknown-fields": True}, "set": {"type": "array", "maxItems": 3, "x-kubernetes-list-type": "set", "items": STRING},
            "port": {"x-kubernetes-int-or-string": True}, "maybe": {"type": "string", "nullable": True}, "when": {"type": "string", "format": "date-time"},
            "map": {"type": "object", "additionalProperties": {"type": "integer"}},
            "one": {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": STRING, "b": STRING}}}}}}, kind="Rule"), show="code"),
    call("GET", "/apis/example.com/v1", until="rules", show="code"),
    *(call("POST", "/apis/example.com/v1/namespaces/diff/rules", {"apiVersion": "example.com/v1", "kind": "Rule", "metadata": {"name": f"r{i}"}, "spec": spec}, show=show)
      for i, (spec, show) in enumerate([
          ({"min": 1, "max": 2, "fixed": "x"}, ["spec"]),
          ({"min": 3, "max": 2, "fixed": "x"}, "body"),
          ({"min": 1, "max": 2, "fixed": "more than ten"}, "body"),
          ({"min": 1, "max": 2, "fixed": "x", "any": {"a": [1, {"b": None}]}, "maybe": None, "port": "http", "map": {"a": 1}}, ["spec"]),
          ({"min": 1, "max": 2, "fixed": "x", "set": ["a", "a"]}, "body"),
          ({"min": 1, "max": 2, "fixed": "x", "set": ["a", "b", "c", "d"]}, "body"),
          ({"min": 1, "max": 2, "fixed": "x", "port": {}, "map": {"a": "b"}, "when": "noon"}, "body"),
          ({"min": 1, "max": 2, "fixed": "x", "one": {"a": "1", "b": "2"}}, "body")])),
    call("PATCH", "/apis/example.com/v1/namespaces/diff/rules/r0", {"spec": {"fixed": "y"}}, kind=MERGE),
    call("DELETE", f"{CRDS}/rules.example.com", show="code"),
    call("DELETE", f"{CRDS}/widgets.example.com", show=["kind", "status", "metadata.finalizers"]),
    call("GET", f"{WIDGETS}/w", until="could not find"),
    call("DELETE", "/api/v1/namespaces/diff", show=["kind", "status.phase", "spec"]),
    call("POST", CM, cm("late")),
    call("GET", "/api/v1/namespaces/diff", until='"code":404'),
]

CALLS = [*PATHS, *CREATE, *SECRET, *UPDATE, *SSA, *READ, *DELETE, *SPACES, *WHO, *CUSTOM]


def text_of(item):
    """One line that names a request."""
    body = item.note
    if not body and item.body is not None:
        body = item.body.decode(errors="backslashreplace") if isinstance(item.body, bytes) else json.dumps(item.body, separators=(",", ":"))
        body = body if len(body) <= 300 else body[:299] + "…"
    headers = " ".join(f"{key}: {value}" for key, value in item.headers.items())
    who = "" if item.who == "admin" else f"({item.who}) "
    return " ".join(f"{who}{item.method} {item.path} {f'[{headers}] ' if headers else ''}{body or ''}".replace("\n", "\\n").split())
