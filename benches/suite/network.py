"""DHCP, TFTP and boot HTTP beside their peers."""

import os
import re
import subprocess
import time
from pathlib import Path

from appliance import binary
from figures import Figure, median
from isolation import ADDRESS
from start import Appliance, work_folder
from wait import LabError, short, tail, wait_for

HERE = Path(__file__).resolve().parents[1]
FILE_MIB = 1024
ROUNDS = 5
NGINX_PORT = 8088
# Of nginx's throughput.
HTTP_SHARE = 0.9

NGINX = """user root;
daemon off;
pid {work}/nginx.pid;
error_log {work}/nginx.log;
worker_processes auto;
events {{}}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    server {{ listen {address}:{port}; location /boot/files/ {{ alias {folder}/; }} }}
}}
"""


def script(part, name, results, environment=None):
    """Runs benches/NAME/run; its output also goes to a log."""
    log = results / f"{name}-run.log"
    try:
        done = subprocess.run([HERE / name / "run", binary()], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              stdin=subprocess.DEVNULL, timeout=part.left(), env=os.environ | (environment or {}))
    except subprocess.TimeoutExpired as error:
        log.write_bytes(error.stdout or b"")
        raise LabError(f"benches/{name}/run did not end in time") from error
    log.write_text(done.stdout)
    print(done.stdout, flush=True)
    if done.returncode != 0:
        raise LabError(f"benches/{name}/run: status {done.returncode}: {short(done.stdout[-500:])}")
    return done.stdout


def dhcp(part, results):
    text = script(part, "dhcp", results, {"BENCH_VERBOSE": "1"})
    found = re.findall(r"dhcp_four_way_per_second(?:_on_(\d+)_percent_of_a_processor)? slipway=(\d+) kea=(\d+) .*\n  (.*)", text)
    if not found:
        raise LabError(f"benches/dhcp/run gave no figure: {short(text)}")
    for percent, ours, kea, limits in found:
        ours, kea = int(ours), int(kea)
        where = f"each server held to {percent} % of a processor" if percent else "processors shared with perfdhcp"
        part.add(Figure(f"DHCP four-way exchanges a second under 1 % drops, {where}", "2 × Kea",
                        f"{ours:,}/s ({ours / max(kea, 1):.2f} × Kea)", f"Kea {kea:,}/s", ours >= 2 * kea,
                        f"perfdhcp over a veth pair; every lease on disk before its ACK; {limits}"))
    cost = re.search(r"dhcp_processor_microseconds_an_exchange_at_(\d+)_per_second slipway=([\d.]+) kea=([\d.]+)", text)
    if cost:
        rate, ours, kea = int(cost[1]), float(cost[2]), float(cost[3])
        part.add(Figure(f"DHCP: processor time of the server for an exchange, at {rate:,}/s", "half of Kea's",
                        f"{ours:.0f} µs ({ours / max(kea, 0.1):.2f} of Kea's)", f"Kea {kea:.0f} µs", 2 * ours <= kea,
                        "user and system time of all its threads, perfdhcp as above"))


def tftp(part, results):
    text = script(part, "tftp", results)
    rows = re.findall(r"(?m)^(\S+) +(\d+) +(\d+) +(\d+) \((dnsmasq)\)$", text)
    if not rows:
        raise LabError(f"benches/tftp/run gave no figure: {short(text)}")
    for client, clients, ours, theirs, peer in rows:
        ours, theirs = int(ours), int(theirs)
        part.add(Figure(f"TFTP, {client}, {clients} client{'s' if clients != '1' else ''}", f"{peer}'s", f"{ours} MB/s",
                        f"{peer} {theirs} MB/s", ours >= theirs, "32 MiB each, best of 3 in turns, bytes compared"))


def http(part, results):
    log = results / "http-slipway.log"
    log.write_bytes(b"")
    with work_folder() as folder:
        boot = folder / "data/boot"
        boot.mkdir(parents=True)
        with (boot / "initrd").open("wb") as file:
            for _ in range(FILE_MIB):
                file.write(os.urandom(1 << 20))
        (folder / "nginx.conf").write_text(NGINX.format(work=folder, address=ADDRESS, port=NGINX_PORT, folder=boot))
        nginx = subprocess.Popen(["nginx", "-c", folder / "nginx.conf"], stdin=subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            with Appliance(folder, log):
                urls = {"slipway": f"http://{ADDRESS}/boot/files/initrd", "nginx": f"http://{ADDRESS}:{NGINX_PORT}/boot/files/initrd"}
                for name, url in urls.items():
                    # Also warms the page cache up.
                    wait_for(f"{name} to serve the file", lambda: fetch(url, 1), 30, every=0.2)
                for clients in (1, 4):
                    rates = {name: [] for name in urls}
                    for _ in range(ROUNDS):
                        for name, url in urls.items():
                            rates[name].append(fetch(url, clients))
                    ours, theirs = median(rates["slipway"]), median(rates["nginx"])
                    part.add(Figure(f"boot HTTP, {clients} client{'s' if clients != 1 else ''}", f"{HTTP_SHARE} of nginx's",
                                    f"{ours:,.0f} MB/s ({ours / theirs:.2f} of nginx's)", f"nginx {theirs:,.0f} MB/s",
                                    ours >= HTTP_SHARE * theirs, f"{FILE_MIB} MiB to curl, median of {ROUNDS} in turns"))
        finally:
            nginx.terminate()
            nginx.wait(timeout=20)
        print("\n".join(tail(folder / "nginx.log", 5)))


def fetch(url, clients):
    """MB/s of `clients` curls at once, by the time until the last has ended."""
    began = time.monotonic()
    running = [subprocess.Popen(["curl", "--silent", "--fail", "--max-time", "60", "--output", "/dev/null", "--write-out", "%{size_download}", url],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) for _ in range(clients)]
    sizes = [process.communicate(timeout=90)[0] for process in running]
    took = time.monotonic() - began
    if any(process.returncode for process in running) or set(sizes) != {str(FILE_MIB << 20)}:
        raise LabError(f"curl {url}: status {[process.returncode for process in running]}, sizes {sizes}")
    return (FILE_MIB << 20) * clients / 1e6 / took
