"""A certificate authority and the server's certificate; run as a program of its own.

`python -m podwire.apiserver.certificates` reads an order (JSON) from stdin and writes the files. It is a separate process
because importing cryptography costs 16 MB that the server would carry for ever for the sake of its first second.

Keys are ECDSA P-256. The authority lasts ten years, the server's certificate one; the server orders a new one when the
names it must answer to change or it is about to expire (module `credentials`).
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import os
import sys
from typing import Any

CA_DAYS = 3650
SERVER_DAYS = 365


def make(folder: str, names: list[str], addresses: list[str]) -> dt.datetime:
    """Write ca.crt, ca.key (unless there), apiserver.crt and apiserver.key; answers when the latter expires."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    now = dt.datetime.now(dt.UTC)
    paths = {name: os.path.join(folder, name) for name in ("ca.crt", "ca.key", "apiserver.crt", "apiserver.key")}
    if not (os.path.exists(paths["ca.crt"]) and os.path.exists(paths["ca.key"])):
        ca_key = ec.generate_private_key(ec.SECP256R1())
        ca = _authority(ca_key, now)
        _write(paths["ca.key"], _pem(ca_key), 0o600)
        _write(paths["ca.crt"], _pem(ca), 0o644)
    with open(paths["ca.crt"], "rb") as file:
        ca = x509.load_pem_x509_certificate(file.read())
    with open(paths["ca.key"], "rb") as file:
        signer: Any = load_pem_private_key(file.read(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    expires = now + dt.timedelta(days=SERVER_DAYS)
    certificate = _server(key, ca, signer, names, addresses, now, expires)
    _write(paths["apiserver.key"], _pem(key), 0o600)
    _write(paths["apiserver.crt"], _pem(certificate), 0o644)
    return expires


def _name(common: str) -> Any:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])


def _authority(key: Any, now: dt.datetime) -> Any:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = _builder(_name("podwire-ca"), _name("podwire-ca"), key, now, now + dt.timedelta(days=CA_DAYS))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    builder = builder.add_extension(usage, critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return builder.sign(key, hashes.SHA256())


def _server(key: Any, ca: Any, ca_key: Any, names: list[str], addresses: list[str], now: Any, expires: Any) -> Any:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    alternatives: list[Any] = [x509.DNSName(name) for name in names]
    alternatives += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
    builder = _builder(_name("kube-apiserver"), ca.subject, key, now, expires)
    builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.public_key())
    builder = builder.add_extension(issuer, critical=False)
    return builder.sign(ca_key, hashes.SHA256())


def _builder(subject: Any, issuer: Any, key: Any, now: dt.datetime, expires: dt.datetime) -> Any:
    from cryptography import x509

    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    # An hour back: the clocks of two machines differ.
    builder = builder.not_valid_before(now - dt.timedelta(hours=1)).not_valid_after(expires)
    return builder.serial_number(x509.random_serial_number())


def _pem(thing: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    pem = serialization.Encoding.PEM
    if hasattr(thing, "private_bytes"):
        plain = serialization.NoEncryption()
        return bytes(thing.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return bytes(thing.public_bytes(pem))


def _write(path: str, data: bytes, mode: int) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)


if __name__ == "__main__":
    order = json.load(sys.stdin)
    json.dump({"expires": make(order["folder"], order["names"], order["addresses"]).isoformat()}, sys.stdout)
