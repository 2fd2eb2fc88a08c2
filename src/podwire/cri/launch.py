"""From a container's configuration to a running process: what the shim is told (pure), how it is started and found again.

The server starts the shim with posix_spawn and waits on a pipe for "ready" or a reason. The shim belongs to nobody
afterwards: it is found again through its `pid` file, whose lock tells whether anything of it lives (see shim).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from podwire.cri import images, shim
from podwire.errors import PodwireError
from podwire.kernel import owner

if TYPE_CHECKING:
    from podwire.cri.records import Container, Sandbox

PATIENCE = 20.0  # seconds until a shim that says nothing is given up

# The kubelet's own annotation on containers that declare ports (kuberuntime/labels.go): ContainerPorts as JSON.
PORTS_ANNOTATION = "io.kubernetes.container.ports"

STUB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "stub.py")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class StartError(PodwireError):
    """The container's program could not be started; the text is what a user has to know."""


@dataclass(frozen=True)
class Place:
    """What the node adds to every container: its name, its address, folders no container may see."""

    node: str
    hidden: tuple[str, ...] = ("/etc/kubernetes",)


def ports(annotations: Any) -> list[list[Any]]:
    """The declared ports as [number, protocol]; an annotation that cannot be read declares none."""
    try:
        declared = json.loads(annotations.get(PORTS_ANNOTATION, "[]"))
        found = {(int(port["containerPort"]), str(port.get("protocol") or "TCP").upper()) for port in declared}
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    return [list(port) for port in sorted(found) if 0 < port[0] < 65536 and port[1] in ("TCP", "UDP", "SCTP")]


def describe(container: Container, sandbox: Sandbox, folder: str, place: Place) -> dict[str, Any]:
    """What the shim is told. StartError when the configuration cannot be run."""
    image = images.name_of(container.config.image)
    common: dict[str, Any] = {
        "log": container.log_path,
        "exit": f"{folder}/exit",
        "netns": sandbox.netns,
        "hostname": hostname(sandbox, place),
    }
    if images.is_host(image):
        return common | {
            "kind": "host",
            "rootfs": f"{folder}/rootfs",
            "etc": etc_files(sandbox, place),
            "hidden": list(place.hidden),
            "command": _command(container, common["hostname"]),
        }
    pod = sandbox.config.metadata
    facts = {
        "pod": pod.name,
        "namespace": pod.namespace,
        "podIP": sandbox.ips[0] if sandbox.ips else "",
        "node": place.node,
        "container": container.config.metadata.name,
        "image": image,
        "standIn": True,
    }
    return common | {
        "kind": "stand-in",
        "standin": {"ports": ports(container.config.annotations), "facts": facts},
    }


def _command(container: Container, name: str) -> dict[str, Any]:
    config = container.config
    context = config.linux.security_context
    argv = [*config.command, *config.args]
    if not argv:
        raise StartError(
            "starting",
            config.metadata.name,
            f"image {images.HOST_IMAGE} has no command of its own",
            "give the container one",
        )
    uid = context.run_as_user.value
    env = {"PATH": DEFAULT_PATH, "HOSTNAME": name, "HOME": "/root" if uid == 0 else "/"}
    env |= {pair.key: pair.value.decode("utf-8", "surrogateescape") for pair in config.envs}
    return {
        "argv": argv,
        "env": env,
        "cwd": config.working_dir,
        "uid": uid,
        "gid": context.run_as_group.value,
        "groups": list(context.supplemental_groups),
        "drop": list(context.capabilities.drop_capabilities),
    }


def hostname(sandbox: Sandbox, place: Place) -> str:
    """The pod's host name; on the host's network that of the node."""
    return sandbox.config.hostname or (sandbox.config.metadata.name if sandbox.netns else place.node)


