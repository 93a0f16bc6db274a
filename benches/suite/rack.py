"""Machines: power-on to inventory, image on the disk, the agent's memory, the ramdisk's size."""

import json
import os
import re
import subprocess
import threading
import time
from pathlib import Path

import peer
from bmcs import define, virsh
from figures import Figure, median
from images import random_image, sha256
from isolation import ADDRESS, BRIDGE
from lab import Machine, Rack, Slipway
from life import order
from tools import prepared
from wait import GiveUp, LabError, say, tail, wait_for
from wire import Wire

IMAGE_PORT = 8082
PAUSED = "baremetalhost.metal3.io/paused"
GOAL_AFTER_FIRMWARE = 15
GOAL_RAMDISK_MB = 40
GOAL_MEMORY_MB = 150
# Two sizes are "the same" memory when they differ by no more than this share: the allocator rounds.
SAME = 0.1
# An image is not begun with less than this left, in seconds.
ENOUGH = 130
# For all of the peer's images together.
PEER_SECONDS = 260

NGINX = """user root;
daemon off;
pid {work}/nginx.pid;
error_log {work}/nginx.log;
events {{}}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    server {{ listen {address}:{port}; root {folder}; location = /ready {{ return 204; }} }}
}}
"""


class Watch(threading.Thread):
    """`kubectl get KIND --watch`: every version of every object with the monotonic time at which it came."""

    def __init__(self, slipway, kind, log):
        super().__init__(daemon=True)
        self.kind, self.seen = kind, []
        command = [prepared("KUBECTL"), "--kubeconfig", slipway.kubeconfig, "get", kind, "-n", "default", "--watch", "-o", "json"]
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                                            env=os.environ | {"KUBECACHEDIR": str(slipway.rack.work / f"watch-{kind}"), "HOME": str(slipway.rack.work)})
        self.start()

    def run(self):
        decoder, text = json.JSONDecoder(), ""
        while data := os.read(self.process.stdout.fileno(), 1 << 16):
            now = time.monotonic()
            text += data.decode()
            while text := text.lstrip():
                try:
                    value, end = decoder.raw_decode(text)
                except json.JSONDecodeError:
                    break
                text = text[end:]
                self.seen.append((now, value))

    def of(self, name):
        """Versions of one object, oldest first."""
        if self.process.poll() is not None:
            raise GiveUp(f"kubectl get {self.kind} --watch ended with status {self.process.returncode}")
        return [(when, value) for when, value in list(self.seen) if value["metadata"]["name"] == name]


class PowerOn(threading.Thread):
    """The moment at which a machine's process was first there: libvirt writes its pid file."""

    def __init__(self, name):
        super().__init__(daemon=True)
        self.file, self.when = Path(f"/run/libvirt/qemu/{name}.pid"), None
        self.start()

    def run(self):
        while not self.file.exists():
            time.sleep(0.02)
        self.when = time.monotonic()


