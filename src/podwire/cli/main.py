"""The command `podwire`: one subcommand a part, each in a module of its own that imports its room inside the command.

A daemon's process imports only its own command's module: the whole set would cost every one of them start-up time and
memory. Every PodwireError becomes one line on stderr and the exit status of its class; everything else is a fault
of podwire's and shows its traceback.
"""

from __future__ import annotations

import importlib
import os
import sys

from podwire.errors import PodwireError

#: Subcommand → the module of podwire.cli that registers it.
COMMANDS = {
    "up": "lab",
    "down": "lab",
    "status": "lab",
    "node": "lab",
    "apiserver": "apiserver",
    "controller-manager": "controller_manager",
    "kubelet": "kubelet",
    "cri": "cri",
    "flanneld": "flanneld",
    "kube-proxy": "kube_proxy",
    "cni": "cni",
    "collect": "collect",
    "doctor": "doctor",
    "explain": "explain",
}

#: Commands whose module has a `main` that reads the command line itself: flannel's flags are Go's (-iface=eth0); of the
#: others there is one on each node, and typer would cost each of them memory and start-up time.
RAW = frozenset({"cri", "flanneld", "kubelet"})


def main() -> None:
    """Run the command line of this process."""
    asked = next((argument for argument in sys.argv[1:] if not argument.startswith("-")), "")
    try:
        if asked in RAW:
            module = importlib.import_module(f"podwire.cli.{COMMANDS[asked]}")
            status = module.main(sys.argv[sys.argv.index(asked) + 1 :])
        else:
            from podwire.cli import app

            status = app.run([COMMANDS[asked]] if asked in COMMANDS else list(dict.fromkeys(COMMANDS.values())))
    except PodwireError as error:
        print(f"podwire: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader (head, less) has gone; nobody is left to tell, and nothing more may be flushed to it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    sys.exit(status)
