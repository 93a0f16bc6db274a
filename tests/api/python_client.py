"""What the Python client of Kubernetes is used for. Runs in a virtual environment that has it; `clients.py` starts it.

    python python_client.py KUBECONFIG crud|elect|follow

Prints one JSON object to a line. `follow` writes, watches and waits while the server is killed and started again.
"""

import datetime
import json
import sys
import threading
import time

import urllib3
from kubernetes import client, config, dynamic, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.informer import ADDED, DELETED, MODIFIED, SharedInformer
from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.leaderelectionrecord import LeaderElectionRecord

NAMESPACE = "python"
# Objects that `follow` makes, and how many of them it deletes again.
MANY, GONE = 240, 80


def tell(**facts):
    print(json.dumps(facts), flush=True)


def refused(code, reason, act):
    """The action must be refused with this status and reason."""
    try:
        act()
    except ApiException as error:
        status = json.loads(error.body)
        assert (error.status, status["reason"], status["kind"]) == (code, reason, "Status"), error
        return
    raise AssertionError(f"not refused with {code} {reason}")


def make_namespace(core):
    try:
        core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name=NAMESPACE)))
    except ApiException as error:
        assert error.status == 409, error


def config_map(name, **data):
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, labels={"made-by": "python"}), data=data)


def crud():
    core = client.CoreV1Api()
    assert client.VersionApi().get_code().major == "1"
    made = core.create_namespaced_config_map(NAMESPACE, config_map("a", k="v"))
    assert made.metadata.uid and isinstance(made.metadata.creation_timestamp, datetime.datetime)
    refused(409, "AlreadyExists", lambda: core.create_namespaced_config_map(NAMESPACE, config_map("a")))
    assert core.patch_namespaced_config_map("a", NAMESPACE, {"data": {"l": "w"}}).data == {"k": "v", "l": "w"}
    refused(409, "Conflict", lambda: core.replace_namespaced_config_map("a", NAMESPACE, made))
    fresh = core.read_namespaced_config_map("a", NAMESPACE)
    fresh.data = {"only": "this"}
    assert core.replace_namespaced_config_map("a", NAMESPACE, fresh).data == {"only": "this"}
    assert [item.metadata.name for item in core.list_namespaced_config_map(NAMESPACE, label_selector="made-by=python").items] == ["a"]
    page = core.list_namespaced_config_map(NAMESPACE, limit=1)
    assert len(page.items) == 1
    secret = core.create_namespaced_secret(NAMESPACE, client.V1Secret(
        metadata=client.V1ObjectMeta(generate_name="s-"), string_data={"password": "calvin"}))
    assert secret.metadata.name.startswith("s-") and secret.data == {"password": "Y2Fsdmlu"} and secret.type == "Opaque"
    refused(404, "NotFound", lambda: core.read_namespaced_secret("none", NAMESPACE))
    refused(422, "Invalid", lambda: core.create_namespaced_config_map(NAMESPACE, config_map("Not_Valid")))
    review = client.AuthorizationV1Api().create_self_subject_access_review(client.V1SelfSubjectAccessReview(
        spec=client.V1SelfSubjectAccessReviewSpec(resource_attributes=client.V1ResourceAttributes(verb="get", resource="secrets"))))
    assert review.status.allowed
    client.EventsV1Api().create_namespaced_event(NAMESPACE, client.EventsV1Event(
        metadata=client.V1ObjectMeta(name="e"), event_time=datetime.datetime.now(datetime.timezone.utc), reason="Tried", action="Try",
        note="by Python", type="Normal", reporting_controller="example.com/python", reporting_instance="one",
        regarding=client.V1ObjectReference(kind="ConfigMap", name="a", namespace=NAMESPACE)))
    event = core.list_namespaced_event(NAMESPACE, field_selector="involvedObject.name=a").items[0]
    assert (event.message, event.reporting_component) == ("by Python", "example.com/python"), event

    custom = client.CustomObjectsApi()
    where = ("metal3.io", "v1alpha1", NAMESPACE, "baremetalhosts")
    host = {"apiVersion": "metal3.io/v1alpha1", "kind": "BareMetalHost",
            "metadata": {"name": "h", "annotations": {"baremetalhost.metal3.io/paused": ""}}, "spec": {"online": True}}
    custom.create_namespaced_custom_object(*where, host)
    assert custom.patch_namespaced_custom_object(*where, "h", {"spec": {"description": "x"}})["spec"]["description"] == "x"
    status = {"status": {"errorCount": 0, "errorMessage": "", "operationalStatus": "OK", "poweredOn": True,
                         "provisioning": {"ID": "", "state": "available"}}}
    assert custom.patch_namespaced_custom_object_status(*where, "h", status)["status"]["poweredOn"] is True
    assert len(custom.list_cluster_custom_object("metal3.io", "v1alpha1", "baremetalhosts")["items"]) == 1
    custom.delete_namespaced_custom_object(*where, "h")

    kinds = dynamic.DynamicClient(client.ApiClient())
    maps = kinds.resources.get(api_version="v1", kind="ConfigMap")
    applied = maps.server_side_apply(namespace=NAMESPACE, name="applied", field_manager="python", body={
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "applied"}, "data": {"a": "b"}})
    assert [entry.manager for entry in applied.metadata.managedFields] == ["python"]
    assert kinds.resources.get(api_version="metal3.io/v1alpha1", kind="BareMetalHost").namespaced
    seen = []
    watcher = watch.Watch()
    for event in watcher.stream(core.list_namespaced_config_map, NAMESPACE, timeout_seconds=20):
        seen.append((event["type"], event["object"].metadata.name))
        if len(seen) == 2:
            core.delete_namespaced_config_map("applied", NAMESPACE)
        if event["type"] == "DELETED":
            watcher.stop()
    assert sorted(seen[:2]) == [("ADDED", "a"), ("ADDED", "applied")] and seen[-1] == ("DELETED", "applied"), seen
    core.delete_collection_namespaced_config_map(NAMESPACE)
    assert core.list_namespaced_config_map(NAMESPACE).items == []
    tell(done="crud")


