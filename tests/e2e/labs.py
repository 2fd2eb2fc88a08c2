"""A lab as a user drives it: by the command line."""

import json
import os
import subprocess
import sys


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
