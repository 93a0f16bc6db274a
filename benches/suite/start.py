"""Start to first answer, and memory when idle."""

import base64
import contextlib
import json
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from pathlib import Path

from appliance import binary
from figures import Figure, median
from isolation import ADDRESS, BRIDGE
from wait import LabError, check_output, tail, wait_for

API = (ADDRESS, 8443)
# Objects in the database of the starts that count: a small rack's worth.
OBJECTS = 500
STARTS, FRESH_STARTS = 11, 5
IDLE_SECONDS = 5
GOAL_SECONDS, GOAL_MB = 0.1, 30

CONFIG = """data_dir = "{data}"
[api]
listen = "{address}:8443"
names = ["{address}"]
[boot]
listen = "{address}:80"
tftp = "{address}:69"
[[network]]
name = "bench"
interface = "{bridge}"
subnet = "172.22.0.0/24"
pool = ["172.22.0.100-172.22.0.199"]
server = "{address}"
"""


@contextlib.contextmanager
def work_folder():
    """A folder on the disk, not in memory, that ends with the block."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="slipway-bench-"))
    try:
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Appliance:
    """`slipway serve` with a data folder, for as long as a `with` block."""

    def __init__(self, folder, log):
        self.folder, self.log, self.process = Path(folder), Path(log), None
        self.config = self.folder / "slipway.toml"
        self.config.write_text(CONFIG.format(data=self.folder / "data", address=ADDRESS, bridge=BRIDGE))

    def __enter__(self):
        with self.log.open("ab") as log:
            self.began = time.monotonic()
            self.process = subprocess.Popen([binary(), "serve", "--config", self.config], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=subprocess.STDOUT)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def first_answer(self, deadline=20):
        """Seconds from before `exec` until GET /healthz was answered with 200."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        while time.monotonic() - self.began < deadline:
            try:
                with socket.create_connection(API, timeout=2) as plain, context.wrap_socket(plain) as tls:
                    tls.sendall(b"GET /healthz HTTP/1.1\r\nHost: slipway\r\nConnection: close\r\n\r\n")
                    if tls.recv(4096).startswith(b"HTTP/1.1 200 "):
                        return time.monotonic() - self.began
            except OSError:
                pass
            if self.process.poll() is not None:
                break
            time.sleep(0.0005)
        raise LabError("slipway does not answer: " + " / ".join(tail(self.log, 3)))

    def memory(self):
        """Megabytes by kind, from /proc."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return {name: int(size) * 1024 / 1e6 for name, size in re.findall(r"(VmRSS|VmHWM|RssAnon|RssFile):\s+(\d+) kB", text)}

    def client(self):
        """TLS as the administrator, with the certificate of the kubeconfig that slipway prints."""
        text = check_output([binary(), "kubeconfig", "--config", self.config], deadline=20)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        pem = self.folder / "admin.pem"
        parts = [base64.b64decode(re.search(rf"{key}: ?\"?([A-Za-z0-9+/=]+)", text)[1])
                 for key in ("client-certificate-data", "client-key-data")]
        pem.write_bytes(b"\n".join(parts))
        context.load_cert_chain(pem)
        return context


def fill(appliance, count):
    """Makes Secrets through the API, one connection."""
    import http.client
    connection = http.client.HTTPSConnection(*API, context=appliance.client(), timeout=20)
    for number in range(count):
        body = json.dumps({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"bench-{number}", "namespace": "default"},
                           "data": {"value": base64.b64encode(bytes(500)).decode()}})
        connection.request("POST", "/api/v1/namespaces/default/secrets", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        words = answer.read()
        if answer.status != 201:
            raise LabError(f"POST of a Secret: {answer.status} {words[:200]}")


def show(times):
    return f"{median(times) * 1000:.0f} ms (worst {max(times) * 1000:.0f} ms)"


def run(part, results):
    log = results / "start-slipway.log"
    log.write_bytes(b"")
    with work_folder() as folder:
        fresh = []
        for _ in range(FRESH_STARTS):
            shutil.rmtree(folder / "data", ignore_errors=True)
            with Appliance(folder, log) as appliance:
                fresh.append(appliance.first_answer())
        with Appliance(folder, log) as appliance:
            appliance.first_answer()
            wait_for("the namespace `default`", lambda: fill(appliance, OBJECTS) is None, 20)
        again = []
        for _ in range(STARTS):
            with Appliance(folder, log) as appliance:
                again.append(appliance.first_answer())
        goal = f"{GOAL_SECONDS} s"
        part.add(Figure("start to first HTTPS answer, data there", goal, show(again), "",
                        median(again) <= GOAL_SECONDS, f"median of {len(again)} starts, {OBJECTS} objects in the database"))
        part.add(Figure("start to first HTTPS answer, first start ever", goal, show(fresh), "",
                        median(fresh) <= GOAL_SECONDS, f"median of {len(fresh)} starts; CA, keys and database are made"))
        with Appliance(folder, log) as appliance:
            appliance.first_answer()
            time.sleep(IDLE_SECONDS)
            memory = appliance.memory()
        part.add(Figure("resident memory, idle", f"{GOAL_MB} MB", f"{memory['VmRSS']:.1f} MB", "", memory["VmRSS"] <= GOAL_MB,
                        f"VmRSS {IDLE_SECONDS} s after the first answer; of it anonymous {memory['RssAnon']:.1f} MB; "
                        f"highest so far {memory['VmHWM']:.1f} MB"))