class LeaseLock:
    """What the client's elections ask of a lock, kept in a Lease as Kubernetes' own components do."""

    def __init__(self, name, identity):
        self.name, self.namespace, self.identity = name, NAMESPACE, identity
        self.api, self.current = client.CoordinationV1Api(), None

    def get(self, name, namespace):
        try:
            self.current = self.api.read_namespaced_lease(name, namespace)
        except ApiException as error:
            return False, error
        spec = self.current.spec
        return True, LeaderElectionRecord(spec.holder_identity, str(spec.lease_duration_seconds), str(spec.acquire_time), str(spec.renew_time))

    def lease(self, record):
        now = datetime.datetime.now(datetime.timezone.utc)
        return client.V1LeaseSpec(holder_identity=record.holder_identity, lease_duration_seconds=int(record.lease_duration),
                                  acquire_time=now, renew_time=now)

    def create(self, name, namespace, election_record):
        body = client.V1Lease(metadata=client.V1ObjectMeta(name=name), spec=self.lease(election_record))
        return self.written(lambda: self.api.create_namespaced_lease(namespace, body))

    def update(self, name, namespace, updated_record):
        self.current.spec = self.lease(updated_record)
        return self.written(lambda: self.api.replace_namespaced_lease(name, namespace, self.current))

    @staticmethod
    def written(act):
        try:
            act()
            return True
        except ApiException:
            return False


def elect():
    """Of three candidates one leads; when it stops renewing, another one takes over."""
    led, now_leading, most, held = [], set(), [0], threading.Event()
    guard = threading.Lock()

    def candidate(identity):
        lock = LeaseLock("leader", identity)
        first = threading.Event()

        def started():
            with guard:
                led.append(identity)
                now_leading.add(identity)
                most[0] = max(most[0], len(now_leading))
                held.set() if len(led) == 2 else None
            first.set()
            if len(led) == 1:
                # The first leader dies without a word: it renews no more. Its last renewal still counts for others.
                lock.update = lambda *_: False

        def stopped():
            with guard:
                now_leading.discard(identity)
        leaderelection.LeaderElection(electionconfig.Config(lock, 6, 3, 1, started, stopped)).run()

    for identity in ("a", "b", "c"):
        threading.Thread(target=candidate, args=(identity,), daemon=True).start()
    assert held.wait(60), f"nobody took over: {led}"
    assert len(set(led[:2])) == 2 and most[0] == 1, (led, most)
    holder = client.CoordinationV1Api().read_namespaced_lease("leader", NAMESPACE).spec.holder_identity
    assert holder == led[1], (holder, led)
    tell(done="elect", led=led)


