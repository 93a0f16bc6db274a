"""Commands of a real client run one after the other against a server, and what they print, without what no two runs share.

A transcript is text: `$` a command, `|` its standard output, `!` its standard error, `?` its exit status when that is not 0.
"""

import os
import re
import shlex
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from servers import LabError

# No command takes longer.
DEADLINE = 60
# How long one is repeated that waits for what comes in its own time.
PATIENCE = 20
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
TIME = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| ?[+-]\d\d:?\d\d( UTC)?)?"
# One of several causes of an error.
CAUSE = re.compile(r"\* \S+: ")
# A client's own deadline can end while it opens a watch: whether it does so before or after the answer is chance.
CHANCE = re.compile(r'"Unhandled Error" err=".*Failed to watch .*: context deadline exceeded"')
# What no two runs share, and what stands for it. Order matters.
NORMAL = [(re.compile(pattern), text) for pattern, text in (
    (r"[EWI]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ [\w.]+:\d+\]", "KLOG"),
    (TIME, "TIME"),
    (UUID, "UID"),
    (r"https://127\.0\.0\.1:\d+", "SERVER"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"\b(LIVE|MERGED)-\d+", r"\1"),
    (r"kubectl-edit-\w+\.yaml", "kubectl-edit.yaml"),
    (r'(resourceVersion"?: )"\d+"', r'\1"REVISION"'),
    (r"(Resource Version:) +\d+", r"\1 REVISION"),
    (r"X509SHA256=\w+", "X509SHA256"),
    (r"\beyJ[\w-]+\.[\w-]+\.[\w-]+", "TOKEN"),
    (r"\bv1\.34\.[\w.+-]+", "v1.34"),
    (r"(?<![\w.-])(\d+(ms|[smhdy]))+\b", "AGE"),
    (r"(?<=\S)  +", "  "),
)]


@dataclass
class Case:
    """One invocation."""

    # Words after `kubectl`, as a shell would split them; $NAME stands for what an earlier case saved.
    command: str
    # Standard input.
    stdin: str = ""
    # Further environment.
    env: dict = field(default_factory=dict)
    # Only lines of standard output that this pattern finds count: for lists that name what only one server serves.
    lines: str = ""
    # Patterns and what stands for them, for what only this case prints.
    normal: dict = field(default_factory=dict)
    # The name under which standard output is kept for later cases; it is not part of the transcript.
    save: str = ""
    # It goes on in the background once it has printed so many lines; `Ends` collects it.
    background: int = 0
    # Repeated until standard output has this text: for what a controller does in its own time.
    until: str = ""
    # Lines of standard output in any order: they are sorted.
    any_order: bool = False


@dataclass
class Ends:
    """Waits until the command in the background has printed this text, ends it, and shows all that it printed."""

    text: str
    normal: dict = field(default_factory=dict)
    # Repeated lines count once: how often a row comes depends on what else is changed.
    unique: bool = False


def case(command, stdin="", **options):
    return Case(command, stdin, **options)


class Script:
    """Runs cases with one kubectl against one server."""

    def __init__(self, program, server, folder, files):
        self.program, self.folder = Path(program), Path(folder)
        self.folder.mkdir(parents=True)
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.env = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "KUBECONFIG": str(server.kubeconfig), "LC_ALL": "C",
                    "TZ": "UTC", "NO_COLOR": "1"}
        self.saved, self.running = {}, None

    def run(self, cases, each=lambda text: None):
        """The transcript, one text for each case."""
        texts = []
        try:
            for item in cases:
                texts.append(self.one(item))
                each(texts[-1])
        finally:
            if self.running:
                self.running[1].kill()
                self.running[1].wait()
        return texts

    def one(self, item):
        if isinstance(item, Ends):
            return self.end(item)
        words = [self.saved.get(word[1:], word) if word.startswith("$") else self.fill(word) for word in shlex.split(item.command)]
        if item.background:
            return self.begin(item, words)
        ends = time.monotonic() + PATIENCE
        while True:
            try:
                done = subprocess.run([self.program, *words], input=self.fill(item.stdin), text=True, capture_output=True, timeout=DEADLINE,
                                      cwd=self.folder, env=self.env | item.env)
            except subprocess.TimeoutExpired:
                return f"$ kubectl {item.command}\n? did not end within {DEADLINE} s\n"
            if not item.until or item.until in done.stdout or time.monotonic() > ends:
                break
            time.sleep(0.1)
        out = done.stdout
        if item.save and done.returncode == 0:
            self.saved[item.save] = out.strip()
            out = f"({item.save})" if out.strip() else "(nothing)"
        return show(f"kubectl {item.command}", out, done.stderr, done.returncode, item)

    def fill(self, word):
        for name, value in self.saved.items():
            word = word.replace(f"${name}", value)
        return word

    def begin(self, item, words):
        output = self.folder / "background.out"
        with output.open("wb") as file:
            process = subprocess.Popen([self.program, *words], stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                       cwd=self.folder, env=self.env | item.env)
        self.running = (item, process, output)
        self.until(lambda text: text.count("\n") >= item.background)
        return f"$ kubectl {item.command} &\n"

    def until(self, enough):
        _, process, output = self.running
        ends = time.monotonic() + PATIENCE
        while not enough(output.read_text()) and process.poll() is None and time.monotonic() < ends:
            time.sleep(0.02)

    def end(self, item):
        begun, process, output = self.running
        self.until(lambda text: item.text in text)
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=10)
        self.running = None
        return show(f"ends: kubectl {begun.command}", output.read_text(), "", 0, item)


def show(command, out, err, status, item):
    lines = [f"$ {command}"]
    for mark, text in (("|", out), ("!", err)):
        part = normal(text if isinstance(item, Ends) else cells(text), item.normal)
        if getattr(item, "unique", False):
            part = list(dict.fromkeys(part))
        if mark == "|" and getattr(item, "lines", ""):
            part = [line for line in part if re.search(item.lines, line)]
        if mark == "|" and getattr(item, "any_order", False):
            part.sort()
        # Causes of an error come in no order.
        causes = iter(sorted(line for line in part if CAUSE.match(line)))
        part = [next(causes) if CAUSE.match(line) else line for line in part]
        lines += [f"{mark} {line}".rstrip() for line in part]
    if status:
        lines.append(f"? {status}")
    return "\n".join(lines) + "\n"


def cells(text):
    """A table's cells with a bar between them, so that an empty one is seen and the width of an age is not."""
    out, columns = [], None
    for line in text.splitlines():
        if not line.strip():
            columns = None
        elif columns is None and re.fullmatch(r"[A-Z][A-Z0-9_/() -]*", line) and ("NAME" in line or "  " in line):
            columns = [found.start() for found in re.finditer(r"(?:(?<=   )|^)\S", line)]
        if columns:
            ends = [*columns[1:], None]
            line = " ¦ ".join(line[start:end].strip() for start, end in zip(columns, ends))
        out.append(line)
    return "\n".join(out)


def normal(text, own=()):
    """Lines without what differs from run to run."""
    out = []
    for line in text.splitlines():
        if line.startswith("Warning: version difference") or line.startswith("WARNING: version difference"):
            continue
        if CHANCE.search(line):
            continue
        for pattern, stands in NORMAL:
            line = pattern.sub(stands, line)
        for pattern, stands in dict(own).items():
            line = re.sub(pattern, stands, line)
        out.append(line.rstrip())
    while out and not out[-1]:
        out.pop()
    return out


def split(text):
    """The cases of a transcript file."""
    parts = re.split(r"(?m)^(?=\$ )", text)
    return [part for part in parts if part.startswith("$ ")]


