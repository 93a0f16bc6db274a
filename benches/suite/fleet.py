"""A simulated rack against one appliance: `slipway simulate`, which starts the appliance as a process of its own."""

import json
import subprocess

from appliance import binary
from figures import Figure
from start import work_folder
from wait import LabError, short

SIZES = (10, 100, 1000, 5000)
GOAL_SECONDS, GOAL_MB = 60, 128
# What an appliance may take for a machine of a large rack, of what it takes for one of a rack of a hundred.
GROWTH = 1.1
# Machines wait for nothing but the appliance: no place is scarce, and nothing rests for long after a failure on purpose.
SETTINGS = "[host]\nbusy_limit = {count}\nretry = \"1s\"\n"


def simulate(part, folder, count, *more):
    """The summary of a run."""
    config = folder / "fleet.toml"
    config.write_text(SETTINGS.format(count=count))
    left = int(part.left())
    command = [binary(), "simulate", "--machines", str(count), "--config", config, "--deadline", f"{max(left - 20, 10)}s",
               "--download", "head", "-o", "json", *more]
    try:
        done = subprocess.run(command, text=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=left, check=False)
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{count} machines did not end in time") from error
    print(done.stderr, done.stdout, flush=True)
    try:
        summary = json.loads(done.stdout)
    except ValueError as error:
        raise LabError(f"{count} machines: {short(done.stderr[-500:])}") from error
    return summary


def took(summary):
    """Seconds until the last machine was there, processor seconds and most memory of the appliance."""
    return summary["goals"][0]["seconds"], summary["appliance"]["cpuSeconds"], summary["appliance"]["peakMb"]


def arrived(summary):
    return f"{summary['goals'][0]['arrived']:,} of {summary['machines']:,}"


def run(part, _results):
    each = {}
    with work_folder() as folder:
        summary = simulate(part, folder, 1000, "--bmc-failures", "1%", "--packet-loss", "2%")
        counted = summary["counted"]
        part.add(Figure("1,000 machines with bad luck", "all arrive", arrived(summary), "", summary["succeeded"],
                        f"1 % of BMC answers fail ({counted['bmcFaults']:,}), 2 % of packets are lost ({counted['packetsLost']:,}); "
                        f"{summary['goals'][0]['seconds']:.1f} s with the waiting that this means"))
        for count in SIZES:
            summary = simulate(part, folder, count)
            seconds, cpu, memory = took(summary)
            whole = summary["succeeded"]
            each[count] = cpu / count
            of_goal = count == 1000
            part.add(Figure(f"{count:,} machines, registering to provisioned", f"{GOAL_SECONDS} s" if of_goal else "",
                            f"{seconds:.1f} s" if whole else f"{arrived(summary)} arrived", "",
                            (whole and seconds <= GOAL_SECONDS) if of_goal else None,
                            f"appliance's own processor time {cpu:.1f} s, {1000 * cpu / count:.1f} ms a machine; highest memory "
                            f"{memory:.1f} MB; {summary['counted']['boots']:,} boots"))
            if of_goal:
                part.add(Figure("memory with 1,000 machines", f"{GOAL_MB} MB", f"{memory:.1f} MB", "", memory <= GOAL_MB,
                                "highest VmRSS (VmHWM) of the appliance"))
                work = summary["reconciles"]
                part.add(Figure("reconciliations over 50 ms, 1,000 machines", "none", f"{work['over50Ms']} of {work['count']:,}", "",
                                work["over50Ms"] == 0, f"{1000 * work['seconds'] / work['count']:.2f} ms each; time of the processor, "
                                "API calls included; waiting apart, and other programs"))
        most = max(SIZES)
        part.add(Figure(f"cost of a machine among {most:,}", "as among 100", f"{1000 * each[most]:.1f} ms",
                        "", each[most] <= GROWTH * each[100], f"processor time of the appliance; among 10, 100 and 1,000: "
                        + ", ".join(f"{1000 * each[count]:.1f} ms" for count in SIZES[:-1])))
