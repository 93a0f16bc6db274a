"""libvirt and the BMCs of the rack: sushy-emulator speaks Redfish, virtualbmc IPMI 2.0, for the same virtual machines."""

import os
import socket
import subprocess
from pathlib import Path

from isolation import ADDRESS, BMC_ADDRESS
from machines import create_disks, domain_xml
from tools import prepared
from wait import GiveUp, LabError, check_output, say, tail, wait_for

USERNAME, PASSWORD = "operator", "lab-pa55word"
REDFISH_PORT = 8000
IPMI_PORT = 623

QEMU_CONF = """user = "root"
group = "root"
security_driver = "none"
cgroup_controllers = []
remember_owner = 0
stdio_handler = "file"
namespaces = []
"""


class Daemons:
    """Background programs of the rack, each with a log. They end with the rack's process namespace at the latest."""

    def __init__(self, logs):
        self.logs = Path(logs)
        self.running = {}

    def start(self, name, command, env=None):
        log = (self.logs / f"{name}.log").open("ab")
        process = subprocess.Popen([str(part) for part in command], stdout=log, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, env=os.environ | (env or {}))
        log.close()
        self.running[name] = process
        return process

    def check(self, name):
        """Raises GiveUp when a daemon has ended."""
        code = self.running[name].poll() if name in self.running else "unknown: it was stopped"
        if code is not None:
            raise GiveUp(f"{name} ended with status {code}: {' / '.join(tail(self.logs / f'{name}.log', 3))}")

    def stop(self, name, deadline=20):
        """SIGTERM, and SIGKILL after `deadline` seconds. Returns the exit status."""
        process = self.running.pop(name, None)
        if process is None:
            return None
        process.terminate()
        try:
            return process.wait(timeout=deadline)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def ready(self, name, what, check, deadline):
        """Waits for `check`, and gives up at once when the daemon ends."""
        def both():
            self.check(name)
            return check()
        try:
            return wait_for(what, both, deadline, every=0.2)
        except LabError as error:
            raise LabError(f"{error}\n    " + "\n    ".join(tail(self.logs / f"{name}.log", 8))) from error


def accepts(address, port):
    with socket.create_connection((address, port), timeout=2):
        return True


def virsh(*arguments, deadline=60):
    return check_output(["virsh", "--quiet", "--connect", "qemu:///system", *arguments], deadline)


def start_libvirt(daemons):
    etc = Path("/etc/libvirt")
    (etc / "qemu.conf").write_text(QEMU_CONF)
    (etc / "libvirtd.conf").write_text(
        'auth_unix_rw = "none"\nauth_unix_ro = "none"\nlog_outputs = "2:stderr"\nadmin_min_workers = 1\n')
    # Only needed by programs that log through it; libvirt asks for it whatever the handler of consoles is.
    (etc / "virtlogd.conf").write_text('log_outputs = "2:stderr"\n')
    daemons.start("virtlogd", ["virtlogd"])
    daemons.start("libvirtd", ["libvirtd"])
    daemons.ready("libvirtd", "libvirtd", lambda: virsh("version", deadline=10), 30)


def define(machine, work, logs):
    """Makes disks and defines the domain; the machine stays off."""
    create_disks(machine, work)
    path = Path(work, f"{machine.name}.xml")
    path.write_text(domain_xml(machine, work, Path(logs, f"{machine.name}.console")))
    virsh("define", path)


def start_pool(work):
    """The storage pool that sushy-emulator puts virtual media into; without it an insertion fails half done."""
    folder = Path(work, "pool")
    folder.mkdir(exist_ok=True)
    virsh("pool-define-as", "default", "dir", "--target", folder)
    virsh("pool-start", "default")


