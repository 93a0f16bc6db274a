"""Images for the rack's measurements."""

import hashlib
import os

from wait import LabError, check_output

MIB = 1 << 20
# As images/debian-12 has it.
ESP_START, ESP_SIZE = 4 * MIB, 60 * MIB
ROOT_START = 64 * MIB


def random_image(path, mib, debian):
    """A raw disk of `mib` MiB: GPT, the ESP of `debian` (a raw image), and a partition of random data."""
    with path.open("wb") as file:
        file.truncate(mib * MIB)
        with debian.open("rb") as source:
            source.seek(ESP_START)
            file.seek(ESP_START)
            file.write(source.read(ESP_SIZE))
        file.seek(ROOT_START)
        for _ in range(mib - ROOT_START // MIB - 1):
            file.write(os.urandom(MIB))
    layout = (f"label: gpt\nstart={ESP_START // 512}, size={ESP_SIZE // 512}, type=U\n"
              f"start={ROOT_START // 512}, size={(mib - 1) * MIB // 512 - ROOT_START // 512}, type=L\n")
    check_output(["sfdisk", "--quiet", path], deadline=60, input=layout)


def sha256(path, size=None):
    """Hex digest of a file, or of its first `size` bytes."""
    digest, left = hashlib.sha256(), path.stat().st_size if size is None else size
    with path.open("rb") as file:
        while left > 0:
            data = file.read(min(left, 4 * MIB))
            if not data:
                raise LabError(f"{path} is shorter than {size} bytes")
            digest.update(data)
            left -= len(data)
    return digest.hexdigest()
