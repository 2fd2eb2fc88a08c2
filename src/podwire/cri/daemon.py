"""`podwire cri`: from flags to a serving socket, and back.

One server at a time has the state folder (a lock on STATE_DIR/lock) and the socket. A socket file that nobody answers
at is left over from a killed server and replaced; one that somebody answers at, or a file that is no socket, is an
error. Ending the server leaves sandboxes and containers as they are: the next one finds them.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc

from podwire.cri import config, launch
from podwire.cri.containers import Containers
from podwire.cri.events import Events
from podwire.cri.network import Pods
from podwire.cri.records import Store
from podwire.cri.sandboxes import Sandboxes
from podwire.cri.server import Service
from podwire.criapi.service import Handlers
from podwire.errors import MissingCapability, UsageError

log = logging.getLogger("podwire.cri")

THREADS = 32
STOP_PATIENCE = 1.0  # seconds for requests that are being served when the server is told to end


@dataclass(frozen=True)
class Options:
    """What the flags say. `conf_dir` and `bin_dir` override `config`, which is a containerd config.toml."""

    listen: str = "unix:///run/podwire/cri.sock"
    state_dir: str = "/run/podwire/cri"
    config: str | None = None
    conf_dir: str | None = None
    bin_dir: str | None = None
    cache_dir: str = "/var/lib/cni"
    node_name: str = field(default_factory=lambda: os.uname().nodename)


def run(options: Options, stop: threading.Event) -> int:
    """Serve until `stop` is set; the exit status."""
    if os.geteuid() != 0:
        raise MissingCapability("starting", "podwire cri", "it has to be root", "namespaces and mounts need it")
    settings = config.settings(options.config, options.conf_dir, options.bin_dir)
    for warning in settings.warnings:
        log.warning(warning)
    path = socket_path(options.listen)
    with _lock(options.state_dir):
        _free_socket(path)
        return _serve(options, settings, path, stop)


def _serve(options: Options, settings: config.CniSettings, path: str, stop: threading.Event) -> int:
    store = Store(options.state_dir)
    events = Events()
    network = Pods(settings, options.cache_dir)
    place = launch.Place(options.node_name, hidden=("/etc/kubernetes", options.state_dir))
    containers = Containers(store, events, place, time.time_ns, _new_id)
    sandboxes = Sandboxes(store, containers, network, time.time_ns, _new_id)
    store.load()
    containers.recover()
    sandboxes.recover()
    stop_fd = os.eventfd(0, os.EFD_CLOEXEC)
    watcher = threading.Thread(target=network.conf.follow, args=(stop_fd,), name="conf-dir", daemon=True)
    watcher.start()
    server = grpc.server(ThreadPoolExecutor(THREADS, thread_name_prefix="rpc"))
    server.add_generic_rpc_handlers((Handlers(Service(store, sandboxes, containers, network, events, settings)),))
    _bind(server, path)
    server.start()
    log.info(
        "serving",
        extra={
            "kv": {
                "socket": path,
                "state": options.state_dir,
                "conf_dir": settings.conf_dir,
                "bin_dirs": ":".join(settings.bin_dirs),
                "sandboxes": len(store.sandboxes()),
            }
        },
    )
    stop.wait()
    events.close()
    server.stop(STOP_PATIENCE).wait()
    os.eventfd_write(stop_fd, 1)
    watcher.join()
    containers.close()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return 0


def _new_id() -> str:
    """64 hexadecimal digits, as every CRI runtime makes them."""
    return os.urandom(32).hex()


def socket_path(listen: str) -> str:
    """The path in unix:///path (or a bare path); UsageError for anything else."""
    path = listen.removeprefix("unix://")
    if not path.startswith("/"):
        raise UsageError("reading", f"--listen {listen}", "a unix socket is expected", "unix:///run/podwire/cri.sock")
    if len(path.encode()) > 107:
        raise UsageError("reading", f"--listen {listen}", "the path is longer than the 107 bytes a socket may have")
    return path


@contextlib.contextmanager
def _lock(state_dir: str):  # type: ignore[no-untyped-def]  # noqa: ANN202 - a context manager without a value
    os.makedirs(state_dir, mode=0o700, exist_ok=True)
    fd = os.open(f"{state_dir}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                "using",
                f"--state-dir {state_dir}",
                "another podwire cri is using it",
                "give this one a folder of its own",
            ) from None
        yield
    finally:
        os.close(fd)


def _free_socket(path: str) -> None:
    """Make room for the socket, unless somebody is there."""
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UsageError("listening on", path, "a file is there that is no socket", "give another --listen")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            os.unlink(path)
            return
    raise UsageError("listening on", path, "another process is serving there", "stop it, or give another --listen")


def _bind(server: grpc.Server, path: str) -> None:
    """For root only from the first moment on: the socket is made by the library, with the process's umask."""
    before = os.umask(0o177)
    try:
        if server.add_insecure_port(f"unix:{path}") == 0:
            raise UsageError("listening on", path, "the socket could not be made")
    except RuntimeError as error:
        raise UsageError("listening on", path, str(error).partition(";")[0]) from error
    finally:
        os.umask(before)
