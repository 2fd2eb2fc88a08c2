"""A picture of this host, to compare before and after: what `podwire down` must leave as it was.

Labs of other names than those whose end is tested (t-…) may be up meanwhile, the shared one among them; their logs
grow and their interfaces come and go, so what is theirs by name is left out. A name of more than 12 characters gives the
interface a hash for a name, which would be taken for another lab's: keep t-… short.
"""

import os
import re
import subprocess

from podwire.kernel import owner

COMMANDS = {
    "links": ["ip", "-o", "link"],
    "addresses": ["ip", "-o", "address"],
    "routes": ["ip", "route", "show", "table", "all"],
    "routes6": ["ip", "-6", "route", "show", "table", "all"],
    "rules": ["ip", "rule"],
    "neighbours": ["ip", "-o", "neighbour", "show", "nud", "permanent"],
    "iptables-nft": ["iptables-nft-save"],
    "iptables-legacy": ["iptables-legacy-save"],
    "ip6tables-nft": ["ip6tables-nft-save"],
    "ip6tables-legacy": ["ip6tables-legacy-save"],
    "nft": ["nft", "list", "ruleset"],
}
FOLDERS = ("/etc", "/run", "/var", "/opt")
# What other programs of this machine write by themselves; nothing that podwire does is in these.
# The lab that tests share is there before and after, and its logs grow.
IGNORED = (
    "/run/podwire/lab/e2e",
    "/var/log",
    "/var/cache",
    "/var/tmp",
    "/run/systemd",
    "/run/log",
    "/var/lib/apt",
    "/run/netns",
)
# Counters and clocks among the settings, which change by themselves.
RESTLESS = ("/proc/sys/fs/", "/proc/sys/kernel/random", "/proc/sys/kernel/ns_last_pid", "/proc/sys/kernel/pty",
            "/proc/sys/net/netfilter/nf_conntrack_count", "/proc/sys/kernel/sched", "/proc/sys/kernel/perf")  # fmt: skip


def picture():
    """Everything the comparison is about, as one dictionary of lists of lines."""
    taken = {name: _lines(argv) for name, argv in COMMANDS.items()}
    taken["sysctls"] = sorted(_sysctls())
    with open("/proc/self/mounts", encoding="utf-8") as file:
        # A test of somebody else's may hold a namespace there for a moment.
        taken["mounts"] = sorted(line for line in file.read().splitlines() if "/run/netns" not in line)
    taken["files"] = sorted(_files())
    processes = [process for process in owner.marked_processes() if process.lab.startswith("t-")]
    taken["marked processes"] = [f"{p.lab} {p.node} {p.component}" for p in processes]
    return taken


def difference(before, after):
    """What differs, by name of the part: lines that went, lines that came."""
    changed = {}
    for name, lines in before.items():
        gone, come = set(lines) - set(after[name]), set(after[name]) - set(lines)
        if gone or come:
            changed[name] = {"gone": sorted(gone), "come": sorted(come)}
    return changed


def _lines(argv):
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return [line for line in done.stdout.splitlines() if not line.startswith("#") and not _of_another_lab(line)]


def _of_another_lab(text):
    return re.search(r"\bpw-(?!t-)|/run/podwire/lab/(?!t-)|/conf/pw-(?!t-)|/neigh/pw-(?!t-)", text) is not None


def _sysctls():
    for folder, _, names in os.walk("/proc/sys"):
        if folder.startswith(RESTLESS):
            continue
        for name in names:
            path = f"{folder}/{name}"
            if path.startswith(RESTLESS) or _of_another_lab(path):
                continue
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    yield f"{path} {file.read().strip()}"
            except OSError:
                continue


def _files():
    for root in FOLDERS:
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if not f"{folder}/{name}".startswith(IGNORED)]
            for name in [*folders, *names]:
                path = f"{folder}/{name}"
                if _of_another_lab(path):
                    continue
                try:
                    status = os.lstat(path)
                except FileNotFoundError:
                    continue
                # A folder's time changes when a file comes and goes; what matters is what is in it.
                yield (
                    path if os.path.isdir(path) else f"{path} {status.st_size} {status.st_mtime_ns} {status.st_mode:o}"
                )
