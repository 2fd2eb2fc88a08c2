"""Labs for the end-to-end tests."""

import json
import os
import subprocess
import sys

import pytest

from podwire.testing.netns import require

HERE = os.path.dirname(os.path.abspath(__file__))
VOTE = os.path.join(os.path.dirname(os.path.dirname(HERE)), "examples", "vote")
sys.path.insert(0, VOTE)


class Lab:
    """A lab by name, driven through the command line as a user does."""

    def __init__(self, name):
        self.name = name
        self.kubeconfig = f"/run/podwire/lab/{name}/kubeconfig"

    def podwire(self, *arguments, check=True, timeout=120):
        return podwire(*arguments, check=check, timeout=timeout, env={**os.environ, "PODWIRE_NAME": self.name})

    def kubectl(self, *arguments, check=True):
        done = subprocess.run(
            ["kubectl", f"--kubeconfig={self.kubeconfig}", *arguments], capture_output=True, text=True, check=False
        )
        if check and done.returncode != 0:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr}{done.stdout}")
        return done.stdout

    def on(self, node, *argv, check=True):
        return self.podwire("node", "exec", node, "--", *argv, check=check).stdout

    def status(self):
        return json.loads(self.podwire("status", "--json", check=False).stdout)[0]

    def pid(self, node, component):
        machine = next(machine for machine in self.status()["machines"] if machine["name"] == node)
        return next(c["pid"] for c in machine["components"] if c["name"] == component)


def podwire(*arguments, check=True, timeout=120, env=None):
    done = subprocess.run(
        [sys.executable, "-P", "-m", "podwire", *arguments],
        capture_output=True, text=True, check=False, timeout=timeout, env=env, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if check and done.returncode != 0:
        raise AssertionError(f"podwire {' '.join(arguments)} → {done.returncode}\n{done.stdout}{done.stderr}")
    return done


@pytest.fixture(scope="session")
def lab():
    """One lab of three nodes that all tests share which do not break it."""
    require("root", "kubectl", "iptables", "vxlan", "bridge-device")
    made = Lab("e2e")
    made.podwire("down")
    made.podwire("up")
    yield made
    made.podwire("down")
