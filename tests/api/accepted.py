"""The answers that may differ from a real API server's: `accepted.toml`, each with its reason."""

import tomllib
from pathlib import Path

FILE = Path(__file__).resolve().parent / "accepted.toml"


class Accepted:
    """The entries of a table: `kubectl` or `request`."""

    def __init__(self, table):
        entries = tomllib.loads(FILE.read_text()).get(table, [])
        self.entries = {entry["call"]: entry for entry in entries}
        self.used = set()

    def allows(self, have):
        """Whether a transcript's part is one that is written down, word by word."""
        first, rest = have.split("\n", 1)
        entry = self.entries.get(first.removeprefix("$ "))
        if entry is None or entry["answer"].strip() != rest.strip():
            return False
        self.used.add(entry["call"])
        return True

    def report_unused(self):
        """Says which entries no longer hold; how many."""
        stale = [call for call in self.entries if call not in self.used]
        for call in stale:
            print(f"accepted.toml: no longer so, or never asked: {call}")
        return len(stale)