def etc_files(sandbox: Sandbox, place: Place) -> dict[str, str]:
    """What stands in the container's /etc/hosts, hostname and resolv.conf; the node's own on the host's network."""
    name = hostname(sandbox, place)
    found = {"/etc/hostname": f"{name}\n"}
    if sandbox.netns:
        lines = ["# made by podwire for this pod", "127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
        found["/etc/hosts"] = "".join(f"{line}\n" for line in [*lines, *(f"{ip}\t{name}" for ip in sandbox.ips)])
    if sandbox.config.HasField("dns_config"):
        dns = sandbox.config.dns_config
        lines = [f"nameserver {server}" for server in dns.servers]
        lines += [f"search {' '.join(dns.searches)}"] if dns.searches else []
        lines += [f"options {' '.join(dns.options)}"] if dns.options else []
        found["/etc/resolv.conf"] = "".join(f"{line}\n" for line in lines)
    return found


def start(folder: str, spec: dict[str, Any], title: str) -> None:
    """Start the shim in the container's folder and wait until it is ready; StartError with its reason if it is not."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(f"{folder}/rootfs", 0o755)
    path = f"{folder}/spec.json"
    with open(path, "w", encoding="utf-8", opener=_private) as file:
        json.dump(spec, file)
    status_read, status_write = os.pipe2(os.O_CLOEXEC)
    pid_fd = os.open(f"{folder}/pid", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    shim_log = os.open(f"{folder}/shim.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(pid_fd, fcntl.LOCK_EX)
        pid = _spawn(path, title, pid_fd, status_write, shim_log)
    finally:
        for fd in (pid_fd, status_write, shim_log):
            os.close(fd)
    try:
        said = _listen(status_read)
    finally:
        os.close(status_read)
    if said != shim.READY:
        kill(folder)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # not waited for yet, so the pid is still its own
    if said != shim.READY or spec["kind"] == "host":
        os.waitpid(pid, 0)  # a host container's first process has made the namespaces and ended (see shim)
    if said != shim.READY:
        raise StartError("starting", title, _reason(said, folder))


def _spawn(path: str, title: str, pid_fd: int, status_fd: int, shim_log: int) -> int:
    """The marks of the lab go into the environment, so that what is left of a lab can be found by them."""
    marks = (owner.ENV_LAB, owner.ENV_NODE, owner.ENV_COMPONENT)
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-IS", STUB, path, title],
        {"PATH": DEFAULT_PATH} | {mark: os.environ[mark] for mark in marks if mark in os.environ},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, shim_log, 1),
            (os.POSIX_SPAWN_DUP2, shim_log, 2),
            # 3 and 4 may be the very descriptors we duplicate: go through numbers that cannot be
            (os.POSIX_SPAWN_DUP2, pid_fd, 103),
            (os.POSIX_SPAWN_DUP2, status_fd, 104),
            (os.POSIX_SPAWN_DUP2, 103, shim.PID_FD),
            (os.POSIX_SPAWN_DUP2, 104, shim.STATUS_FD),
            (os.POSIX_SPAWN_CLOSE, 103),
            (os.POSIX_SPAWN_CLOSE, 104),
        ],
        setsid=True,
    )


def _listen(fd: int) -> bytes:
    """What the shim says until everybody has closed the pipe; b'' if it takes too long."""
    deadline = time.monotonic() + PATIENCE
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    said = b""
    while poller.poll(max(0, int((deadline - time.monotonic()) * 1000))):
        data = os.read(fd, 4096)
        if not data:
            return said
        said += data
    return b"it said nothing for %d s" % PATIENCE


def _reason(said: bytes, folder: str) -> str:
    text = said.removeprefix(shim.READY).decode(errors="replace").strip()
    if text:
        return text
    with contextlib.suppress(OSError), open(f"{folder}/shim.log", encoding="utf-8", errors="replace") as file:
        lines = file.read().strip().splitlines()
        if lines:
            return f"the shim failed: {lines[-1]}"
    return "the shim ended without a word"


def alive(folder: str) -> bool:
    """Whether anything of the container lives: then its lock cannot be taken."""
    try:
        fd = os.open(f"{folder}/pid", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: those who only ask do not see each other
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def pidfd(folder: str, patience: float = 2.0) -> int | None:
    """A descriptor for the container's process, None if nothing lives.

    While its lock is held the pid in the file is that of a living process or of one that is just being made known, so
    it is read, opened, and believed only if the lock is still held afterwards.
    """
    deadline = time.monotonic() + patience
    while alive(folder):
        text = _read(f"{folder}/pid").strip()
        if text:
            try:
                fd = os.pidfd_open(int(text))
            except ProcessLookupError:
                fd = -1
            if fd >= 0:
                if alive(folder):
                    return fd
                os.close(fd)
        if time.monotonic() > deadline:
            return None
        time.sleep(0.01)
    return None


def kill(folder: str) -> None:
    """SIGKILL what lives, if anything does."""
    fd = pidfd(folder)
    if fd is not None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        os.close(fd)


def read_exit(folder: str) -> tuple[int, int] | None:
    """(exit code, nanoseconds since the epoch) as the shim wrote them; None if it was killed before it could."""
    try:
        data = json.loads(_read(f"{folder}/exit"))
        return int(data["code"]), int(data["at"])
    except (ValueError, KeyError, TypeError):
        return None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
