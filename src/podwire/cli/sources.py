"""Where `explain` and `doctor` look: this node, nodes of a lab, bundles, files. The options are the same everywhere.

A lab's node is read by `podwire collect` inside it; what comes out is a bundle, as from any other node.
"""

from __future__ import annotations

import io
import os
import time
from typing import TYPE_CHECKING, Annotated

import typer

from podwire.errors import PodwireError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from podwire.explain.snapshot import Snapshot

Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PATH]...", help="Bundles, folders or bare files; without any: this node.", show_default=False
    ),
]
Nodes = Annotated[
    list[str] | None, typer.Option("--node", help="A node of the lab; may be given again.", show_default=False)
]
Lab = Annotated[str, typer.Option("--name", envvar="PODWIRE_NAME", help="Which lab --node is in.")]
Bundles = Annotated[
    list[str] | None,
    typer.Option("--bundle", help="What podwire collect wrote; may be given again.", show_default=False),
]
Kubeconfig = Annotated[
    str | None,
    typer.Option(
        envvar="KUBECONFIG", help="Read Nodes, Services, EndpointSlices and Pods with it.", show_default=False
    ),
]

#: Where a lab's node has its kubeconfig, and which of its daemons' logs are evidence.
_LAB_LOGS = ("flanneld", "kube-proxy", "kubelet", "cri")
_LOG_BYTES = 1 << 17


def snapshots(
    paths: Sequence[str] | None,
    nodes: Sequence[str] | None = None,
    lab: str = "lab",
    bundles: Sequence[str] | None = None,
    kubeconfig: str | None = None,
) -> list[Snapshot]:
    """The nodes that the command line names. Raises UsageError, PodwireError."""
    named = [*(paths or ()), *(bundles or ())]
    if nodes and named:
        raise UsageError("--node and files together", answer="one or the other", hint="collect the node first")
    if nodes:
        return [of_lab(lab, node) for node in nodes]
    if named:
        from podwire.explain.snapshot_load import load

        return load(named)
    return [this_node(kubeconfig)]


def this_node(kubeconfig: str | None) -> Snapshot:
    """The node we run on."""
    from podwire.explain import snapshot_live as live
    from podwire.kernel import owner

    if os.geteuid() != 0:
        raise UsageError("this node can only be read by root", hint="sudo, or name a bundle or files")
    found = live.collect(kubeconfig, kernel_log=owner.ENV_LAB not in os.environ)
    return found.snapshot(time.time(), "this node", live=True)


def of_lab(lab: str, node: str) -> Snapshot:
    """A node of a lab on this machine."""
    import subprocess

    from podwire.explain import snapshot_archive as archive
    from podwire.explain.snapshot import TextFile
    from podwire.explain.snapshot_load import bundle
    from podwire.lab import processes
    from podwire.lab.logs import read
    from podwire.lab.machine import KUBECONFIG, environment, podwire
    from podwire.lab.preflight import root
    from podwire.lab.state import Folder

    root()
    folder = Folder(lab)
    topology = folder.topology()
    machine = topology.machine(node).name
    holder = processes.living_holder(folder, machine)
    argv = podwire("collect", "-o", "-", "--no-kernel-log", "--kubeconfig", KUBECONFIG)
    done = subprocess.run(
        ["nsenter", f"--target={holder.pid}", "--mount", "--uts", "--net", "--pid", "--wd=/", "--", *argv],
        env=environment(topology, machine, "exec"), stdin=subprocess.DEVNULL, capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise PodwireError("reading", machine, said[-1] if said else f"exit status {done.returncode}")
    files = archive.read_stream(io.BytesIO(done.stdout), len(done.stdout), machine)
    manifest = archive.manifest_of(files)
    assert manifest is not None
    into = bundle(files, *manifest, origin=f"{machine} of lab {lab}", live=True)
    for component in _LAB_LOGS:
        path = folder.log_path(machine, component)
        if os.path.exists(path):
            text = "\n".join(read(path, tail=400))[-_LOG_BYTES:]
            into.outputs.setdefault("log", []).append(TextFile(f"{component}.log", text, path))
    return into
