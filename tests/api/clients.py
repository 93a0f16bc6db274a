"""The Python client, and helm, against Slipway; the first of them while Slipway is killed and started again. A controller
in Go with client-go only when it is named, because it needs Go.

    python3 tests/api/clients.py [python|helm|go]...

With PEER=1 in the environment they are tried against a real kube-apiserver instead: what they expect must hold there too.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import servers
import tools
from kubectl import VERSIONS
from manifests import WIDGET_CRD
from servers import LabError, check_output, fail, say

HERE = Path(__file__).resolve().parent


class Python:
    """A part of `python_client.py` as a process that tells what it does in lines of JSON."""

    def __init__(self, server, part):
        # A file: the client tells of each broken connection at length, and nobody reads that meanwhile.
        self.part, self.errors = part, tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([tools.python_client() / "bin/python", HERE / "python_client.py", server.kubeconfig, part],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True)

    def told(self):
        """The next thing that it tells; its own error is a LabError."""
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.process.wait(timeout=30)
        self.errors.seek(0)
        words = self.errors.read().strip().splitlines()
        raise LabError(f"Python client, {self.part}: " + " / ".join(words[-8:]))

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()


def python(server):
    for part in ("crud", "elect"):
        Python(server, part).told()
        say(f"Python client: {part}")
    followed = Python(server, "follow")
    restarts = 0
    while "done" not in (told := followed.told()):
        followed.go_on()
        # Every second time without warning, else as systemd ends it.
        if hasattr(server, "restart"):
            server.restart(hard=restarts % 2 == 0)
            restarts += 1
    say(f"Python client: an informer and a watch through {restarts} restarts; {told['watches']} watches, {told['relists']} lists")


CHART = {
    "Chart.yaml": "apiVersion: v2\nname: rackware\nversion: {version}\n",
    "values.yaml": "colour: red\nreplicas: 2\n",
    "crds/widgets.yaml": WIDGET_CRD,
    "templates/config.yaml": """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Release.Name }}-settings
  labels: {app.kubernetes.io/managed-by: {{ .Release.Service }}}
data:
  colour: {{ .Values.colour | quote }}
  revision: {{ .Release.Revision | quote }}
""",
    "templates/secret.yaml": """\
apiVersion: v1
kind: Secret
metadata: {name: {{ .Release.Name }}-key}
stringData: {key: {{ .Values.colour | quote }}}
""",
    "templates/widget.yaml": """\
apiVersion: example.com/v1
kind: Widget
metadata: {name: {{ .Release.Name }}}
spec:
  colour: {{ .Values.colour }}
  replicas: {{ .Values.replicas }}
  size: 3cm
""",
    "templates/hardware.yaml": """\
apiVersion: metal3.io/v1alpha1
kind: HardwareData
metadata: {name: {{ .Release.Name }}}
spec: {hardware: {hostname: {{ .Values.colour }}}}
""",
    "templates/extra.yaml": """\
{{- if ne .Values.colour "red" }}
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}-extra}
{{- end }}
""",
    "templates/hook.yaml": """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Release.Name }}-hook
  annotations: {helm.sh/hook: "pre-install,pre-upgrade", helm.sh/hook-delete-policy: before-hook-creation}
