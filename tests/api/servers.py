"""The two API servers that clients are tried against: Slipway, and a real kube-apiserver beside it.

    python3 tests/api/servers.py peer FOLDER      runs the real one in the foreground and prints its kubeconfig's path
    python3 tests/api/servers.py slipway FOLDER   the same of Slipway

Both listen on a free port of 127.0.0.1, keep everything below FOLDER, and end with Ctrl-C or SIGTERM.
"""

import base64
import http.client
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))

import programs  # noqa: E402
import tools  # noqa: E402
from wait import GiveUp, LabError, check_output, fail, say, tail, wait_for  # noqa: E402

# Those that clients notice: deletion of a namespace empties it, dependents go with their owners, roles with a rule for
# aggregation get theirs, and a namespace has its ServiceAccount.
CONTROLLERS = ["namespace-controller", "garbage-collector-controller", "serviceaccount-controller",
               "clusterrole-aggregation-controller", "serviceaccount-token-controller"]
# What the real API server consists of.
PROGRAMS = ["etcd", "kube-apiserver", "kube-controller-manager"]
# As Slipway names the administrator.
ADMIN = "slipway-admin"


def free_port():
    """A port below those that the kernel gives to outgoing connections: none takes it while its server is started again."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def kubeconfig(server, ca, user):
    """A kubeconfig as JSON, which every client reads as YAML."""
    return json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "judge",
        "clusters": [{"name": "judge", "cluster": {"server": server, "certificate-authority-data": base64.b64encode(ca).decode()}}],
        "users": [{"name": "admin", "user": user}],
        "contexts": [{"name": "judge", "context": {"cluster": "judge", "user": "admin"}}]})


class Server:
    """A process tree with a kubeconfig. `name` is what reports call it."""

    name = "server"

    def __init__(self, folder):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.kubeconfig = self.folder / "kubeconfig"
        self.processes = {}
        self.url = None

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def spawn(self, name, command, **options):
        log = (self.folder / f"{name}.log").open("ab")
        # It ends when this process does, however that ends.
        command = ["setpriv", "--pdeathsig", "TERM", *(str(part) for part in command)]
        self.processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options)
        log.close()
        return self.processes[name]

    def ready(self, name, what, check, deadline=120):
        def checked():
            if self.processes[name].poll() is not None:
                raise GiveUp(f"{name} ended with status {self.processes[name].returncode}: "
                             + " / ".join(tail(self.folder / f"{name}.log", 4)))
            return check()
        return wait_for(what, checked, deadline, every=0.1)

    def stop(self, hard=False):
        """Ends every process, the last started first; `hard` is kill -9."""
        for process in reversed(self.processes.values()):
            if process.poll() is None:
                process.kill() if hard else process.terminate()
                try:
                    process.wait(timeout=30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self.processes.clear()

    def client(self, identity=None, trust=None):
        """A connection to the API as the administrator, unless `identity` is a kubeconfig's user."""
        return Client(self.kubeconfig, identity)


class Client:
    """Plain HTTPS with the identity of a kubeconfig."""

    def __init__(self, path, identity=None):
        config = load_config(path)
        cluster = config["clusters"][0]["cluster"]
        user = config["users"][0]["user"] if identity is None else identity
        self.url = urlsplit(cluster["server"])
        self.context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        self.headers = {}
        if "token" in user:
            self.headers["Authorization"] = f"Bearer {user['token']}"
        if "client-certificate-data" in user:
            pair = Path(path).with_suffix(".pem")
            pair.write_bytes(base64.b64decode(user["client-certificate-data"]) + b"\n" + base64.b64decode(user["client-key-data"]))
            self.context.load_cert_chain(pair)
        self.connection = None

    def request(self, method, path, body=None, headers=None, deadline=60):
        """(status, headers, body as bytes). An object as body is sent as JSON."""
        headers = self.headers | (headers or {})
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
            headers.setdefault("Content-Type", "application/json")
        for attempt in (1, 2):
            if self.connection is None:
                self.connection = http.client.HTTPSConnection(self.url.hostname, self.url.port, context=self.context, timeout=deadline)
            try:
                self.connection.request(method, path, body, headers)
                answer = self.connection.getresponse()
                return answer.status, answer.headers, answer.read()
            except (http.client.HTTPException, ConnectionError, ssl.SSLEOFError):
                # A connection that was kept open may have ended meanwhile.
                self.connection.close()
                self.connection = None
                if attempt == 2:
                    raise

    def json(self, method, path, body=None, headers=None):
        """The answer's body as JSON; anything but success is a LabError with the server's words."""
        status, _, answer = self.request(method, path, body, headers)
        if status >= 300:
            raise LabError(f"{method} {path}: {status}: {answer.decode(errors='replace')[:500]}")
        return json.loads(answer)


def load_config(path):
    """A kubeconfig, which is JSON or the few lines of YAML that kubectl can turn into it."""
    text = Path(path).read_text()
    if text.startswith("{"):
        return json.loads(text)
    return json.loads(check_output([tools.kubectl(), "--kubeconfig", path, "config", "view", "--raw", "-o", "json"], deadline=30))


def install_kinds(peer):
    """Slipway's own kinds into a real API server, as `slipway crds` prints them."""
    crds = Path(os.environ["SLIPWAY_CRDS"]).read_text() if "SLIPWAY_CRDS" in os.environ else check_output([binary(), "crds"], deadline=20)
    kubectl = [tools.kubectl(), "--kubeconfig", peer.kubeconfig]
    check_output([*kubectl, "apply", "--server-side", "-f", "-"], input=crds)
    check_output([*kubectl, "wait", "crd", "--all", "--for=condition=established", "--timeout=30s"])


