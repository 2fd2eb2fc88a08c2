"""Checks of the rules as a whole: two back ends, no rules at all, dumps that cannot be trusted, what an old kube-proxy wrote."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from podwire.doctor.finding import Check, Evidence, Said
from podwire.naming import endpoint_chain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from podwire.doctor.view import Node
    from podwire.explain.tables import IptablesRules

#: What kube-proxy says when a sync went well: an error before it is history.
_SYNCED = re.compile(r"SyncProxyRules complete|\bsynced\b|Sync (?:successful|complete)")
_KUBE = ("KUBE-SERVICES", "KUBE-SVC-", "KUBE-SEP-", "KUBE-NODEPORTS")


def _kube_rules(rules: IptablesRules) -> int:
    """How many rules kube-proxy has there; kubelet's hint and canary chains are in both back ends and tell nothing."""
    return sum(
        len(chain.lines)
        for table in rules.tables.values()
        for name, chain in table.chains.items()
        if name.startswith(_KUBE)
    )


def look_two_back_ends(node: Node) -> Iterator[Said]:
    """kube-proxy's rules in the legacy tables and in nft at once."""
    legacy = [rules for rules in node.iptables if rules.source == "iptables-legacy" and _kube_rules(rules)]
    modern = [rules for rules in node.iptables if rules.source == "iptables-nft" and _kube_rules(rules)]
    for family in (4, 6):
        old = [rules for rules in legacy if rules.family == family]
        new = [rules for rules in modern if rules.family == family]
        if not old or not new:
            continue
        program = "ip6tables-legacy" if family == 6 else "iptables-legacy"
        evidence = [Evidence(f"{_kube_rules(one)} rules of kube-proxy", f"{one.where} (legacy)") for one in old]
        evidence += [Evidence(f"{_kube_rules(one)} rules of kube-proxy", f"{one.where} (nf_tables)") for one in new[:1]]
        evidence += _disagreements(old[0], new[0])
        yield Said(
            evidence,
            [
                "see which back end kube-proxy and kubelet use now: iptables -V; the other one is left over",
                f"{program}-save   # make sure that nobody else's rules live there, then",
                f"for t in nat filter mangle; do {program} -t $t -F; {program} -t $t -X; done",
            ],
        )


def _targets(rules: IptablesRules) -> dict[str, set[str]]:
    """Service port (the comment of its chains) → targets."""
    found: dict[str, set[str]] = {}
    nat = rules.tables.get("nat")
    for name, chain in nat.chains.items() if nat else ():
        if name.startswith("KUBE-SEP-"):
            for line in chain.lines:
                target = re.search(r"--to-destination (\S+)", line)
                comment = re.search(r'--comment "?([^"\s]+)"?', line)
                if target and comment:
                    found.setdefault(comment.group(1), set()).add(target.group(1))
    return found


def _disagreements(old: IptablesRules, new: IptablesRules) -> list[Evidence]:
    one, other = _targets(old), _targets(new)
    found = []
    for service in sorted(one.keys() & other.keys()):
        if one[service] != other[service]:
            said = f"{service}: legacy sends to {', '.join(sorted(one[service]))}, nf_tables to {', '.join(sorted(other[service]))}"
            found.append(Evidence(said, f"{old.where}, {new.where}"))
    return found[:5]


def look_other_dump(node: Node) -> Iterator[Said]:
    """Iptables itself said that there are rules it does not show."""
    warned = [rules for rules in node.iptables if rules.other_variant]
    if warned and not any(rules.source == "iptables-legacy" for rules in node.iptables):
        yield Said(
            [
                Evidence(
                    "# Warning: iptables-legacy tables present, use iptables-legacy-save to see them", warned[0].where
                )
            ],
            ["iptables-legacy-save > legacy.txt   # and give it to podwire doctor too"],
            level="warning",
        )


