"""One row of `iptables -L` as a rule in iptables-save's syntax.

A listing is for people: it leaves out interfaces without -v, names hosts, ports and protocols without -n, and every extension
prints its match in words of its own ("tcp dpt:80", "mark match ! 0x4000/0x4000"). The extensions' words are read here
one after the other, each by the first pattern that fits; from a word that no pattern knows on, the rest is kept as it is, as
`-m unread --words "…"`, which the walk cannot evaluate and says so.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Found = re.Match[str]

NAMED_PORTS = {
    "domain": 53, "http": 80, "https": 443, "ssh": 22, "ftp": 21, "smtp": 25, "telnet": 23, "bootps": 67, "bootpc": 68,
    "tftp": 69, "kerberos": 88, "pop3": 110, "sunrpc": 111, "ntp": 123, "imap2": 143, "snmp": 161, "bgp": 179, "ldap": 389,
    "submission": 587, "ldaps": 636, "imaps": 993, "pop3s": 995, "openvpn": 1194, "ms-sql-s": 1433, "nfs": 2049,
    "mysql": 3306, "postgresql": 5432, "amqp": 5672, "x11": 6000, "redis": 6379, "http-alt": 8080, "webcache": 8080,
    "zabbix-agent": 10050, "gopher": 70, "mdns": 5353, "syslog": 514, "shell": 514, "rsync": 873, "isakmp": 500,
    "ipsec-nat-t": 4500, "radius": 1812, "etcd-client": 2379, "etcd-server": 2380, "munin": 4949, "iscsi-target": 3260,
    "ms-wbt-server": 3389, "svn": 3690, "epmd": 4369, "sip": 5060, "xmpp-client": 5222, "puppet": 8140, "microsoft-ds": 445,
}  # fmt: skip
PROTOCOLS = {"0": "", "all": "", "1": "icmp", "6": "tcp", "17": "udp", "58": "ipv6-icmp", "132": "sctp", "2": "igmp",
             "ip": "", "50": "esp", "51": "ah", "47": "gre", "4": "ipencap"}  # fmt: skip


def _port(text: str) -> str:
    low, colon, high = text.partition(":")
    numbers = [str(NAMED_PORTS.get(part, part)) for part in (low, high) if part]
    if not all(number.isdigit() for number in numbers):
        raise ValueError(text)
    return ":".join(numbers) if colon else numbers[0]


def _ports(text: str) -> str:
    return ",".join([_port(part) for part in text.split(",")])


def _not(sign: str | None) -> str:
    return "! " if sign else ""


def _protocol(found: Found) -> str:
    """`tcp dpt:!80 spts:1:5 flags:0x17/0x02`: the match that has its protocol's name."""
    words = [f"-m {found[1]}"]
    for side, sign, ports in re.findall(r"\b([sd]pts?):(!?)(\S+)", found[2] or ""):
        words.append(f"{_not(sign)}--{'sport' if side[0] == 's' else 'dport'} {_port(ports)}")
    flags = re.search(r"flags:(!?)(\S+)/(\S+)", found[2] or "")
    if flags is not None:
        words.append(f"{_not(flags[1])}--tcp-flags {_flags(flags[2])} {_flags(flags[3])}")
    return " ".join(words)


def _flags(text: str) -> str:
    if not text.startswith("0x"):
        return text
    bits = int(text, 16)
    names = ("FIN", "SYN", "RST", "PSH", "ACK", "URG")
    return ",".join([name for at, name in enumerate(names) if bits >> at & 1]) or "NONE"


def _recent(found: Found) -> str:
    words = found[0].split()
    text = f"-m recent {_not('!' if '!' in words[1:2] else '')}--{found[2].lower().replace('check', 'rcheck')}"
    for option in ("seconds", "hit_count", "hitcount", "name", "mask"):
        if f"{option}:" in words:
            text += f" --{option.replace('_', '')} {words[words.index(option + ':') + 1]}"
    return (
        text + (" --rdest" if "side: dest" in found[0] else " --rsource") + (" --reap" if " reap " in found[0] else "")
    )


def _icmp(found: Found) -> str:
    kind, code = found[3], found[4]
    return (
        f"-m {'icmp' if found[1] == 'icmp' else 'icmp6'} {_not(found[2])}--{found[1].replace('ipv6-icmp', 'icmpv6')}-type {kind}"
        + (f"/{code}" if code else "")
    )


def _mark(target: str, found: Found) -> str:
    word = {"set": "--set-mark", "xset": "--set-xmark", "or": "--or-mark", "and": "--and-mark", "xor": "--xor-mark"}
    return f"-j {target} {word[found[1]]} {found[2]}"


def _addrtype(found: Found) -> str:
    text = "-m addrtype"
    for side, sign, kinds in re.findall(r"(src|dst)-type (!?)([\w,]+)", found[1]):
        text += f" {_not(sign)}--{side}-type {kinds}"
    return text + (f" --limit-iface-{found[2].strip().removeprefix('limit-')}" if found[2] else "")


