"""Prints a CycloneDX 1.6 bill of materials: the Rust packages in the program, and the Debian packages in what machines boot.

    sbom.py VERSION EPOCH

It is run by packaging/build, with the Python of a virtual environment that has cyclonedx-python-lib. The Rust packages are
those that `cargo metadata` resolves for the program (no build scripts' or tests' own), with the checksums of Cargo.lock.
"""

import json
import re
import subprocess
import sys
import tomllib
import uuid
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.factory.license import LicenseFactory
from cyclonedx.model import HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

TOP = Path(__file__).resolve().parent.parent
TARGET = "x86_64-unknown-linux-gnu"
# Debian's packages whose files machines boot; the kernel's name has its version in it.
BOOTED = ("ipxe", "grub-efi-amd64-bin", "isolinux", "syslinux-common")


def output(*command):
    return subprocess.run(command, text=True, capture_output=True, timeout=120, check=True, cwd=TOP).stdout


def crates(own):
    """Components for the Rust packages, and which needs which."""
    metadata = json.loads(output("cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", TARGET))
    locked = tomllib.loads((TOP / "Cargo.lock").read_text())["package"]
    checksums = {(package["name"], package["version"]): package.get("checksum") for package in locked}
    packages = {package["id"]: package for package in metadata["packages"]}
    # What is linked in: everything that is reached by dependencies of the normal kind.
    needs = {node["id"]: [dep["pkg"] for dep in node["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
             for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    found, waiting = {root: own}, [root]
    while waiting:
        for name in needs[waiting.pop()]:
            if name not in found:
                found[name] = crate(packages[name], checksums)
                waiting.append(name)
    return found, needs


def crate(package, checksums):
    name, version = package["name"], package["version"]
    url = PackageURL("cargo", name=name, version=version)
    checksum = checksums.get((name, version))
    # The old spelling of "or" is no expression of SPDX.
    licence = re.sub(r"\s*/\s*", " OR ", package["license"] or "")
    return Component(
        type=ComponentType.LIBRARY, name=name, version=version, purl=url, bom_ref=str(url), description=package["description"],
        licenses=[LicenseFactory().make_from_string(licence)] if licence else [],
        hashes=[HashType.from_hashlib_alg("sha256", checksum)] if checksum else [])


def booted():
    """Components for the Debian packages whose files machines boot."""
    kernel = Path(output("python3", "tests/lab/tools.py", "kernel").strip())
    known = [output("dpkg-deb", "--field", str(kernel), "Package", "Version")]
    known += [output("dpkg-query", "-W", "-f", "Package: ${Package}\nVersion: ${Version}\n", name) for name in BOOTED]
    for text in known:
        fields = dict(line.split(": ", 1) for line in text.splitlines() if line)
        url = PackageURL("deb", "debian", fields["Package"], fields["Version"], {"arch": "amd64"})
        yield Component(type=ComponentType.LIBRARY, name=fields["Package"], version=fields["Version"], purl=url, bom_ref=str(url))


def main():
    version, time = sys.argv[1], int(sys.argv[2])
    own = Component(type=ComponentType.APPLICATION, name="slipway", version=version, bom_ref="slipway",
                    licenses=[LicenseFactory().make_from_string("Apache-2.0")])
    serial = uuid.uuid5(uuid.NAMESPACE_URL, f"slipway {version} {(TOP / 'Cargo.lock').read_text()}")
    bom = Bom(serial_number=serial)
    bom.metadata.component = own
    bom.metadata.timestamp = datetime.fromtimestamp(time, UTC)
    found, needs = crates(own)
    for name, component in found.items():
        if component is not own:
            bom.components.add(component)
        bom.register_dependency(component, [found[need] for need in needs[name]])
    for component in booted():
        bom.components.add(component)
        bom.register_dependency(own, [component])
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1)
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if fault:
        sys.exit(f"the bill of materials is not valid: {fault}")
    print(text)


if __name__ == "__main__":
    main()
