"""A text in which somebody pasted several commands with their output, taken apart: one file a command.

Two shapes: a shell prompt before each command (`root@node:~# ip route`, `$ iptables-save`, `# cat /run/flannel/subnet.env`), and headings as `head` and `tail`
print them (`==> /etc/cni/net.d/10-flannel.conflist <==`). A file that was shown by `cat` gets its own name, since a name may mean something.
"""

from __future__ import annotations

import re

_PROGRAMS = (
    r"ip|bridge|iptables(?:-nft|-legacy)?(?:-save)?|ip6tables(?:-nft|-legacy)?(?:-save)?|nft|sysctl|ss|netstat|conntrack|cat|head|tail|ls|stat|lsmod"
    r"|ethtool|kubectl|crictl|docker|dmesg|journalctl|systemctl|grep|find|uname|hostname"
)
_PROMPT = re.compile(
    rf"^(?:\[?[\w.-]+@[\w.-]+[^\n$#]{{0,80}}[$#]|[$#>])[ \t]+(?:sudo[ \t]+)?((?:{_PROGRAMS})\b[^\n]*)$", re.MULTILINE
)
_HEADING = re.compile(r"^==> (\S+) <==$", re.MULTILINE)
#: iptables-save's own comment lines begin with '#', too.
_OWN = re.compile(r"^# (?:Generated|Completed|Warning)")


def sections(text: str) -> list[tuple[str, str]]:
    """(name, text) of each command in a paste; nothing where the text is not one."""
    marks = [(found.start(), found.end(), found.group(1)) for found in _HEADING.finditer(text)]
    if not marks:
        marks = [
            (found.start(), found.end(), _name(found.group(1)))
            for found in _PROMPT.finditer(text)
            if not _OWN.match(found.group())
        ]
    found = []
    for number, (_, end, name) in enumerate(marks):
        until = marks[number + 1][0] if number + 1 < len(marks) else len(text)
        body = text[end:until].lstrip("\n")
        if body.strip():
            found.append((name, body))
    return found


def _name(command: str) -> str:
    """The file that `cat` showed, else the command with dashes, so that `ip -6 route` is ip-6-route."""
    words = command.split("|", maxsplit=1)[0].split()
    paths = [word for word in words[1:] if word.startswith("/")]
    if words[0] in ("cat", "head", "tail") and len(paths) == 1:
        return paths[0].lstrip("/")
    return re.sub(r"[^\w.]+", "-", " ".join(words[:6])).strip("-")
