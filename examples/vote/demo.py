"""`make demo`: the two articles, walked through on a fresh lab. Every claim is checked; the exit status says whether all hold."""

from __future__ import annotations

import subprocess
import sys
import time

import steps
from walk import Failed, Walk

NAME = "demo"


def podwire(*arguments: str) -> None:
    """Run podwire with this terminal."""
    subprocess.run([sys.executable, "-P", "-m", "podwire", *arguments], check=True)


def second_lab(began: float) -> None:
    """Step 1's second half: a lab of one node beside the first, so that the first keeps its addresses."""
    name = f"{NAME}-2"
    walk = Walk(name, f"/run/podwire/lab/{name}/kubeconfig", began=began)
    walk.title("1b A node registered again under another cluster CIDR (in a second lab, beside the first)")
    walk.run(f"podwire up --name {name} --nodes 1", lines=9)
    try:
        steps.new_cidr_after_reregistration(walk)
    finally:
        podwire("down", "--name", name)


def main() -> int:
    """Walk; the lab is taken down whatever happens."""
    began = time.monotonic()
    walk = Walk(NAME, f"/run/podwire/lab/{NAME}/kubeconfig", began=began)
    try:
        podwire("down", "--name", NAME)
        walk.title("A lab of three nodes")
        walk.say(f"$ podwire up --name {NAME}")
        podwire("up", "--name", NAME)
        for title, step in steps.STEPS:
            walk.title(title)
            step(walk)
            if step is steps.pod_cidrs:
                second_lab(began)
        walk.title("   The end")
        steps.nothing_left(walk, NAME)
    except (Failed, subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    finally:
        if sys.exc_info()[0] is not None or _is_up():
            podwire("down", "--name", NAME)
    print(f"\nEverything shown holds. It took {time.monotonic() - began:.0f} s.")
    return 0


def _is_up() -> bool:
    import os

    return os.path.exists(f"/run/podwire/lab/{NAME}")


if __name__ == "__main__":
    sys.exit(main())