def look_no_rules(node: Node) -> Iterator[Said]:
    """kube-proxy's chains are there and empty, or are not there at all."""
    errors = _restore_errors(node)
    said = False
    for rules in node.iptables:
        nat, filters = rules.tables.get("nat"), rules.tables.get("filter")
        if rules.family != 4 or node.kube_nft:
            continue
        services = nat.chains.get("KUBE-SERVICES") if nat else None
        if nat and services is not None and not services.lines and not _ipvs(rules) and not nat.partial:
            said = True
            names = [
                name
                for name in ("KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING")
                if name in nat.chains and not nat.chains[name].lines
            ]
            evidence = [
                Evidence(
                    f"{', '.join(names)}: no rule in {'them' if names[1:] else 'it'}, though every cluster has the Service default/kubernetes",
                    f"{rules.where}, nat",
                )
            ]
            if node.snapshot.services:
                evidence.append(
                    Evidence(f"{len(node.snapshot.services)} Services exist", node.snapshot.where.get("services", ""))
                )
            yield Said(evidence + errors, _restore_fix(errors))
        elif not nat and filters and not filters.partial and _no_jump(rules):
            said = True
            yield Said(
                [
                    Evidence("KUBE-FORWARD exists, but nothing jumps to KUBE-SERVICES", f"{rules.where}, filter"),
                    *errors,
                ],
                ["kubectl -n kube-system logs -l k8s-app=kube-proxy --tail=50   # does it run? has it synced?"],
                title="kube-proxy has not written its rules (yet)",
                why="After a reboot some chains come back before others. kube-proxy's jumps are missing, so no Service works until it has synced.",
                level="warning",
            )
    if errors and not said:
        yield Said(errors, _restore_fix(errors), title="kube-proxy's last sync failed: its rules are old")


def _no_jump(rules: IptablesRules) -> bool:
    chains = rules.tables["filter"].chains
    jumps = any("KUBE-SERVICES" in line for chain in chains.values() for line in chain.lines)
    return "KUBE-FORWARD" in chains and not jumps and not _ipvs(rules)


def _ipvs(rules: IptablesRules) -> bool:
    return any(
        name in ("KUBE-NODE-PORT", "KUBE-IPVS-FILTER", "KUBE-LOAD-BALANCER")
        for table in rules.tables.values()
        for name in table.chains
    )


def _restore_errors(node: Node) -> list[Evidence]:
    found = []
    for log in node.snapshot.output("log"):
        lines = log.text.splitlines()
        failed = [
            number
            for number, line in enumerate(lines)
            if re.search(r"Failed to execute iptables-restore|iptables-restore.*failed", line)
        ]
        if not failed or any(_SYNCED.search(line) for line in lines[failed[-1] :]):
            continue
        number = failed[-1]
        more = [
            line.strip()
            for line in lines[number + 1 : number + 6]
            if re.search(r"Extension|line \d+|not supported|No such file|unknown option|Couldn't load", line)
        ]
        found.append(Evidence("; ".join([lines[number].strip()[:160], *more]), log.where))
        extension = re.search(
            r"Extension (\w+) revision|Couldn't load match `(\w+)'|unknown option \"(--[\w-]+)\"", log.text
        )
        if extension:
            found += _kernel_has(node, next(filter(None, extension.groups())))
    return found


def _kernel_has(node: Node, extension: str) -> list[Evidence]:
    found = [Evidence(f"the extension that is missing: {extension}", "the log")]
    for config in node.snapshot.output("kernel-config"):
        lines = [line for line in config.text.splitlines() if extension.upper().lstrip("-") in line]
        found += [Evidence(line.strip(), config.where) for line in lines[:2]]
    if node.snapshot.modules is not None and f"xt_{extension}" not in node.snapshot.modules:
        where = next(iter(node.snapshot.modules.values()), "the list of modules")
        found.append(Evidence(f"module xt_{extension} is not loaded", where))
    return found


def _restore_fix(errors: list[Evidence]) -> list[str]:
    names = [re.search(r"missing: (\w+)", one.text) for one in errors]
    extension = next((found.group(1) for found in names if found), "")
    first = (
        [f"modprobe xt_{extension}   # and if the kernel has none: another kernel, or a kube-proxy that does without"]
        if extension
        else []
    )
    return [
        *first,
        "kubectl -n kube-system logs -l k8s-app=kube-proxy --tail=200 | grep -A4 'iptables-restore'",
        "mode: nftables in kube-proxy's configuration, where the kernel has nftables but lacks the match",
    ]


#: Table → built-in chain → what must be jumped to from it for kube-proxy's rules to be asked at all.
_JUMPS = (
    ("nat", "PREROUTING", "KUBE-SERVICES"),
    ("nat", "OUTPUT", "KUBE-SERVICES"),
    ("nat", "POSTROUTING", "KUBE-POSTROUTING"),
    ("filter", "FORWARD", "KUBE-FORWARD"),
)