_NUMBER = r"0x[0-9a-fA-F]+(?:/0x[0-9a-fA-F]+)?"
#: What extensions print, in order of trial. A match gives options; what begins with -j completes the target.
_MATCHES: tuple[tuple[re.Pattern[str], Callable[[Found], str]], ...] = (
    (re.compile(r"/\*\s(.*?)\s\*/"), lambda found: f"-m comment --comment {_quoted(found[1])}"),
    (re.compile(r"(tcp|udp|sctp|dccp)((?: (?:[sd]pts?|option|flags)[:=]\S+)*)(?= |$)"), _protocol),
    (re.compile(r"mark match (! )?(" + _NUMBER + ")"), lambda found: f"-m mark {_not(found[1])}--mark {found[2]}"),
    (
        re.compile(r"connmark match +(! )?(" + _NUMBER + ")"),
        lambda found: f"-m connmark {_not(found[1])}--mark {found[2]}",
    ),
    (
        re.compile(r"multiport (!?)\s?(sports|dports|ports) (!?)([\w,:-]+)"),
        lambda found: f"-m multiport {_not(found[1] or found[3])}--{found[2]} {_ports(found[4])}",
    ),
    (
        re.compile(r"ADDRTYPE match((?: (?:src|dst)-type !?[\w,]+)+)( limit-in| limit-out)?"),
        _addrtype,
    ),
    (
        re.compile(r"(!? ?)ctstate ([A-Z,]+)"),
        lambda found: f"-m conntrack {_not(found[1].strip())}--ctstate {found[2]}",
    ),
    (re.compile(r"(!? ?)state ([A-Z,]+)"), lambda found: f"-m state {_not(found[1].strip())}--state {found[2]}"),
    (
        re.compile(r"statistic mode random (! )?probability (\d+\.\d+)"),
        lambda found: f"-m statistic --mode random {_not(found[1])}--probability {found[2]}",
    ),
    (
        re.compile(r"statistic mode nth (! )?every (\d+)(?: packet (\d+))?"),
        lambda found: f"-m statistic --mode nth {_not(found[1])}--every {found[2]} --packet {found[3] or 0}",
    ),
    (
        re.compile(r"recent: (! )?(SET|CHECK|UPDATE|REMOVE)(?: (?:reap|\w+: \S+|TTL-Match))*"),
        _recent,
    ),
    (
        re.compile(r"(! )?match-set (\S+) ((?:src|dst)(?:,(?:src|dst))*)"),
        lambda found: f"-m set {_not(found[1])}--match-set {found[2]} {found[3]}",
    ),
    (
        re.compile(r"(! )?owner ([UG])ID match (\S+)"),
        lambda found: f"-m owner {_not(found[1])}--{found[2].lower()}id-owner {found[3]}",
    ),
    (re.compile(r"nfacct-name +(\S+)"), lambda found: f"-m nfacct --nfacct-name {found[1]}"),
    (re.compile(r"(icmp|ipv6-icmp)(?: !?type| (!)?type|type) (\d+)(?: code (\d+))?"), _icmp),
    (re.compile(r"icmp(v6)?(?: any)?(?= |$)"), lambda found: "-m icmp6" if found[1] else "-m icmp --icmp-type any"),
)
_TARGETS: dict[str, tuple[tuple[re.Pattern[str], Callable[[Found], str]], ...]] = {
    "DNAT": ((re.compile(r"to:(\S+)((?: (?:random|persistent))*)"), lambda found: f"-j DNAT --to-destination {found[1]}{_dashes(found[2])}"),),
    "SNAT": ((re.compile(r"to:(\S+)((?: (?:random|random-fully|persistent))*)"), lambda found: f"-j SNAT --to-source {found[1]}{_dashes(found[2])}"),),
    "REDIRECT": ((re.compile(r"redir ports (\S+)((?: random)*)"), lambda found: f"-j REDIRECT --to-ports {found[1]}{_dashes(found[2])}"),),
    "MASQUERADE": (
        (re.compile(r"masq ports: (\S+)((?: (?:random|random-fully))*)"), lambda found: f"-j MASQUERADE --to-ports {found[1]}{_dashes(found[2])}"),
        (re.compile(r"((?:random-fully|random))(?= |$)"), lambda found: f"-j MASQUERADE --{found[1]}"),
    ),
    "REJECT": ((re.compile(r"reject-with (\S+)"), lambda found: f"-j REJECT --reject-with {found[1]}"),),
    "MARK": ((re.compile(r"MARK (set|xset|or|and|xor) (" + _NUMBER + ")"), lambda found: _mark("MARK", found)),),
    "CT": ((re.compile(r"(?:CT )?(notrack|NOTRACK)"), lambda _: "-j CT --notrack"),),
}  # fmt: skip

#: Targets whose words are only about how they do it; the packet goes on.
_CONTINUING = frozenset(
    {"LOG", "NFLOG", "ULOG", "TCPMSS", "CHECKSUM", "TRACE", "AUDIT", "TOS", "DSCP", "TTL", "CLASSIFY"}
)


def _dashes(words: str | None) -> str:
    return "".join([f" --{word}" for word in (words or "").split()])


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def options_of(target: str, text: str) -> tuple[list[str], str]:
    """The matches that `text`, the last column of a row, stands for, and the completed target ('' where there is none)."""
    known = _TARGETS.get(target, ())
    matches: list[str] = []
    jump = ""
    rest = " ".join(text.split())  # `column -t` widens every gap
    while rest:
        rest = rest.lstrip()
        for pattern, build in (*known, *_MATCHES):
            found = pattern.match(rest)
            if found is None:
                continue
            try:
                made = build(found)
            except ValueError:  # a service's name that is not in the list above
                continue
            if made.startswith("-j "):
                jump = made
            else:
                matches.append(made)
            rest = rest[found.end() :].lstrip()
            break
        else:
            if rest.startswith("[goto]"):
                jump, rest = f"-g {target}", rest[6:]
                continue
            if target in _CONTINUING:
                jump = f"-j {target} --words {_quoted(rest)}"
            else:
                matches.append(f"-m unread --words {_quoted(rest)}")
            break
    return matches, jump
