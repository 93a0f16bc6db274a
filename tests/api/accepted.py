"""Where Slipway may answer otherwise than a real API server: `accepted.toml` says which calls, and why.

What it answers instead is recorded beside the real answers (`golden/…/slipway*.txt`) by `check --accept`, so that it does
not change unseen either.
"""

import re
import tomllib
from pathlib import Path

from transcript import split

FILE = Path(__file__).resolve().parent / "accepted.toml"


class Accepted:
    """The entries of a table of the file: `kubectl` or `request`."""

    def __init__(self, table, accept=False):
        self.entries = [(re.compile(pattern), entry["reason"])
                        for entry in tomllib.loads(FILE.read_text()).get(table, []) for pattern in entry["calls"]]
        self.accept, self.used = accept, set()

    def check(self, answers, pairs):
        """Those pairs (real, ours) that differ and may not; `answers` is the file of our recorded answers."""
        recorded = set(map(str.strip, split(answers.read_text()))) if answers.exists() else set()
        wrong, kept = [], []
        for want, have in pairs:
            want, have = want.strip(), have.strip()
            if want == have:
                continue
            command = have.split("\n", 1)[0].removeprefix("$ ")
            entry = next((pattern for pattern, _ in self.entries if pattern.search(command)), None)
            if entry is None or (not self.accept and have not in recorded):
                wrong.append((want, have))
                continue
            self.used.add(entry)
            kept.append(have)
        if self.accept:
            answers.parent.mkdir(parents=True, exist_ok=True)
            answers.write_text("\n\n".join(kept) + "\n")
        return wrong

    def unused(self):
        """Says which patterns no longer find a difference; how many."""
        stale = [pattern.pattern for pattern, _ in self.entries if pattern not in self.used]
        for pattern in stale:
            print(f"accepted.toml: no longer differs, or is never asked: {pattern}")
        return len(stale)