def look_jumps(node: Node) -> Iterator[Said]:
    """kube-proxy's chains are full, and nothing leads to them."""
    for rules in node.iptables:
        missing = []
        for name, hook, target in _JUMPS:
            table = rules.tables.get(name)
            if table is None or table.partial or hook not in table.chains or target not in table.chains:
                continue
            if table.chains[target].lines and not any(
                re.search(rf"-[jg] {target}$", line) for line in table.chains[hook].lines
            ):
                missing.append(
                    f"{name} {hook} has no jump to {target}, which has {len(table.chains[target].lines)} rules"
                )
        if missing:
            yield Said(
                [Evidence(text, rules.where) for text in missing],
                [
                    "kubectl -n kube-system rollout restart ds/kube-proxy   # it puts the jumps back; pods with hostPorts must be made anew"
                ],
            )


def look_unreadable(node: Node) -> Iterator[Said]:
    """DNAT rules whose target the program that made the dump could not print."""
    for rules in node.iptables:
        nat = rules.tables.get("nat")
        garbled = [
            (name, line)
            for name, chain in (nat.chains.items() if nat else ())
            for line in chain.lines
            if re.search(r"-j DNAT (?:\[unsupported revision\]|--to-destination\s+(?:--|$))", line)
        ]
        if not garbled:
            continue
        evidence = [
            Evidence(
                f"-A {garbled[0][0]} {garbled[0][1]}" + (f" (and {len(garbled) - 1} more)" if garbled[1:] else ""),
                f"{rules.where}, nat",
            )
        ]
        evidence += _proven(rules, {name for name, _ in garbled})
        yield Said(
            evidence,
            ["dump again with the newest iptables-save on the host (or nsenter/chroot into the kube-proxy container and use its own)",
             "nft list ruleset   # shows the targets too, where the back end is nf_tables"],
            level="warning",
        )  # fmt: skip


def _proven(rules: IptablesRules, chains: set[str]) -> list[Evidence]:
    """Targets from the comments of KUBE-SVC chains, where the hash in the chain's name proves them."""
    found = []
    for name, chain in rules.tables["nat"].chains.items():
        for line in chain.lines if name.startswith("KUBE-SVC-") else ():
            match = re.search(r'--comment "(\S+) -> (\S+)".* -j (KUBE-SEP-\w+)', line)
            if match and match.group(3) in chains:
                service, target, sep = match.groups()
                proof = [one for one in ("tcp", "udp", "sctp") if endpoint_chain(service, one, target) == sep]
                said = f"{sep} is {service} -> {target}"
                said += (
                    f" (proven: it is the hash of that, {proof[0]})"
                    if proof
                    else " (by the comment; the hash does not confirm it)"
                )
                found.append(Evidence(said, f"{rules.where}, nat {name}"))
    return found[:10]


CHECKS = (
    Check(
        "two-back-ends",
        "kube-proxy's rules are in both iptables back ends",
        "Services go to pods that are long gone, or work now and not after a restart, although the rules look right.",
        "Both back ends hook the same points. In nat the table whose hook was registered last runs first and the first that translates"
        " wins: which one that is, no dump tells. In filter both run, and a DROP in either is final.",
        look_two_back_ends,
    ),
    Check(
        "dump-incomplete",
        "There are legacy rules that this input does not show",
        "An explanation of where a packet goes may be wrong.",
        "iptables (nf_tables) warned that legacy tables exist. What they do is not in this dump.",
        look_other_dump,
    ),
    Check(
        "kube-proxy-no-rules",
        "kube-proxy runs, but its chains are empty",
        "No Service works on this node: connections to clusterIPs time out or go out by the default route.",
        "iptables-restore is all or nothing: one match that the kernel or the program does not have, and not one rule of the whole"
        " transaction is written. The base jumps are written separately, so they are there.",
        look_no_rules,
    ),
    Check(
        "jumps-missing",
        "Nothing leads to kube-proxy's chains",
        "Services stopped working after a reload of the firewall, though all chains are there.",
        "A firewall that is reloaded (firewalld, iptables-restore of a saved file) writes the built-in chains anew. The jumps of others are gone"
        " until those write them again.",
        look_jumps,
    ),
    Check(
        "dump-unreadable-targets",
        "The dump was made by an iptables older than the rules",
        "DNAT rules show no address, or 0.0.0.0:0.",
        "The rules were written with a revision of the DNAT target that the dumping program does not know. The rules do translate; only"
        " this text does not show where to.",
        look_unreadable,
    ),
)
