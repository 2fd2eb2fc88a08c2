"""host-local's folder: one file per reserved address, in the reference plugin's format, so that both can take turns on it.

    /var/lib/cni/networks/NETWORK/
        10.244.1.5           CONTAINERID CR LF IFNAME, without a final newline; older plugins wrote the CONTAINERID alone
        last_reserved_ip.0   the address reserved last in range set 0
        lock                 flock(2) on it is held from the first look to the last write

How nothing is lost: a reservation is written to `.reserving` and renamed, so under its own name it is whole or not there,
whenever the process dies. What others left cut (empty, or without the IFNAME that the CR announces) belongs to nobody, and only that
is taken over. A whole file is never judged here: only its DEL, or GC, knows whether its pod is gone.
"""

from __future__ import annotations

import fcntl
import os

from podwire.addresses import Ip
from podwire.cni.spec.versions import INTERNAL
from podwire.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

DEFAULT_DATA_DIR = "/var/lib/cni/networks"
_DRAFT = ".reserving"
_LAST = "last_reserved_ip."


class Store:
    """A network's folder, locked while the `with` block runs."""

    __slots__ = ("_lock", "folder", "taken")

    def __init__(self, network: str, data_dir: str) -> None:
        self.folder = os.path.join(data_dir or DEFAULT_DATA_DIR, network)
        self.taken: dict[str, bytes] = {}  # file name → content, for all names that are addresses
        try:
            os.makedirs(self.folder, 0o755, exist_ok=True)
            self._lock = os.open(os.path.join(self.folder, "lock"), os.O_CREAT | os.O_RDONLY | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _failed("mkdir" if not os.path.isdir(self.folder) else "open", self.folder, error) from error

    def __enter__(self) -> Store:  # noqa: PYI034 - Self would need typing at run time
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self.taken = self._read_all()
        except OSError as error:
            os.close(self._lock)  # a daemon may be calling: an open file would hold the lock for good
            raise _failed("open", self.folder, error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lock)  # and with it the lock: nobody else has this open file

    def _read_all(self) -> dict[str, bytes]:
        found = {}
        for name in os.listdir(self.folder):
            if name[0].isdigit() or ":" in name:
                content = self._read(name)
                if content is not None:
                    found[name] = content
        return found

    def _read(self, name: str) -> bytes | None:
        """A file's content; a name that cannot be read (a folder, a bad disk) is somebody's: taken."""
        try:
            fd = os.open(os.path.join(self.folder, name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError:
            return b"?"
        try:
            return os.read(fd, 4096)
        except OSError:
            return b"?"
        finally:
            os.close(fd)

    def addresses_of(self, container_id: str, ifname: str) -> list[Ip]:
        """What this attachment holds; a file with the ID alone counts as any interface's."""
        wanted = (key(container_id, ifname), container_id.strip().encode())
        return sorted(
            Ip.parse(name) for name, content in self.taken.items() if content.strip() in wanted and is_ip(name)
        )

    def is_free(self, ip: Ip) -> bool:
        """Whether nobody holds an address: no file, or one that was never finished."""
        content = self.taken.get(str(ip))
        return content is None or is_cut(content)

    def reserve(self, ip: Ip, container_id: str, ifname: str, range_id: int) -> None:
        """Reserve a free address. Raises CniError, which names the file."""
        path = os.path.join(self.folder, str(ip))
        content = key(container_id, ifname)
        draft = os.path.join(self.folder, _DRAFT)
        try:
            _write(draft, content)
            os.rename(draft, path)
        except OSError as error:
            _unlink(draft)
            raise _failed("open" if error.filename else "write", path, error) from error
        self.taken[str(ip)] = content
        try:
            _write(os.path.join(self.folder, f"{_LAST}{range_id}"), str(ip).encode())
        except OSError:
            # Only the round robin depends on it: the next one starts at the beginning. The address is safe.
            return

    def last_reserved(self, range_id: int) -> Ip | None:
        """The address reserved last in a range set."""
        content = self._read(f"{_LAST}{range_id}")
        try:
            return Ip.parse(content.decode("ascii", "replace")) if content else None
        except ValueError:
            return None

    def release(self, ips: list[Ip]) -> None:
        """Free these addresses. Raises CniError where a file resists."""
        for ip in ips:
            self._remove(str(ip))

    def release_of(self, container_id: str, ifname: str) -> None:
        """Free what an attachment holds; only where it holds nothing, files with the ID alone are looked for."""
        for wanted in (key(container_id, ifname), container_id.strip().encode()):
            names = [name for name, content in self.taken.items() if content.strip() == wanted]
            for name in names:
                self._remove(name)
            if names:
                return

    def _remove(self, name: str) -> None:
        path = os.path.join(self.folder, name)
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _failed("remove", path, error) from error
        self.taken.pop(name, None)

    def sweep(self, valid: set[tuple[str, str]]) -> list[str]:
        """Free every address whose attachment (container ID, interface) is not valid; returns their names."""
        ids = {container_id for container_id, _ in valid}
        stale = []
        for name, content in self.taken.items():
            container_id, cr, ifname = content.strip().decode(errors="replace").partition("\r\n")
            known = (container_id, ifname) in valid if cr else container_id in ids
            if is_ip(name) and (is_cut(content) or not known):
                stale.append(name)
        for name in stale:
            self._remove(name)
        return stale


def key(container_id: str, ifname: str) -> bytes:
    """The content of an attachment's files."""
    return f"{container_id.strip()}\r\n{ifname}".encode()


def is_cut(content: bytes) -> bool:
    """Whether a file was never finished: empty, or its interface name is missing behind the CR."""
    return not content.strip() or content.endswith((b"\r", b"\r\n"))


def is_ip(name: str) -> bool:
    """Whether a file name is an address."""
    try:
        Ip.parse(name)
    except ValueError:
        return False
    return True


def _write(path: str, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        if os.write(fd, content) != len(content):
            raise OSError(28, "", path)  # ENOSPC: a short write to a file means the disk is full
    finally:
        os.close(fd)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        return


def _failed(doing: str, path: str, error: OSError) -> CniError:
    said = os.strerror(error.errno or 0)
    hint = {
        28: "the disk is full: free space, no address was reserved",
        30: "the file system is read-only: remount it, or set ipam.dataDir to a folder that can be written",
        13: "not permitted: CNI plugins run as root, and the folder must be root's",
    }.get(error.errno or 0, "")
    return CniError(INTERNAL, f"{doing} {path}: {said[:1].lower()}{said[1:]}", hint)