data: {ran: "yes"}
""",
    "templates/NOTES.txt": "Colour is {{ .Values.colour }}.\n",
}


def helm(server):
    for minor in VERSIONS:
        programs = tools.clients(minor)
        with tempfile.TemporaryDirectory() as folder:
            for name, text in CHART.items():
                path = Path(folder, "chart", name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text.replace("{version}", "1.0.0") if name == "Chart.yaml" else text)
            env = os.environ | {"HOME": folder, "KUBECONFIG": str(server.kubeconfig)}
            run = lambda name, *words: check_output([programs / name, *words], deadline=120, env=env, cwd=folder)
            one_chart(run, f"release-{minor}")
            version = run("helm", "version", "--short").strip()
        say(f"helm {version}: installed, upgraded, rolled back, uninstalled")


def expect(have, wanted, what):
    if have != wanted:
        raise LabError(f"{what}: {have!r} instead of {wanted!r}")


def one_chart(run, space):
    """A chart's life: hooks, crds, custom resources, a secret, an upgrade that fails, one that goes, back again, gone."""
    get = lambda kind, name, path: run("kubectl", "get", kind, name, "-n", space, "--ignore-not-found", "-o", f"jsonpath={path}")
    installed = run("helm", "install", "web", "chart", "-n", space, "--create-namespace", "--wait", "--timeout", "60s")
    if "STATUS: deployed" not in installed or "Colour is red." not in installed:
        raise LabError(f"helm install says: {installed}")
    expect(get("cm", "web-settings", "{.data.colour}/{.data.revision}"), "red/1", "the ConfigMap after install")
    expect(get("widget", "web", "{.spec.colour}/{.spec.replicas}"), "red/2", "the custom resource after install")
    expect(get("hd", "web", "{.spec.hardware.hostname}"), "red", "the HardwareData after install")
    expect(get("cm", "web-hook", "{.data.ran}"), "yes", "the hook")
    expect(get("secret", "sh.helm.release.v1.web.v1", "{.type}"), "helm.sh/release.v1", "helm's own record")
    # A person's change beside it stays, because helm changes only what the chart changes.
    run("kubectl", "label", "widget", "web", "-n", space, "by-hand=yes")
    run("kubectl", "patch", "widget", "web", "-n", space, "--type=merge", "-p", '{"spec":{"parts":[{"name":"bolt","count":1}]}}')
    run("helm", "upgrade", "web", "chart", "-n", space, "--set", "colour=blue", "--wait", "--timeout", "60s")
    expect(get("cm", "web-settings", "{.data.colour}/{.data.revision}"), "blue/2", "the ConfigMap after upgrade")
    expect(get("widget", "web", "{.spec.colour}/{.metadata.labels.by-hand}/{.spec.parts[0].name}"), "blue/yes/bolt", "the custom resource after upgrade")
    expect(get("secret", "web-key", "{.data.key}"), "Ymx1ZQ==", "the secret after upgrade")
    expect(get("cm", "web-extra", "{.metadata.name}"), "web-extra", "what the upgrade adds")
    try:
        run("helm", "upgrade", "web", "chart", "-n", space, "--set", "colour=mauve", "--wait", "--timeout", "60s")
    except LabError as error:
        if "Unsupported value" not in str(error) or "mauve" not in str(error):
            raise LabError(f"an upgrade against the schema fails with other words: {error}") from error
    else:
        raise LabError("an upgrade against the schema went through")
    run("helm", "rollback", "web", "1", "-n", space, "--wait", "--timeout", "60s")
    expect(get("widget", "web", "{.spec.colour}"), "red", "the custom resource after rollback")
    expect(get("cm", "web-extra", "{.metadata.name}"), "", "what the upgrade added, after rollback")
    history = json.loads(run("helm", "history", "web", "-n", space, "-o", "json"))
    expect([entry["status"] for entry in history], ["superseded", "superseded", "failed", "deployed"], "helm history")
    expect([item["name"] for item in json.loads(run("helm", "list", "-A", "-o", "json"))], ["web"], "helm list")
    if "kind: Widget" not in run("helm", "get", "manifest", "web", "-n", space):
        raise LabError("helm get manifest has no Widget")
    run("helm", "uninstall", "web", "-n", space, "--wait", "--timeout", "60s")
    expect(run("kubectl", "get", "cm,secret,widget,hd", "-n", space, "-o", "name").split(), ["configmap/web-hook"], "what uninstall leaves")
    # The kinds of a chart's crds folder stay, as helm documents; the next helm begins without them.
    run("kubectl", "delete", "crd", "widgets.example.com", "--timeout=60s")
    run("kubectl", "delete", "namespace", space, "--timeout=60s")


def go(server):
    for part in check_output([tools.go_controller(), server.kubeconfig], deadline=300).splitlines():
        say(f"client-go: {part}")


PARTS = {"python": python, "helm": helm, "go": go}


def main():
    names = sys.argv[1:] or ["python", "helm"]
    if any(name not in PARTS for name in names):
        print(__doc__.strip(), file=sys.stderr)
        sys.exit(2)
    for name in names:
        kind = servers.Peer if os.environ.get("PEER") else servers.Slipway
        with tempfile.TemporaryDirectory() as folder, kind(Path(folder)) as server:
            if isinstance(server, servers.Peer):
                servers.install_kinds(server)
            PARTS[name](server)


if __name__ == "__main__":
    try:
        main()
    except LabError as error:
        fail(error)