class Bench:
    """The rack with Slipway, and what looks on."""

    def __init__(self, part, logs):
        self.part = part
        # The first machine is there from the start, because its BMC decides what emulators run.
        self.rack = Rack(logs, [Machine("bench-1")])
        self.folder = self.rack.work / "images"
        self.nginx = None
        self.base = f"http://{ADDRESS}:{IMAGE_PORT}"

    def serve_images(self):
        """Debian 12 and the random images, from nginx."""
        self.folder.mkdir()
        for path in prepared("IMAGE").iterdir():
            if path.suffix in (".raw", ".qcow2"):
                (self.folder / path.name).symlink_to(path)
        for mib in (500, 2000):
            random_image(self.folder / f"random-{mib}.raw", mib, prepared("RAW") / "debian-12.raw")
        self.images = {path.name: sha256(path) for path in self.folder.iterdir()}
        (self.rack.work / "nginx.conf").write_text(
            NGINX.format(work=self.rack.work, address=ADDRESS, port=IMAGE_PORT, folder=self.folder))
        self.rack.daemons.start("nginx", ["nginx", "-c", self.rack.work / "nginx.conf"])

    def peer_times(self, names):
        """Seconds of curl | dd for each image."""
        machine = Machine("peer")
        console = self.rack.logs / "peer.console"
        console.unlink(missing_ok=True)
        times = peer.write_images(machine, self.slipway.data / "boot/vmlinuz", os.environ["SLIPWAY_BENCH_PEER"], self.rack.work, console,
                                  self.base, names, min(PEER_SECONDS, self.part.left()))
        last = self.folder / names[-1]
        if sha256(machine.disk_file(self.rack.work), last.stat().st_size) != self.images[last.name]:
            raise LabError(f"the peer did not write {last.name} as it is")
        machine.disk_file(self.rack.work).unlink()
        for name, seconds in times.items():
            say(f"peer: {name} in {seconds:.1f} s")
        return times

    def start_slipway(self):
        self.slipway.start()
        self.wire = Wire(BRIDGE)
        log = self.rack.logs / "watch.log"
        self.intents, self.hardware = Watch(self.slipway, "bootintents", log), Watch(self.slipway, "hardwaredata", log)

    def wait_step(self, name, action, deadline):
        """Waits for the result of a step. Returns (when it could first be fetched, when its result was there, result)."""
        def ended():
            ready = None
            for when, intent in self.intents.of(name):
                steps = {step["id"]: step["action"] for step in intent["spec"].get("steps", [])}
                results = intent.get("status", {}).get("results", [])
                wanted = [step for step, its in steps.items() if its == action]
                if ready is None and wanted and intent.get("status", {}).get("session") and len(results) >= list(steps).index(wanted[-1]):
                    ready = when
                for result in results:
                    if result["id"] in wanted:
                        return ready, when, result
            return "…" + json.dumps(self.intents.of(name)[-1][1].get("status", {}).get("progress")) if self.intents.of(name) else None
        begin, end, result = wait_for(f"{action} on {name}", ended, deadline, every=0.25)
        if not result["succeeded"]:
            raise LabError(f"{action} on {name} failed: {result.get('message')}")
        return begin, end, result.get("message", "")

    def inspect(self, machine):
        """Powers a machine on by its host's first inspection. Returns seconds: inventory, first DHCP, script, agent's first call."""
        power = PowerOn(machine.name)
        self.slipway.apply(*self.rack.manifests(machine))
        wait_for(f"HardwareData of {machine.name}", lambda: self.hardware.of(machine.name), min(240, self.part.left()), every=0.1)
        inventory = self.hardware.of(machine.name)[0][0]
        first = self.wire.first.get(machine.mac, {})
        missing = [what for what in ("dhcp", "tftp", "script", "agent") if what not in first]
        if missing or power.when is None:
            raise LabError(f"{machine.name} was inspected, but not seen: {', '.join(missing) or 'its power-on'}")
        times = {what: when - power.when for what, when in first.items()} | {"inventory": inventory - power.when}
        say(f"{machine.name}: after power-on " + ", ".join(f"{what} {seconds:.1f} s" for what, seconds in times.items()))
        return times

    def write(self, machine, image):
        """Provisions an inspected machine. Returns seconds of the write-image step, of the import before it, and the agent's words."""
        self.slipway.wait_state(machine.name, "available", min(120, self.part.left()))
        order(self.rack, self.slipway, machine, {"url": f"{self.base}/{image}", "checksum": self.images[image], "checksumType": "sha256",
                                                 "format": image.rpartition(".")[2]})
        ordered = time.monotonic()
        begin, end, words = self.wait_step(machine.name, "write-image", min(300, self.part.left()))
        say(f"{machine.name}: {image} in {end - begin:.1f} s, ready {begin - ordered:.1f} s after the order: {words}")
        self.off(machine)
        return end - begin, begin - ordered, words

    def off(self, machine):
        """Ends with a machine for good. Its host is paused, so that nobody powers it on again."""
        self.slipway.patch(machine.name, {"metadata": {"annotations": {PAUSED: ""}}})
        # What was begun before the host was seen as paused ends first.
        wait_for(f"{machine.name} to be off by Slipway or by force", lambda: self.ended(machine), 60, every=0.5)
        machine.disk_file(self.rack.work).unlink()

    def ended(self, machine):
        """Whether a machine stayed off for a moment."""
        if self.rack.running(machine):
            virsh("destroy", machine.name)
        time.sleep(2)
        return not self.rack.running(machine)


def peak(words):
    """Megabytes that the agent names as its highest resident size, or None."""
    found = re.search(r"memory peaked at (\d+) kB", words)
    # The kernel's kB are 1024 bytes.
    return int(found[1]) * 1024 / 1e6 if found else None