def insistently(act, allow=()):
    """Repeats a write until it was answered; a status in `allow` means that an unanswered try had been done."""
    while True:
        try:
            return act()
        except ApiException as error:
            if error.status in allow:
                return None
            if error.status not in (429, 500, 503, 504):
                raise
        except urllib3.exceptions.HTTPError:
            pass
        time.sleep(0.05)


def write(written):
    """Makes many objects, brings each to its final state, and deletes some; every change is acknowledged."""
    core = client.CoreV1Api()
    for i in range(MANY):
        insistently(lambda: core.create_namespaced_config_map(NAMESPACE, config_map(f"m{i}", state="new")), allow=(409,))
        insistently(lambda: core.patch_namespaced_config_map(f"m{i}", NAMESPACE, {"data": {"state": "final"}}))
        if i < GONE:
            insistently(lambda: core.delete_namespaced_config_map(f"m{i}", NAMESPACE), allow=(404,))
        if i % 40 == 39:
            tell(written=i + 1)
            # Waits for the word to go on, so that the server's end meets writes and watches in full swing.
            sys.stdin.readline()
    written.set()


def follow():
    """The client's informer, and a plain watch as scripts do it, through restarts of the server."""
    core = client.CoreV1Api()
    written = threading.Event()
    informer = SharedInformer(core.list_namespaced_config_map, namespace=NAMESPACE, label_selector="made-by=python")
    added, removed = set(), set()
    informer.add_event_handler(ADDED, lambda item: added.add(item.metadata.name))
    informer.add_event_handler(MODIFIED, lambda item: added.add(item.metadata.name))
    informer.add_event_handler(DELETED, lambda item: removed.add(item.metadata.name))
    informer.start()
    plain, relists, resumed, ends = {}, [0], [0], threading.Event()

    def plain_loop():
        api, revision = client.CoreV1Api(), None
        while not ends.is_set():
            try:
                if revision is None:
                    listed = api.list_namespaced_config_map(NAMESPACE, label_selector="made-by=python")
                    plain.clear()
                    plain.update({item.metadata.name: (item.data or {}).get("state") for item in listed.items})
                    revision = listed.metadata.resource_version
                    relists[0] += 1
                resumed[0] += 1
                for event in watch.Watch().stream(api.list_namespaced_config_map, NAMESPACE, label_selector="made-by=python",
                                                  resource_version=revision, timeout_seconds=10):
                    item = event["object"]
                    revision = item.metadata.resource_version
                    if event["type"] == "DELETED":
                        plain.pop(item.metadata.name, None)
                    else:
                        plain[item.metadata.name] = (item.data or {}).get("state")
            except ApiException as error:
                if error.status == 410:
                    revision = None
                elif error.status not in (429, 500, 503, 504):
                    raise
            except urllib3.exceptions.HTTPError:
                time.sleep(0.05)

    threading.Thread(target=plain_loop, daemon=True).start()
    writer = threading.Thread(target=write, args=(written,), daemon=True)
    writer.start()
    writer.join()
    wanted = {f"m{i}": "final" for i in range(GONE, MANY)}
    deadline = time.monotonic() + 60
    cached = dict
    while time.monotonic() < deadline:
        cached = {item.metadata.name: (item.data or {}).get("state") for item in informer.cache.list()}
        if cached == wanted and dict(plain) == wanted:
            break
        time.sleep(0.2)
    ends.set()
    listed = insistently(lambda: core.list_namespaced_config_map(NAMESPACE, label_selector="made-by=python"))
    actual = {item.metadata.name: item.data["state"] for item in listed.items}
    assert actual == wanted, f"acknowledged writes are lost: {set(wanted.items()) ^ set(actual.items())}"
    assert cached == wanted, f"the informer missed {set(wanted.items()) ^ set(cached.items())}"
    assert dict(plain) == wanted, f"the watch missed {set(wanted.items()) ^ set(plain.items())}"
    assert set(wanted) <= added, f"the informer told nobody of {set(wanted) - added}"
    assert not removed & set(wanted), f"the informer took for deleted: {removed & set(wanted)}"
    tell(done="follow", relists=relists[0], watches=resumed[0])


if __name__ == "__main__":
    config.load_kube_config(sys.argv[1])
    make_namespace(client.CoreV1Api())
    {"crud": crud, "elect": elect, "follow": follow}[sys.argv[2]]()