def binary():
    """The binary that is tested, or $SLIPWAY."""
    path = Path(os.environ.get("SLIPWAY") or tools.TOP / "target/lab/slipway")
    if not path.exists():
        raise LabError(f"{path} does not exist: run `make lab`")
    return path


class Peer(Server):
    """etcd, kube-apiserver and the controllers that clients notice, as a cluster without a node."""

    name = "kube-apiserver"

    def start(self):
        built = programs.programs(*PROGRAMS)
        self.certificates()
        # A client URL per server, so that several may run beside each other.
        client, peer, port = free_port(), free_port(), free_port()
        self.spawn("etcd", [built["etcd"], "--data-dir", self.folder / "etcd", "--name", "judge", "--unsafe-no-fsync",
                            "--listen-client-urls", f"http://127.0.0.1:{client}", "--advertise-client-urls", f"http://127.0.0.1:{client}",
                            "--listen-peer-urls", f"http://127.0.0.1:{peer}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
                            "--initial-cluster", f"judge=http://127.0.0.1:{peer}"])
        pki, self.url = self.folder / "pki", f"https://127.0.0.1:{port}"
        self.spawn("kube-apiserver", [
            built["kube-apiserver"], f"--etcd-servers=http://127.0.0.1:{client}", "--bind-address=127.0.0.1", f"--secure-port={port}",
            "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
            f"--tls-cert-file={pki}/server.crt", f"--tls-private-key-file={pki}/server.key", f"--client-ca-file={pki}/ca.crt",
            "--authorization-mode=RBAC", "--anonymous-auth=true", "--allow-privileged",
            f"--service-account-key-file={pki}/sa.pub", f"--service-account-signing-key-file={pki}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=10.96.0.0/16",
            "--enable-priority-and-fairness=false", "--profiling=false", "--v=1"])
        self.kubeconfig.write_text(kubeconfig(self.url, (pki / "ca.crt").read_bytes(), {
            f"client-{name}-data": base64.b64encode((pki / f"admin.{end}").read_bytes()).decode()
            for name, end in (("certificate", "crt"), ("key", "key"))}))
        self.ready("kube-apiserver", "kube-apiserver to be ready", lambda: self.client().request("GET", "/readyz")[0] == 200)
        self.spawn("kube-controller-manager", [
            built["kube-controller-manager"], f"--kubeconfig={self.kubeconfig}", "--bind-address=127.0.0.1", f"--secure-port={free_port()}",
            f"--controllers={','.join(CONTROLLERS)}", "--leader-elect=false", "--use-service-account-credentials=false",
            f"--service-account-private-key-file={pki}/sa.key", f"--root-ca-file={pki}/ca.crt", f"--cert-dir={self.folder}/controllers",
            "--concurrent-gc-syncs=4", "--concurrent-namespace-syncs=4", "--v=1"])
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        self.ready("kube-controller-manager", "the controllers to work", lambda: self.client().request("GET", account)[0] == 200)

    def certificates(self):
        """A CA, the server's certificate and the key that signs tokens of ServiceAccounts, by openssl."""
        pki = self.folder / "pki"
        if (pki / "sa.pub").exists():
            return
        pki.mkdir(exist_ok=True)
        run = lambda *words: check_output(["openssl", *words], deadline=60, cwd=pki)
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"]
        run("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=judge-ca",
            "-addext", "keyUsage=critical,keyCertSign,digitalSignature")
        run("req", "-x509", "-CA", "ca.crt", "-CAkey", "ca.key", *key, "-keyout", "server.key", "-out", "server.crt",
            "-subj", "/CN=kube-apiserver", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc",
            "-addext", "basicConstraints=critical,CA:FALSE")
        run("req", "-x509", "-CA", "ca.crt", "-CAkey", "ca.key", *key, "-keyout", "admin.key", "-out", "admin.crt",
            "-subj", f"/O=system:masters/CN={ADMIN}", "-addext", "basicConstraints=critical,CA:FALSE",
            "-addext", "extendedKeyUsage=clientAuth")
        run("genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", "sa.key")
        run("pkey", "-in", "sa.key", "-pubout", "-out", "sa.pub")


class Slipway(Server):
    """`slipway serve` on loopback, without a network to serve. Data stays over `stop` and `start`, so does the port. `more` is
    the rest of its configuration."""

    name = "slipway"

    def __init__(self, folder, more=""):
        super().__init__(folder)
        self.more = more

    def start(self):
        program = binary()
        config = self.folder / "slipway.toml"
        if not config.exists():
            port, boot = free_port(), free_port()
            config.write_text(f'data_dir = "{self.folder}/data"\n[api]\nlisten = "127.0.0.1:{port}"\n'
                              f'[boot]\nlisten = "127.0.0.1:{boot}"\ntftp = "127.0.0.1:{boot}"\n{self.more}')
        self.spawn("slipway", [program, "serve", "--config", config])

        def answers():
            self.kubeconfig.write_text(check_output([program, "kubeconfig", "--config", config], deadline=20))
            return self.client().request("GET", "/readyz")[0] == 200
        self.ready("slipway", "Slipway to be ready", answers, 120)
        self.url = self.client().url.geturl()

    def restart(self, hard=False):
        """Ends and starts it again, same data, same port."""
        self.stop(hard)
        self.start()


KINDS = {"peer": Peer, "slipway": Slipway}


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in KINDS:
        print(__doc__.strip(), file=sys.stderr)
        sys.exit(2)
    # As Ctrl-C: what was started is ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with KINDS[sys.argv[1]](Path(sys.argv[2]).resolve()) as server:
            say(f"{server.name} is ready at {server.url}")
            print(server.kubeconfig, flush=True)
            signal.pause()
    except KeyboardInterrupt:
        pass
    except LabError as error:
        fail(error)


if __name__ == "__main__":
    main()