def add_inspection(part, samples):
    totals = [sample["inventory"] for sample in samples]
    after = [sample["inventory"] - sample["script"] for sample in samples]
    middle = samples[totals.index(median(totals))]
    part.add(Figure("power-on to inventory received", f"firmware's own time + {GOAL_AFTER_FIRMWARE} s",
                    f"{middle['inventory']:.1f} s = firmware {middle['script']:.1f} s + {middle['inventory'] - middle['script']:.1f} s", "",
                    median(after) <= GOAL_AFTER_FIRMWARE,
                    f"median of {len(samples)} machines; first DHCP after {middle['dhcp']:.1f} s, TFTP {middle['tftp']:.1f} s, agent's first call "
                    f"{middle['agent']:.1f} s; after the firmware " + ", ".join(f"{value:.1f}" for value in after) + " s"))


def run(part, logs):
    bench = Bench(part, logs)
    rack = bench.rack
    try:
        bench.slipway = Slipway(rack)
        bench.slipway.build_ramdisk()
        sizes = {name: (bench.slipway.data / "boot" / name).stat().st_size / 1e6 for name in ("vmlinuz", "initrd")}
        total = sum(sizes.values())
        part.add(Figure("ramdisk, kernel included", f"{GOAL_RAMDISK_MB} MB", f"{total:.1f} MB", "", total <= GOAL_RAMDISK_MB,
                        ", ".join(f"{name} {size:.1f} MB" for name, size in sizes.items())))
        bench.serve_images()
        measure(bench, part, ["debian-12.qcow2", "debian-12.raw", "random-500.raw", "random-2000.raw"])
    except LabError:
        print("\n".join(tail(rack.logs / "slipway.log", 30)))
        raise
    finally:
        rack.close()


def measure(bench, part, images):
    """The peer first, then a new machine for each image."""
    times = bench.peer_times(["random-500.raw", "debian-12.raw"])
    bench.start_slipway()
    samples, peaks = [], {}
    try:
        write_all(bench, part, images, times, samples, peaks)
    finally:
        if samples:
            add_inspection(part, samples)
    add_memory(part, peaks, bench.rack.machines[0].memory_mib)


def write_all(bench, part, images, times, samples, peaks):
    """Inspects and provisions a new machine for each image; puts down what it took."""
    for number, image in enumerate(images, 1):
        if part.left() < ENOUGH:
            part.note(f"{image} was not measured: no time was left")
            continue
        machine = bench.rack.machines[0]
        if number > 1:
            machine = Machine(f"bench-{number}")
            define(machine, bench.rack.work, bench.rack.logs)
            bench.rack.machines.append(machine)
        samples.append(bench.inspect(machine))
        seconds, imported, words = bench.write(machine, image)
        virsh("undefine", "--nvram", machine.name)
        raw = image.replace(".qcow2", ".raw")
        size = (bench.folder / raw).stat().st_size if (bench.folder / raw).exists() else (prepared("RAW") / raw).stat().st_size
        theirs = times.get(raw)
        part.add(Figure(f"image on the disk, verified: {image}", "no slower than curl | dd" if theirs else "",
                        f"{seconds:.1f} s ({size / 1e6 / seconds:.0f} MB/s of raw size)",
                        f"curl | dd {theirs:.1f} s ({size / 1e6 / theirs:.0f} MB/s)" if theirs else "", seconds <= theirs if theirs else None,
                        f"{size / 1e6:.0f} MB raw size; before that, once for each image, the import: {imported:.1f} s"))
        if peak(words) is not None:
            peaks[image] = peak(words)


def add_memory(part, peaks, node_mib):
    small, large = peaks.get("random-500.raw"), peaks.get("random-2000.raw")
    goal = f"the same, at most {GOAL_MEMORY_MB} MB"
    how = f"VmHWM of the agent; each node had {node_mib} MB of memory in all"
    if small is None or large is None:
        part.add(Figure("agent's memory, 500 MB and 2 GB images", goal, f"not told by the agent; a node of {node_mib} MB is enough", "", None, how))
        return
    same = abs(large - small) <= SAME * max(small, large)
    part.add(Figure("agent's memory, 500 MB and 2 GB images", goal, f"{small:.0f} MB and {large:.0f} MB", "",
                    same and max(small, large) <= GOAL_MEMORY_MB, how))