def start_redfish(daemons, work):
    """sushy-emulator by HTTPS with a certificate of its own and basic authentication."""
    venv, work = prepared("VENV"), Path(work)
    hashed = check_output([venv / "bin/python", "-c",
                           "import bcrypt, sys; print(bcrypt.hashpw(sys.argv[1].encode(), bcrypt.gensalt(4)).decode())", PASSWORD])
    (work / "redfish.users").write_text(f"{USERNAME}:{hashed.strip()}\n")
    check_output(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30",
                  "-subj", "/CN=bmc.lab.invalid", "-addext", f"subjectAltName=IP:{ADDRESS}",
                  "-keyout", work / "redfish.key", "-out", work / "redfish.crt"])
    (work / "sushy.conf").write_text(
        f"SUSHY_EMULATOR_LISTEN_IP = '{ADDRESS}'\nSUSHY_EMULATOR_LISTEN_PORT = {REDFISH_PORT}\n"
        f"SUSHY_EMULATOR_SSL_CERT = '{work}/redfish.crt'\nSUSHY_EMULATOR_SSL_KEY = '{work}/redfish.key'\n"
        f"SUSHY_EMULATOR_AUTH_FILE = '{work}/redfish.users'\nSUSHY_EMULATOR_LIBVIRT_URI = 'qemu:///system'\n"
        f"SUSHY_EMULATOR_STATE_DIR = '{work}'\n")
    daemons.start("redfish", [venv / "bin/sushy-emulator", "--config", work / "sushy.conf"], env={"TMPDIR": str(work)})
    daemons.ready("redfish", "the Redfish emulator", lambda: accepts(ADDRESS, REDFISH_PORT), 60)


def start_ipmi(daemons, machines, work):
    """virtualbmc, one port for each machine from 623 on. It starts what it finds in its folder as active."""
    venv, folder = prepared("VENV"), Path(work, "vbmc")
    for index, machine in enumerate(machines):
        (folder / machine.name).mkdir(parents=True)
        (folder / machine.name / "config").write_text(
            f"[VirtualBMC]\nusername = {USERNAME}\npassword = {PASSWORD}\naddress = {BMC_ADDRESS}\nport = {IPMI_PORT + index}\n"
            f"domain_name = {machine.name}\nlibvirt_uri = qemu:///system\nactive = True\n")
    config = folder / "virtualbmc.conf"
    config.write_text(f"[default]\nconfig_dir = {folder}\npid_file = {folder}/master.pid\nserver_spawn_wait = 3000\n")
    daemons.start("ipmi", [venv / "bin/vbmcd", "--foreground"], env={"VIRTUALBMC_CONFIG": str(config)})
    for index, machine in enumerate(machines):
        daemons.ready("ipmi", f"the IPMI emulator of {machine.name}",
                      lambda: "on" if "Chassis Power is" in ipmitool(IPMI_PORT + index, "power", "status") else None, 60)


def ipmitool(port, *arguments):
    """Debian's ipmitool; cipher suite 3, because virtualbmc knows no other."""
    return check_output(["ipmitool", "-I", "lanplus", "-C", "3", "-R", "6", "-N", "1", "-H", BMC_ADDRESS, "-p", port,
                         "-U", USERNAME, "-P", PASSWORD, *arguments], deadline=30)


def redfish(method, path, body=None, user=(USERNAME, PASSWORD)):
    """One request to the Redfish emulator by curl. Returns (status, text)."""
    command = ["curl", "--silent", "--insecure", "--max-time", "30", "--request", method, "--user", ":".join(user),
               "--write-out", "\n%{http_code}", f"https://{ADDRESS}:{REDFISH_PORT}{path}"]
    if body is not None:
        command += ["--header", "Content-Type: application/json", "--data", body]
    text, _, status = check_output(command, deadline=40).rpartition("\n")
    return int(status), text


def raise_rack(machines, work, logs):
    """libvirt, the machines (off) and their BMCs. Returns the daemons."""
    daemons = Daemons(logs)
    start_libvirt(daemons)
    for machine in machines:
        define(machine, work, logs)
    if any(machine.bmc.startswith("redfish") for machine in machines):
        start_pool(work)
        start_redfish(daemons, work)
    by_ipmi = [machine for machine in machines if machine.bmc == "ipmi"]
    if by_ipmi:
        start_ipmi(daemons, by_ipmi, work)
    say(f"rack: {', '.join(f'{m.name} ({m.firmware}, {m.bmc})' for m in machines) or 'no machines'}, all off")
    return daemons


def bmc_url(machine, machines):
    """The address of a machine's BMC as a BareMetalHost names it."""
    if machine.bmc.startswith("redfish"):
        return f"{machine.bmc}://{ADDRESS}:{REDFISH_PORT}/redfish/v1/Systems/{machine.uuid}"
    if machine.bmc == "ipmi":
        port = IPMI_PORT + [other.name for other in machines if other.bmc == "ipmi"].index(machine.name)
        return f"ipmi://{BMC_ADDRESS}:{port}"
    raise LabError(f"{machine.name} has no BMC")
