"""The API under a rack's load, beside etcd."""

import base64
import json
import os
import re
import subprocess
import time
from pathlib import Path

from appliance import binary
from figures import Figure
from isolation import ADDRESS
from start import Appliance, work_folder
from wait import LabError, check_output, short, tail, wait_for

TOP = Path(__file__).resolve().parents[2]
HOSTS, WATCHERS, WRITERS, IDLE_WATCHES = 5000, 100, 64, 7000
# As etcd's performance page has its benchmark: one client, and a thousand. As many as ours are tried too.
ETCD_WRITERS = (1, WRITERS, 1000)
GOALS = {"list": 100, "get": 1, "watch": 10, "creates": 10_000, "etcd": 5, "memory": 128}


def build(results):
    """The load generator, made once and kept."""
    folder = results / "api-load"
    check_output(["cargo", "build", "--quiet", "--release", "--locked", "--manifest-path", TOP / "benches/api/Cargo.toml",
                  "--target-dir", folder], deadline=900)
    return folder / "release/slipway-bench-api"


def load(part, address, folder, phase, count):
    """Runs a phase; its figures."""
    command = [os.environ["SLIPWAY_BENCH_API"], address, str(folder), phase, str(count)]
    try:
        done = subprocess.run(command, text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=part.left(), check=False)
    except subprocess.TimeoutExpired as error:
        raise LabError(f"the phase {phase} did not end in time") from error
    if done.returncode != 0:
        raise LabError(f"the phase {phase}: {short(done.stderr)}")
    print(phase, done.stdout, flush=True)
    return json.loads(done.stdout)


def credentials(appliance):
    """ca.pem beside the admin.pem that `client` writes."""
    appliance.client()
    text = check_output([binary(), "kubeconfig", "--config", appliance.config], deadline=20)
    ca = base64.b64decode(re.search(r'certificate-authority-data: ?"?([A-Za-z0-9+/=]+)', text)[1])
    (appliance.folder / "ca.pem").write_bytes(ca)


def etcd(part, folder, results):
    """Puts a second of Debian's etcd, by number of writers."""
    log = results / "api-etcd.log"
    url = "http://127.0.0.1:2379"
    with log.open("wb") as out:
        process = subprocess.Popen(["etcd", "--data-dir", folder / "etcd", "--log-level", "error", "--listen-client-urls", url,
                                    "--advertise-client-urls", url, "--listen-peer-urls", "http://127.0.0.1:2380"],
                                   stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    try:
        def answers():
            if process.poll() is not None:
                raise LabError("etcd ended: " + " / ".join(tail(log, 3)))
            return subprocess.run([os.environ["SLIPWAY_BENCH_API"], "127.0.0.1:2379", "-", "etcd", "1"], timeout=20,
                                  capture_output=True, check=False).returncode == 0
        wait_for("etcd", answers, 30)
        return {writers: load(part, "127.0.0.1:2379", "-", "etcd", writers)["rate"] for writers in ETCD_WRITERS}
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def show(spread):
    middle, most, worst = spread
    return f"{middle:.2f} ms (99 % {most:.2f} ms, worst {worst:.1f} ms)"


def run(part, results):
    log = results / "api-slipway.log"
    log.write_bytes(b"")
    address = f"{ADDRESS}:8443"
    with work_folder() as folder:
        with Appliance(folder, log) as appliance:
            appliance.first_answer()
            credentials(appliance)
            filled = load(part, address, folder, "fill", HOSTS)
            read = load(part, address, folder, "read", HOSTS)
            hosts = f"{HOSTS:,} BareMetalHosts of {filled['bytes'] / 1000:.1f} kB"
            for name, what, size in [("get", "API: get a host", ""), ("list", "API: list all hosts", f", {read['list_bytes'] / 1e6:.1f} MB")]:
                part.add(Figure(what, f"{GOALS[name]} ms", show(read[name]), "", read[name][0] <= GOALS[name],
                                f"median over HTTPS, one after the other, {hosts}{size}"))
            part.add(Figure("API: all hosts as kubectl's table", "", show(read["table"]), "", None, f"{read['table_bytes'] / 1e6:.1f} MB"))
            seen = load(part, address, folder, "watch", WATCHERS)
            part.add(Figure(f"API: one write to the last of {WATCHERS} watchers", f"{GOALS['watch']} ms", show(seen["last"]), "",
                            seen["last"][0] <= GOALS["watch"], f"median of 100 patches, from before the request; their answers took {show(seen['answer'])}"))
            memory = appliance.memory()
            part.add(Figure("API: memory with these hosts", f"{GOALS['memory']} MB", f"{memory['VmRSS']:.1f} MB", "",
                            memory["VmRSS"] <= GOALS["memory"],
                            f"VmRSS after the above, {hosts}; highest {memory['VmHWM']:.1f} MB"))
            created = load(part, address, folder, "create", WRITERS)
            idle(part, appliance, address, folder, appliance.memory())
        puts = etcd(part, folder, results)
        part.add(Figure("API: durable creates a second", f"{GOALS['creates']:,}/s", f"{created['rate']:,.0f}/s", "",
                        created["rate"] >= GOALS["creates"],
                        f"{WRITERS} writers of ConfigMaps of 256 bytes over HTTPS, {show(created['latency'])}"))
        for writers, rate in puts.items():
            # With one client its benchmark runs when nothing else is said; the thousand are what its performance page adds.
            goal = f"{GOALS['etcd']} × etcd" if writers == 1 else ""
            share = created["rate"] / rate
            part.add(Figure(f"API: those creates beside etcd's puts, {writers:,} client{'s' if writers > 1 else ''}", goal,
                            f"{share:.2f} × etcd", f"etcd {rate:,.0f}/s", share >= GOALS["etcd"] if goal else None,
                            "etcd over plain HTTP/2, keys of 8 and values of 256 bytes"
                            + (", as its benchmark has it by default" if writers == 1 else "")))


def idle(part, appliance, address, folder, before):
    """Memory of many watches that nothing happens to."""
    command = [os.environ["SLIPWAY_BENCH_API"], address, str(folder), "idle", str(IDLE_WATCHES)]
    process = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        if not process.stdout.readline():
            raise LabError("the idle watches could not be opened")
        time.sleep(1)
        after = appliance.memory()
    finally:
        process.kill()
        process.wait()
    each = (after["VmRSS"] - before["VmRSS"]) * 1000 / IDLE_WATCHES
    part.add(Figure(f"API: {IDLE_WATCHES:,} idle watches", "", f"{each:.1f} kB each", "", None,
                    f"growth of VmRSS from {before['VmRSS']:.1f} to {after['VmRSS']:.1f} MB, 200 watches a connection"))
