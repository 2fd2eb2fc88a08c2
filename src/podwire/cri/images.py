"""Images: none are pulled. What a name runs is decided by the name alone.

`podwire/host` (any tag or digest, also written docker.io/podwire/host) runs the container's command from the host's file
system; every other name runs the stand-in. Both always "exist", so a kubelet never has to pull; that nothing was pulled is
said wherever CRI has room for it: in the image's id, its annotations and the verbose info.
"""

from __future__ import annotations

import json

from podwire.criapi import api_pb2

HOST_IMAGE = "podwire/host"
_STAND_IN_FOR = "podwire/stand-in for "
RUNS = "io.podwire.runs"  # annotation: "host" or "stand-in"


def name_of(spec: api_pb2.ImageSpec) -> str:
    """The name a user wrote: kubelets since 1.29 send it beside the id that ImageStatus gave them."""
    return (spec.user_specified_image or spec.image).removeprefix(_STAND_IN_FOR)


def repository(name: str) -> str:
    """The name without registry docker.io, tag and digest."""
    name = name.partition("@")[0]
    head, slash, tail = name.rpartition("/")
    tail = tail.partition(":")[0]  # a colon before the last slash belongs to a registry's port
    name = f"{head}{slash}{tail}"
    for prefix in ("docker.io/", "index.docker.io/"):
        name = name.removeprefix(prefix)
    return name


def is_host(name: str) -> bool:
    """Whether containers of this image run their command from the host's file system."""
    return repository(name) == HOST_IMAGE


def identity(name: str) -> str:
    """The image's id; it says what runs instead, since there is no image whose digest it could be."""
    return HOST_IMAGE if is_host(name) else f"{_STAND_IN_FOR}{name}"


def describe(name: str) -> api_pb2.Image:
    """The image as CRI shows it."""
    runs = "host" if is_host(name) else "stand-in"
    return api_pb2.Image(
        id=identity(name),
        repo_tags=[name],
        spec=api_pb2.ImageSpec(image=name, annotations={RUNS: runs}),
        pinned=True,  # a kubelet's image collector need not look at it
    )


def info(name: str) -> dict[str, str]:
    """The verbose info of an image."""
    what = (
        "the container's command runs from the host's file system"
        if is_host(name)
        else "a stand-in answers on the declared ports"
    )
    return {"podwire": json.dumps({"pulled": False, "runs": what})}
