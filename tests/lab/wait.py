"""Waiting with a deadline, and saying what is waited for. Nothing in the lab waits without these."""

import os
import subprocess
import sys
import time

class GiveUp(BaseException):
    """Raised by a check to end its wait at once. Not an Exception, so that it is never taken for "not yet"."""


START = time.monotonic()


class LabError(Exception):
    """The journey cannot go on; the text says why in words for a person."""


def say(text):
    """One line with the time since this process started."""
    print(f"[{time.monotonic() - START:7.1f}s] {text}", flush=True)


def short(value, limit=300):
    """A value on one line, cut at `limit` characters."""
    text = " ".join(str(value).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def wait_for(what, check, deadline, every=1.0, quiet=20.0):
    """Calls `check` until it returns something true, and returns that.

    `check` may raise LabError, OSError or a subprocess error while things are not ready. `deadline` and `every` are seconds.
    What is waited for is printed every `quiet` seconds, with what `check` said last when that is a string starting with "…".
    """
    began = time.monotonic()
    spoke, last = began, None
    while True:
        try:
            value = check()
            if value and not (isinstance(value, str) and value.startswith("…")):
                return value
            last = value or last
        except GiveUp as error:
            raise LabError(str(error)) from error
        except (LabError, OSError, subprocess.SubprocessError) as error:
            last = error
        now = time.monotonic()
        if now - began > deadline:
            raise LabError(f"{what}: not within {deadline} s; last seen: {short(last)}")
        if now - spoke >= quiet:
            spoke = now
            say(f"  waiting for {what} ({now - began:.0f} of at most {deadline} s): {short(last, 160)}")
        time.sleep(every)


def check_output(command, deadline=60, **options):
    """Standard output of a command as text. A failure or a missed deadline is a LabError with the command's own words."""
    command = [str(part) for part in command]
    try:
        done = subprocess.run(command, text=True, capture_output=True, timeout=deadline, **options)
    except FileNotFoundError as error:
        raise LabError(f"{command[0]} is not installed: run `make packages`") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{short(' '.join(command), 120)} did not end within {deadline} s") from error
    if done.returncode != 0:
        words = done.stderr.strip() or done.stdout.strip()
        raise LabError(f"{short(' '.join(command), 120)}: status {done.returncode}: {short(words, 1500)}")
    return done.stdout


def tail(path, lines=25):
    """The last lines of a log, without terminal control sequences; empty when there is no such file."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16384))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    clean = "".join(c for c in text if c in "\n\t\x1b" or c.isprintable())
    out = []
    for line in clean.split("\n"):
        # Cursor and colour sequences of firmware and systemd.
        parts = line.split("\x1b")
        rest = [p.lstrip("[0123456789;?=").removeprefix("m").lstrip("HJKhl") if p[:1] == "[" else p for p in parts[1:]]
        line = (parts[0] + "".join(rest)).rstrip()
        if line.strip():
            out.append(line)
    return out[-lines:]


def fail(error):
    """Ends the program with one line."""
    print(f"failed: {error}", file=sys.stderr, flush=True)
    sys.exit(1)
