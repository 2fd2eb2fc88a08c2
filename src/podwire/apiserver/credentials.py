"""What lets clients trust this server and this server trust clients: certificates, the token, the kubeconfig.

All of it is in the data folder (0700) and used again at the next start, so that a kubeconfig stays good. `pki/server.json`
notes for which names and until when the server's certificate is, so that nothing needs to parse it to know.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import secrets
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

from podwire.errors import PodwireError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

RENEW_DAYS = 30
"""The server's certificate is made anew when it has less left."""
SERVICE_NAMES = (
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "localhost",
)


class Credentials(NamedTuple):
    """Paths of the PEM files, and the admin's token."""

    ca: str
    certificate: str
    key: str
    token: str


def ensure(folder: str, addresses: Iterable[str], now: dt.datetime) -> Credentials:
    """The credentials in a data folder, made where missing or outdated. Raises PodwireError."""
    pki = os.path.join(folder, "pki")
    os.makedirs(pki, mode=0o700, exist_ok=True)
    wanted = {"names": list(SERVICE_NAMES), "addresses": sorted(set(addresses))}
    if not _is_current(pki, wanted, now):
        _order(pki, wanted)
    ca, certificate, key = (os.path.join(pki, name) for name in ("ca.crt", "apiserver.crt", "apiserver.key"))
    return Credentials(ca, certificate, key, _token(os.path.join(folder, "token")))


def _is_current(pki: str, wanted: dict[str, list[str]], now: dt.datetime) -> bool:
    try:
        with open(os.path.join(pki, "server.json"), encoding="utf-8") as file:
            note = json.load(file)
        expires = dt.datetime.fromisoformat(note["expires"])
        same = all(note[key] == value for key, value in wanted.items())
    except (OSError, ValueError, KeyError, TypeError):
        return False
    there = all(os.path.exists(os.path.join(pki, name)) for name in ("ca.crt", "apiserver.crt", "apiserver.key"))
    return there and same and expires - now > dt.timedelta(days=RENEW_DAYS)


def _order(pki: str, wanted: dict[str, list[str]]) -> None:
    argv = [sys.executable, "-m", "podwire.apiserver.certificates"]
    order = json.dumps({"folder": pki, **wanted})
    done = subprocess.run(argv, input=order, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise PodwireError("making certificates in", pki, said[-1] if said else f"exit status {done.returncode}")
    note = json.dumps({**wanted, **json.loads(done.stdout)})
    write_atomically(os.path.join(pki, "server.json"), note, 0o600)


def _token(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            if token := file.read().strip():
                return token
    except FileNotFoundError:
        pass
    token = secrets.token_urlsafe(32)
    write_atomically(path, token + "\n", 0o600)
    return token


def kubeconfig(credentials: Credentials, server: str) -> str:
    """A kubeconfig for the admin; `server` is the URL."""
    with open(credentials.ca, "rb") as file:
        ca = base64.b64encode(file.read()).decode()
    return f"""\
apiVersion: v1
kind: Config
clusters:
- name: podwire
  cluster:
    certificate-authority-data: {ca}
    server: {server}
contexts:
- name: podwire
  context:
    cluster: podwire
    namespace: default
    user: podwire-admin
current-context: podwire
users:
- name: podwire-admin
  user:
    token: {credentials.token}
"""


def write_atomically(path: str, text: str, mode: int) -> None:
    """The file is the old one or the new one, never half of it."""
    folder = os.path.dirname(os.path.abspath(path))
    temporary = os.path.join(folder, f".{os.path.basename(path)}.{secrets.token_hex(4)}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def context(credentials: Credentials) -> ssl.SSLContext:
    """TLS 1.2 and up, HTTP/1.1."""
    import ssl

    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols(["http/1.1"])
    made.load_cert_chain(credentials.certificate, credentials.key)
    return made
