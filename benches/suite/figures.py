"""Figures: what was measured, what is to be reached, what a peer reached in the same run."""

import json
import os
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path


@dataclass
class Figure:
    """One line of the table. Texts carry their units. `reached` is None for a figure without a goal."""

    name: str
    goal: str
    measured: str
    peer: str = ""
    reached: bool | None = None
    how: str = ""


@dataclass
class Part:
    """What one part measured. Saved after each figure, so that a part that is ended keeps what it has."""

    name: str
    when: str = ""
    load: str = ""
    # Share of the machine's processors that went to programs outside the part, as far as the kernel charges for it.
    others: str = ""
    seconds: float = 0.0
    error: str | None = None
    figures: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    file: Path | None = None
    deadline: float = 0.0

    def begin(self):
        """Notes date and the machine's load before anything is measured."""
        self.when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        self.load = f"{os.getloadavg()[0]:.1f}"
        if os.nice(0):
            self.notes.append(f"{self.name} was measured, peers included, with a nice value of {os.nice(0)}")
        self.save(self.file)

    def left(self):
        """Seconds until the part must have ended."""
        return self.deadline - time.monotonic()

    def add(self, figure):
        self.figures.append(figure)
        self.save(self.file)

    def note(self, text):
        """Something that a reader of the figures must know."""
        self.notes.append(text)
        self.save(self.file)

    def save(self, path):
        fields = asdict(self)
        del fields["file"], fields["deadline"]
        new = Path(f"{path}.new")
        new.write_text(json.dumps(fields, indent=1))
        new.replace(path)

    @classmethod
    def from_fields(cls, fields):
        fields["figures"] = [Figure(**figure) for figure in fields["figures"]]
        return cls(**fields)

    @classmethod
    def load(cls, path):
        """None when the part was never measured."""
        try:
            return cls.from_fields(json.loads(Path(path).read_text()))
        except FileNotFoundError:
            return None


def verdict(figure):
    return {True: "reached", False: "MISSED", None: ""}[figure.reached]


def line(figure):
    """A figure as the terminal shows it."""
    first = f"   {figure.name:<52} {figure.measured:<34} {verdict(figure)}"
    rest = [text for text in (figure.goal and f"to reach: {figure.goal}", figure.peer and f"peer: {figure.peer}") if text]
    return [first.rstrip()] + ([f"     {'; '.join(rest)}"] if rest else [])


def median(values):
    """The middle value; of an even number the lower one of the two in the middle."""
    return sorted(values)[(len(values) - 1) // 2]
