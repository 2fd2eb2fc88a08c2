"""The recordings of the real kube-proxy, and how rules are compared with them."""

from __future__ import annotations

import functools
import gzip
import json
import os
import re
from collections import defaultdict

from podwire.kubeproxy import config as configuration
from podwire.kubeproxy.changes import Batch
from podwire.kubeproxy.dry_run import Objects
from podwire.kubeproxy.iptables import SHARED_CHAINS
from podwire.kubeproxy.settings import resolve
from podwire.rules.iptables import save

_FILE = os.path.join(os.path.dirname(__file__), "data", "kube-proxy", "golden.json.gz")
_SERVICE = re.compile(r'"(?:other traffic to )?([^"/ ]+/[^" ]+)')


@functools.cache
def cases():
    with gzip.open(_FILE) as file:
        return json.load(file)


def with_rules():
    """The names of the cases that have dumps of iptables mode."""
    return [name for name, case in cases().items() if "states" in case]


def objects(state):
    found = Objects()
    for value in state["objects"]:
        found.add(value)
    assert not found.skipped
    return found


def change(before, after):
    """The batch that turns the objects of one state into those of the next."""
    batch = Batch()
    for kind in ("services", "slices"):
        old, new = getattr(before.batch, kind), getattr(after.batch, kind)
        changes = dict.fromkeys(old.keys() - new.keys()) | {key: new[key] for key in new if new[key] != old.get(key)}
        getattr(batch, kind).update(changes)
    return batch


def config(case, mode="iptables"):
    data = {**case["config"], "mode": mode}
    data[mode] = data["iptables"]
    return configuration.Config(**configuration.read(data).fields).check()


def interface_ips(case):
    return frozenset(text.split("/")[0] for texts in case["interfaces"].values() for text in texts)


def settings(case, state, family, mode="iptables"):
    found = objects(state)
    node, ips = found.nodes[case["node"]], interface_ips(case)
    return resolve(config(case, mode), family, case["node"], node, ips, service_cidrs=found.service_cidrs)


def rules(dump):
    """{(table, chain): rules} without nfacct, and without the rules that exist only for nfacct."""
    found = {}
    for table in save.read(dump).tables.values():
        for chain in table.chains.values():
            lines = [line for line in chain.lines if "localhost_nps_accepted_pkts" not in line]
            found[table.name, chain.name] = [re.sub(r"-m nfacct --nfacct-name +\S+ ", "", line) for line in lines]
    return found


def by_service(lines):
    """The rules of a shared chain grouped by Service port: the order of the groups is free, inside them it is not."""
    groups = defaultdict(list)
    for line in lines:
        found = _SERVICE.search(line)
        groups[found[1] if found else ""].append(line)
    groups[""].sort()  # addresses of --nodeport-addresses, in no order
    return dict(groups)


def differences(got, want):
    """What is different between two {(table, chain): rules}, as lines of text."""
    found = []
    for where in sorted(got.keys() | want.keys()):
        ours, theirs = got.get(where), want.get(where)
        if where in SHARED_CHAINS and ours is not None and theirs is not None:
            if "nodeports; NOTE" in "".join(theirs) and "nodeports; NOTE" not in ours[-1]:
                found.append(f"{where}: the jump to KUBE-NODEPORTS is not last")
            ours, theirs = by_service(ours), by_service(theirs)
        if ours != theirs:
            found.append(f"{where}:\n  ours   {ours}\n  theirs {theirs}")
    return found
