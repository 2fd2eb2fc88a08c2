"""Archives that somebody else sent: read when they are what they say, refused with one line when they are not."""

import gzip
import io
import json
import tarfile
import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from podwire.errors import UsageError
from podwire.explain import snapshot_archive as archive
from podwire.explain.snapshot_load import load

pytestmark = pytest.mark.unit

MANIFEST = json.dumps({"format": "podwire bundle 1", "node": "n1", "parts": []}).encode()


def packed(*members, mode="w:gz"):
    """Members are (TarInfo or name, bytes)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as made:
        for member, data in members:
            info = member if isinstance(member, tarfile.TarInfo) else tarfile.TarInfo(member)
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def odd(name, kind, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def read(data, name="b.tar.gz"):
    return archive.read_stream(io.BytesIO(data), len(data), name)


HOSTILE = {
    "climbing name": packed(("podwire-bundle/../../etc/passwd", b"x")),
    "bare ..": packed(("..", b"x")),
    "absolute name": packed(("/etc/passwd", b"x")),
    "backslashes": packed(("..\\..\\x", b"x")),
    "symbolic link": packed((odd("a", tarfile.SYMTYPE, "/etc/shadow"), b"")),
    "hard link": packed((odd("a", tarfile.LNKTYPE, "b"), b"")),
    "character device": packed((odd("a", tarfile.CHRTYPE), b"")),
    "block device": packed((odd("a", tarfile.BLKTYPE), b"")),
    "fifo": packed((odd("a", tarfile.FIFOTYPE), b"")),
    "zeros": gzip.compress(packed(("a", bytes(64 << 20)), mode="w")),
    "cut off": packed(("a", bytes(range(256)) * 400))[:300],
    "no archive in gzip": gzip.compress(b"hello" * 1000),
    "wrong checksum": packed(("a", b"x"))[:-8] + b"\0" * 8,
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_must_not_be_read_is_refused_with_one_line(data):
    with pytest.raises(UsageError) as refusal:
        read(data)
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).startswith("reading the archive b.tar.gz: ")
    assert refusal.value.exit_status == 2


def test_more_members_than_the_limit_are_refused(monkeypatch):
    monkeypatch.setattr(archive, "MAX_FILES", 20)
    with pytest.raises(UsageError, match="more than 20 members"):
        read(packed(*[(f"f{number}", b"") for number in range(30)]))


def test_a_header_that_announces_gigabytes_costs_no_memory():
    # A pax header's size is what tarfile reads into memory before anybody sees a member.
    info = tarfile.TarInfo("pax")
    info.type, info.size = tarfile.XHDTYPE, 2 << 30
    data = gzip.compress(info.tobuf(tarfile.USTAR_FORMAT) + bytes(48 << 20))
    tracemalloc.start()
    with pytest.raises(UsageError):
        read(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 160 << 20


def test_a_bundle_is_read_as_its_node_and_keeps_the_reasons(tmp_path):
    manifest = json.dumps(
        {
            "format": "podwire bundle 1",
            "node": "n1",
            "parts": [
                {"file": "net/ip-route.txt", "read": "ip route"},
                {"file": "net/ss.txt", "unread": "ss is not installed"},
                {"file": "net/conntrack.txt", "read": "conntrack -L"},
            ],
        }
    ).encode()
    path = tmp_path / "n1.tar.gz"
    path.write_bytes(
        packed(
            ("podwire-bundle/manifest.json", manifest),
            ("podwire-bundle/net/ip-route.txt", b"default via 192.0.2.1 dev eth0\n"),
        )
    )
    (snapshot,) = load([str(path)])
    assert (snapshot.hostname, [route.via for route in snapshot.routes]) == ("n1", ["192.0.2.1"])
    assert snapshot.routes[0].where.startswith("ip route (")
    assert [(one.part, one.reason) for one in snapshot.unread] == [("net/ss.txt", "ss is not installed")]
    assert snapshot.flows == []
    assert snapshot.sockets is None


@pytest.mark.parametrize(
    "manifest",
    [
        b"{",
        b"[]",
        b'{"format": 7}',
        b'{"format": "podwire bundle 1", "parts": {"a": 1}}',
        b'{"format": "podwire bundle 1", "parts": [1, null, {"file": 3}]}',
    ],
)
def test_a_broken_manifest_hurts_nobody(tmp_path, manifest):
    path = tmp_path / "b.tgz"
    path.write_bytes(packed(("manifest.json", manifest), ("ip-route.txt", b"default via 192.0.2.1 dev eth0\n")))
    assert load([str(path)])[0].routes


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damaged_bundles_are_read_or_refused_never_worse(data):
    whole = packed(
        ("podwire-bundle/manifest.json", MANIFEST),
        ("podwire-bundle/net/ip-route.txt", b"default via 192.0.2.1 dev eth0\n" * 50),
        mode="w",
    )
    raw = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))])
    with suppress(UsageError):
        read(gzip.compress(cut, 1))
