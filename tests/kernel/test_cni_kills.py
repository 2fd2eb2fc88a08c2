"""Nothing is lost and nothing leaks: the installed executables are killed again and again, then GC runs, then everything is counted.

An attachment here is the chain flannel (bridge, host-local), portmap; every other one uses portmap's nftables backend. Most are
cut short somewhere, and of those half get no DEL either: that is what a runtime leaves that was killed itself. After GC there must
be exactly what the attachments need that were made whole: one port, one address, one kept configuration, one set of rules each.

`PODWIRE_CNI_KILLS` says how many operations the random test does; a long run is noted in docs/cni.md.
"""

import os
import random
import signal
import time

import pytest
from cni_rig import ARTICLE, Host

from podwire.cni.install import install
from podwire.kernel import owner
from podwire.naming import cni_chain
from podwire.testing.netns import require

pytestmark = pytest.mark.kernel

OPERATIONS = int(os.environ.get("PODWIRE_CNI_KILLS", "160"))
ROUND = 80  # operations between two collections; a bridge takes 1,023 ports
FLANNEL = {**ARTICLE, "cniVersion": "1.1.0", "delegate": {**ARTICLE["delegate"], "ipMasq": True}}
# Calls that change or hold something, or tell the outcome.
CALLS = "write,rename,mkdir,unlink,fsync,flock,sendto,setns,close,execve,wait4,exit_group"


@pytest.fixture(scope="module")
def binaries(tmp_path_factory):
    require("root", "veth", "bridge-device", "iptables", "ip6tables", "nft", "nsenter", "unshare")
    folder = tmp_path_factory.mktemp("bin")
    install(str(folder))
    return str(folder)


class Churn(Host):
    """A node, and what is alive on it: {container ID: (interface, address)}."""

    def __init__(self, binaries):
        super().__init__(binaries)
        self.alive = {}
        self.number = 0

    def portmap(self, number, **more):
        return {
            "name": "cni0",
            "cniVersion": "1.1.0",
            "type": "portmap",
            "backend": ("iptables", "nftables")[number % 2],
            "runtimeConfig": {"portMappings": [{"hostPort": 10000 + number, "containerPort": 80, "protocol": "udp"}]},
            **more,
        }

    def chain(self, number):
        """Name of the container and its interface, and where it lives."""
        return {"name": f"c{number}", "ifname": f"e{number}", "netns": self.pod(f"pool{number % 16}").path}

    def add(self, number, run):
        """The chain's ADD, each plugin started by `run`; the result, or None if one of them did not end well."""
        status, result = run("ADD", FLANNEL, **self.chain(number))
        if status == 0:
            status, result = run("ADD", self.portmap(number, prevResult=result), **self.chain(number))
        return result if status == 0 else None

    def remove(self, number, run):
        """The chain's DEL, backwards; whether all of it ended well."""
        steps = (self.portmap(number), FLANNEL)
        return all(run("DEL", conf, **self.chain(number))[0] == 0 for conf in steps)

    def collect(self, run):
        """GC of the chain, as a runtime calls it; whether all of it ended well."""
        valid = [{"containerID": name, "ifname": ifname} for name, (ifname, _) in self.alive.items()]
        told = {"cni.dev/valid-attachments": valid}
        return all(
            run("GC", {**conf, **told})[0] == 0
            for conf in (
                FLANNEL,
                self.portmap(0),
            )
        )

    def count(self):
        """Fail unless exactly the living attachments are there."""
        marks = {tuple(owner.alias_parts(link.alias) or ()) for link in self.ports()}
        assert marks == {("cni", "cni0", name, ifname) for name, (ifname, _) in self.alive.items()}
        assert sorted(self.reserved("cni0")) == sorted(address for _, address in self.alive.values())
        assert [n for n in self.node.listdir("/var/lib/cni/networks/cni0") if n.startswith(".")] == []
        assert self.node.listdir("/var/lib/cni/flannel") == sorted(self.alive)
        saved = self.node.run("iptables-save", "-t", "nat").stdout
        listed = self.node.run("nft", "list", "ruleset").stdout
        numbers = [int(name[1:]) for name in self.alive]
        declared = {line.split()[0][1:] for line in saved.splitlines() if line.startswith(":CNI-")}
        declared -= {"CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-MASQ", "CNI-HOSTPORT-SETMARK"}
        masquerade = {cni_chain("cni0", name) for name in self.alive}
        forwarding = {cni_chain("cni0", f"c{number}", "DN-") for number in numbers if number % 2 == 0}
        assert declared == masquerade | forwarding
        for chain in declared:
            assert saved.count(f"-j {chain}\n") == 1
        owners = [line.split('"')[1] for line in listed.splitlines() if "dnat to" in line and 'comment "c' in line]
        assert sorted(owners) == sorted(f"c{number}" for number in numbers if number % 2)


