"""Host ports with iptables: the reference plugin's chains and rules in the nat table, written in one transaction.

    PREROUTING, OUTPUT      -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
    CNI-HOSTPORT-DNAT       --destination-ports 8080,8081 -j CNI-DN-HASH      (the container's; 15 ports a rule; comment)
    CNI-DN-HASH             from the container itself, and from 127.0.0.1: -j CNI-HOSTPORT-SETMARK
                            -p tcp --dport 8080 -j DNAT --to-destination 10.1.2.3:80
    CNI-HOSTPORT-SETMARK    -j MARK --set-xmark 0x2000/0x2000
    POSTROUTING             first: -j CNI-HOSTPORT-MASQ: what has the mark is masqueraded

The upper chains are everybody's: rules are added that are not there, none is ever removed. What is usual (they are complete, the
container's chain is new) is one iptables-restore, in which the shared rules stand as `-C`, so that the kernel's state cannot have
changed in between; where it is refused, each rule is looked up and one transaction adds what is missing.
"""

from __future__ import annotations

from podwire import naming
from podwire.errors import CommandFailed, MissingCapability
from podwire.kernel import netfilter, spawn
from podwire.rules.iptables.run import LOCK_WAIT_SECONDS, Iptables, RestoreRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from podwire.addresses import Prefix
    from podwire.cni.plugins.portmap_conf import Conf, Mapping

DNAT_CHAIN = "CNI-HOSTPORT-DNAT"
SET_MARK_CHAIN = "CNI-HOSTPORT-SETMARK"
MASQ_CHAIN = "CNI-HOSTPORT-MASQ"
OLD_SNAT_CHAIN = "CNI-HOSTPORT-SNAT"  # releases before 0.8 made CNI-SN-… chains below it
_PORTS_A_RULE = 15  # of the match multiport
_COMMENT_MAX = 255


class Rule:
    """A rule as its arguments; `first` puts it before all others of its chain."""

    __slots__ = ("args", "chain", "first")

    def __init__(self, chain: str, args: list[str], *, first: bool = False) -> None:
        self.chain = chain
        self.args = args
        self.first = first

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rule) and (self.chain, self.args) == (other.chain, other.args)

    __hash__ = None  # type: ignore[assignment]  # equal by value and mutable

    def line(self, command: str = "") -> str:
        """As a line for iptables-restore; without a command: the one that adds it."""
        words = " ".join(_word(arg) for arg in self.args)
        return f"{command or ('-I' if self.first else '-A')} {self.chain} {words}"