@pytest.fixture
def churn(binaries):
    made = Churn(binaries)
    yield made
    made.close()


def test_killed_at_random_and_collected_exactly_what_lives_is_there(churn):
    dice = random.Random(OPERATIONS)
    killed = 0

    def hasty(command, conf, **options):
        nonlocal killed
        process = churn.start(command, conf, **options)
        limit = dice.uniform(0.002, 0.06) if dice.random() < 0.7 else 60
        # Sometimes the programs it started die with it, sometimes they go on without it.
        try:
            process.communicate(timeout=limit)
        except Exception:  # noqa: BLE001 - a TimeoutExpired; whatever it is, the process must go
            process.kill()
            process.communicate()
        killed += process.returncode == -signal.SIGKILL
        return process.returncode, None

    def patient(command, conf, **options):
        return churn.call(command, conf, **options)

    done = 0
    while done < OPERATIONS:
        for _ in range(ROUND):
            done += 1
            if churn.alive and dice.random() < 0.35:
                name = dice.choice(sorted(churn.alive))
                del churn.alive[name]  # from the moment a DEL begins it is nobody's
                churn.remove(int(name[1:]), hasty)
                continue
            churn.number += 1
            if dice.random() < 0.25:
                result = churn.add(churn.number, patient)
                assert result is not None
                address = result["ips"][0]["address"].partition("/")[0]
                assert address not in [held for _, held in churn.alive.values()]
                churn.alive[f"c{churn.number}"] = (f"e{churn.number}", address)
            else:
                add_in_haste(churn, hasty)
                if dice.random() < 0.5:
                    churn.remove(churn.number, hasty)
        churn.collect(hasty)  # a GC may be cut short too
        time.sleep(0.05)  # what a killed plugin had started ends by itself
        assert churn.collect(patient)
        churn.count()
    assert killed > OPERATIONS // 4
    for name in list(churn.alive):
        assert churn.remove(int(name[1:]), patient)
        del churn.alive[name]
    churn.count()


def add_in_haste(churn, hasty):
    """An ADD of which each plugin may be cut short; portmap gets a result that flannel might have given."""
    where = churn.chain(churn.number)
    if hasty("ADD", FLANNEL, **where)[0] == 0:
        previous = {
            "cniVersion": "1.1.0",
            "interfaces": [{"name": where["ifname"], "sandbox": where["netns"]}],
            "ips": [{"interface": 0, "address": "10.244.1.250/24"}],
        }
        hasty("ADD", churn.portmap(churn.number, prevResult=previous), **where)


@pytest.mark.parametrize("backend", [0, 1], ids=["iptables", "nftables"])
@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_portmap_killed_at_every_system_call_in_turn_leaves_nothing_after_gc(churn, command, backend):
    require("strace")
    previous = {
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "e0", "sandbox": "/x"}],
        "ips": [{"interface": 0, "address": "10.244.1.250/24"}],
    }
    for at in range(1, 400):
        number = 2 * at + backend
        where = churn.chain(number)
        conf = churn.portmap(
            number, prevResult={**previous, "interfaces": [{"name": where["ifname"], "sandbox": "/x"}]}
        )
        if command == "DEL":
            assert churn.call("ADD", conf, **where)[0] == 0
        inject = f"inject={CALLS}:signal=KILL:when={at}"
        process = churn.start(
            command, conf, under=["strace", "-o", "/dev/null", "-e", f"trace={CALLS}", "-e", inject], **where
        )
        process.communicate(timeout=60)
        time.sleep(0.02)  # the program it had started may go on
        if process.returncode == 0:
            break
        if at % 2:
            assert churn.call("DEL", conf, **where) == (0, None)
        else:
            assert churn.call("GC", {**conf, "cni.dev/valid-attachments": []}) == (0, None)
        left = churn.node.run("iptables-save", "-t", "nat").stdout + churn.node.run("nft", "list", "ruleset").stdout
        assert f'"c{number}' not in left.replace("\\", ""), at
        assert "CNI-DN-" not in left, at
    assert 15 < at < 399