def _word(text: str) -> str:
    if "\n" in text:
        raise ValueError(f"a rule's argument cannot have a line break in it: {text!r}")
    if text and not any(character in " \t\"'\\" for character in text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def container_chain(network: str, container_id: str) -> str:
    """The chain of one container."""
    return naming.cni_chain(network, container_id, "DN-")


def comment(network: str, container_id: str) -> str:
    """What the rules say that lead to a container's chain."""
    text = f'dnat name: "{network}" id: "{container_id}"'
    return text if len(text) <= _COMMENT_MAX else text[: _COMMENT_MAX - 2] + "..."


def shared_rules(conf: Conf) -> list[Rule]:
    """The rules that containers share, in the order in which they are made."""
    rules = []
    if conf.snat and not conf.set_mark_chain:
        mark = hex(1 << conf.mark_bit)
        said = ["-m", "comment", "--comment"]
        rules = [
            Rule(SET_MARK_CHAIN, [*said, "CNI portfwd masquerade mark", "-j", "MARK", "--set-xmark", f"{mark}/{mark}"]),
            Rule(MASQ_CHAIN, ["-m", "mark", "--mark", f"{mark}/{mark}", "-j", "MASQUERADE"]),
            # Before the rules that bridge and ptp add for their containers, which would let the packet through.
            Rule("POSTROUTING", [*said, "CNI portfwd requiring masquerade", "-j", MASQ_CHAIN], first=True),
        ]
    entry = ["-m", "addrtype", "--dst-type", "LOCAL", "-j", DNAT_CHAIN]
    return [*rules, Rule("PREROUTING", entry), Rule("OUTPUT", entry)]


def container_rules(conf: Conf, net: Prefix) -> list[Rule]:
    """The rules of a container's own chain, then those that lead there; each once."""
    chain = container_chain(conf.name, conf.container_id)
    rules = []
    for mapping in conf.mappings:
        if mapping.serves(net.ip.bits):
            rules += _mapping_rules(conf, net, chain, mapping)
    rules += entry_rules(conf, net.ip.bits)
    return [rule for index, rule in enumerate(rules) if rule not in rules[:index]]


def entry_rules(conf: Conf, bits: int) -> list[Rule]:
    """The rules that lead to a container's chain: one a protocol, or more for many ports."""
    rules = []
    chain = container_chain(conf.name, conf.container_id)
    ports: dict[str, list[str]] = {}
    for mapping in conf.mappings:
        if mapping.wrong:  # no ADD made a rule for it
            continue
        ports.setdefault(mapping.protocol, []).append(str(mapping.host_port))
    said = ["-m", "comment", "--comment", comment(conf.name, conf.container_id), "-m", "multiport"]
    for protocol in sorted(ports):
        for start in range(0, len(ports[protocol]), _PORTS_A_RULE):
            listed = ",".join(ports[protocol][start : start + _PORTS_A_RULE])
            entry = [*said, "-p", protocol, "--destination-ports", listed, *conf.conditions[bits], "-j", chain]
            rules.append(Rule(DNAT_CHAIN, entry))
    return rules


def _mapping_rules(conf: Conf, net: Prefix, chain: str, mapping: Mapping) -> list[Rule]:
    match = ["-p", mapping.protocol, "--dport", str(mapping.host_port)]
    if mapping.destination is not None:
        match += ["-d", str(mapping.destination)]
    v4 = net.ip.bits == 32
    sources = []
    if conf.snat:
        everywhere = "0.0.0.0/0" if v4 else "::/0"
        # The container itself, and its network, that come here through the host.
        sources = [everywhere if conf.masq_all else str(net)]
        if v4 and not conf.masq_all:
            sources.append("127.0.0.1")
    rules = [Rule(chain, [*match, "-s", source, "-j", conf.set_mark_chain or SET_MARK_CHAIN]) for source in sources]
    where = f"{net.ip}:{mapping.container_port}" if v4 else f"[{net.ip}]:{mapping.container_port}"
    return [*rules, Rule(chain, [*match, "-j", "DNAT", "--to-destination", where])]


class Backend:
    """ADD, DEL and CHECK in iptables."""

    def forward(self, conf: Conf, net: Prefix) -> None:
        """Write the rules for one of the container's addresses. Raises RestoreRefused, MissingCapability."""
        tables = _tables(net.ip.bits)
        shared, own = shared_rules(conf), container_rules(conf, net)
        chain = container_chain(conf.name, conf.container_id)
        text = _transaction([*(rule.line("-C") for rule in shared), f"-N {chain}", *(rule.line() for rule in own)])
        if _accepts(tables, text):
            return
        with _Lock():
            if not _accepts(tables, text):  # it was not the first of many on a new node
                _add_missing(tables, [*shared, *own], chain)

    def check(self, conf: Conf, net: Prefix) -> None:
        """Whether the container's rules are there. Raises ValueError."""
        chain = container_chain(conf.name, conf.container_id)
        tables, rules = _tables(net.ip.bits), container_rules(conf, net)
        family = "ipv4" if net.ip.bits == 32 else "ipv6"
        try:
            if not tables.has_chain("nat", chain):
                raise ValueError(f"could not check {family} dnat: chain {chain} not found in iptables table nat")
            for where in (chain, DNAT_CHAIN):
                _check(tables, [rule for rule in rules if rule.chain == where], where, family)
        except MissingCapability as error:
            raise ValueError(f"neither iptables nor ip6tables is usable: {error}") from error

    def unforward(self, conf: Conf) -> None:
        """Remove the container's chain and what leads there. Raises RestoreRefused."""
        chain = container_chain(conf.name, conf.container_id)
        for bits in (32, 128):
            remove(bits, chain, DNAT_CHAIN, [rule.line("-D") for rule in entry_rules(conf, bits)])
            remove(bits, naming.cni_chain(conf.name, conf.container_id, "SN-"), OLD_SNAT_CHAIN)


def _tables(bits: int) -> Iptables:
    return Iptables(4 if bits == 32 else 6)


def _transaction(lines: list[str]) -> str:
    return "\n".join(["*nat", *lines, "COMMIT", ""])


def _accepts(tables: Iptables, text: str) -> bool:
    try:
        tables.restore(text)
    except RestoreRefused:
        return False
    return True


def _add_missing(tables: Iptables, rules: list[Rule], chain: str) -> None:
    """Add the chains and rules that are not there, in one transaction."""
    chains = dict.fromkeys(rule.chain for rule in rules if rule.chain not in ("PREROUTING", "OUTPUT", "POSTROUTING"))
    chains = dict.fromkeys([*chains, DNAT_CHAIN, chain])
    known = {name for name in chains if tables.has_chain("nat", name)}
    # A rule of a chain, or to a chain, that does not exist is not there; asking would be an error of another kind.
    missing = [rule for rule in rules if not _exists(tables, rule, chains, known)]
    lines = [f"-N {name}" for name in chains if name not in known]
    tables.restore(_transaction([*lines, *(rule.line() for rule in missing)]))


def _exists(tables: Iptables, rule: Rule, chains: dict[str, None], known: set[str]) -> bool:
    if any(name in chains and name not in known for name in (rule.chain, rule.args[rule.args.index("-j") + 1])):
        return False
    argv = [tables.name, "-w", str(LOCK_WAIT_SECONDS), "-t", "nat", "-C", rule.chain, *rule.args]
    return spawn.run(argv, timeout=60).status == 0


def _check(tables: Iptables, rules: list[Rule], where: str, family: str) -> None:
    try:
        tables.restore(_transaction([rule.line("-C") for rule in rules]))
    except RestoreRefused:
        shown = " ".join(f"[{' '.join(rule.args)}]" for rule in rules)
        raise ValueError(
            f"could not check {family} dnat: rule [{shown}] in chain {where} not found in table nat"
        ) from None


def remove(bits: int, chain: str, entry: str, expected: list[str] | None = None) -> None:
    """Remove a chain and the rules of `entry` that lead there, however many; `expected` are the lines that usually do it.

    Raises RestoreRefused.
    """
    if not _may_have(bits, chain):
        return
    tables = _tables(bits)
    away = [f"-F {chain}", f"-X {chain}"]
    try:
        if expected and _accepts(tables, _transaction([*expected, *away])):
            return
        if not tables.has_chain("nat", chain):
            return
        leading = [rule for rule in tables.rules("nat", entry) if rule.endswith(f"-j {chain}")]
    except MissingCapability:
        return
    except CommandFailed:
        leading = []  # no such entry chain
    try:
        tables.restore(_transaction([*(f"-D {entry} {rule}" for rule in leading), *away]))
    except RestoreRefused:
        if tables.has_chain("nat", chain):  # else another DEL of the same attachment was quicker
            raise


def _may_have(bits: int, chain: str) -> bool:
    return netfilter.iptables_may_have(4 if bits == 32 else 6, "nat", chain)


def collect(network: str, valid: set[str]) -> None:
    """Remove the chains of a network's containers that are not valid, by the comments of the rules that lead there."""
    kept = {container_chain(network, container_id) for container_id in valid}
    start = 'dnat name: \\"' + network + '\\" id: '
    for bits in (32, 128):
        if not _may_have(bits, DNAT_CHAIN):
            continue
        try:
            found = _tables(bits).rules("nat", DNAT_CHAIN)
        except (MissingCapability, CommandFailed):
            continue  # no iptables, or no such chain: nothing of ours is there
        chains = {rule.rpartition(" -j ")[2] for rule in found if start in rule}
        for chain in sorted(chains - kept):
            if chain.startswith("CNI-DN-"):
                remove(bits, chain, DNAT_CHAIN)


class _Lock:
    """Keeps two ADDs from adding the same shared rule; the network namespace itself is what is locked (flock(2)).

    It is only waited for some seconds: without it a shared rule could stand there twice, which harms nobody.
    """

    __slots__ = ("_fd",)

    def __enter__(self) -> None:
        import fcntl
        import os
        import time

        self._fd = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        deadline = time.monotonic() + LOCK_WAIT_SECONDS
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return
                time.sleep(0.01)
            else:
                return

    def __exit__(self, *_: object) -> None:
        import os

        os.close(self._fd)
