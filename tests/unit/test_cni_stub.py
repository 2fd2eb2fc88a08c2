"""The stub's side of the resident helper, against scripted helpers: what it may conclude from each way a conversation can go."""

import json
import os
import socket
import struct
import threading
import time

import pytest

from podwire.cni import stub

pytestmark = [pytest.mark.unit, pytest.mark.skipif(os.geteuid() != 0, reason="sockets must be root's")]

IDENT = b"i" * 32
BEGUN, DONE = stub.BEGUN, stub.DONE


class Scripted:
    """A helper that answers one stub with these messages; what is callable is called with the connection."""

    def __init__(self, folder, *script):
        self.folder = str(folder)
        self.path = f"{folder}/{stub.SOCKET}"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        os.chmod(self.path, 0o600)
        self.listener.listen()
        self.script = script
        self.message = b""
        self.descriptors = []
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self):
        connection, _ = self.listener.accept()
        with connection:
            self.message, ancillary, _, _ = connection.recvmsg(4096, socket.CMSG_SPACE(64))
            for _, _, data in ancillary:
                self.descriptors += struct.unpack(f"={len(data) // 4}i", data)
            for step in self.script:
                step(connection) if callable(step) else connection.send(step)

    def ask(self):
        answer = stub.ask("bridge", IDENT, self.folder)
        self.thread.join()
        self.listener.close()
        return answer

    def close(self):
        for fd in self.descriptors:
            os.close(fd)


@pytest.fixture
def asked(tmp_path):
    made = []

    def ask(*script):
        made.append(Scripted(tmp_path, *script))
        return made[0].ask()

    yield ask
    for one in made:
        one.close()


def test_the_result_and_status_come_back(asked):
    assert asked(BEGUN, DONE + b"\0" + b"{}") == (0, b"{}")


def test_a_result_may_come_in_parts(asked):
    assert asked(BEGUN, stub.MORE + b"one ", stub.MORE + b"two ", DONE + b"\1three") == (1, b"one two three")


@pytest.mark.parametrize("script", [(stub.REFUSED + b"another namespace",), ()])
def test_a_helper_that_refuses_or_dies_before_it_began_has_done_nothing(asked, script):
    assert asked(*script) is None


@pytest.mark.parametrize("script", [(BEGUN,), (BEGUN, stub.MORE + b"half"), (BEGUN, b"")])
def test_a_helper_that_dies_after_it_began_leaves_the_stub_with_try_again_later(asked, script):
    status, said = asked(*script)
    assert status == 1
    assert json.loads(said)["code"] == 11


def test_a_helper_that_dies_before_it_read_the_request_has_done_nothing(tmp_path):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"{tmp_path}/{stub.SOCKET}")
    os.chmod(f"{tmp_path}/{stub.SOCKET}", 0o600)
    listener.listen()
    closer = threading.Timer(0.2, listener.close)
    closer.start()
    assert stub.ask("bridge", IDENT, str(tmp_path)) is None
    closer.join()


def test_a_helper_that_does_not_begin_in_time_cannot_begin_afterwards(asked, monkeypatch):
    monkeypatch.setattr(stub, "_PATIENCE", 1)
    refused = []

    def late(connection):
        time.sleep(1.5)
        try:
            connection.send(BEGUN)
        except BrokenPipeError:
            refused.append(True)

    assert asked(late) is None
    assert refused


def test_one_that_has_begun_may_take_longer_than_that(asked, monkeypatch):
    monkeypatch.setattr(stub, "_PATIENCE", 1)
    assert asked(BEGUN, lambda _: time.sleep(1.5), DONE + b"\0late") == (0, b"late")


def test_the_request_names_bundle_and_plugin_and_carries_descriptors(tmp_path, monkeypatch):
    monkeypatch.setitem(stub.posix.environ, b"CNI_NETNS", b"/proc/self/ns/net")
    helper = Scripted(tmp_path, BEGUN, DONE + b"\0")
    helper.ask()
    assert helper.message == IDENT + b"bridge"
    _, _, process, netns = helper.descriptors
    assert os.readlink("exe", dir_fd=process) == os.readlink("/proc/self/exe")
    assert os.fstat(netns).st_ino == os.stat("/proc/self/ns/net").st_ino
    helper.close()


@pytest.mark.parametrize("spoil", [
    lambda path: os.chown(path, 1000, 0),
    lambda path: os.chmod(path, 0o666),
    lambda path: os.chmod(path, 0o620),
    lambda path: os.chown(os.path.dirname(path), 1000, 0),
    lambda path: os.chmod(os.path.dirname(path), 0o777),
])  # fmt: skip
def test_a_socket_that_others_could_have_made_is_not_used(tmp_path, spoil):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with listener:
        path = f"{tmp_path}/{stub.SOCKET}"
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen()
        spoil(path)
        assert stub.ask("bridge", IDENT, str(tmp_path)) is None
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.parametrize("make", [
    lambda _path: None,
    lambda path: open(path, "w").close(),
    os.mkfifo,
    lambda path: os.symlink("/run/other.sock", path),
])  # fmt: skip
def test_what_is_no_socket_is_passed_over(tmp_path, make):
    make(f"{tmp_path}/{stub.SOCKET}")
    assert stub.ask("bridge", IDENT, str(tmp_path)) is None


def test_a_socket_that_nobody_listens_on_is_passed_over(tmp_path):
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(f"{tmp_path}/{stub.SOCKET}")
    listener.close()
    os.chmod(f"{tmp_path}/{stub.SOCKET}", 0o600)
    assert stub.ask("bridge", IDENT, str(tmp_path)) is None


def test_a_helper_that_is_not_root_is_not_asked(tmp_path):
    path = f"{tmp_path}/{stub.SOCKET}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(path)
    os.chmod(path, 0o600)
    pid = os.fork()
    if not pid:
        os.setresuid(1000, 1000, 1000)
        listener.listen()  # from here on the kernel names this user as the peer
        os._exit(0)
    os.waitpid(pid, 0)
    with listener:
        assert stub.ask("bridge", IDENT, str(tmp_path)) is None
        listener.setblocking(False)
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(100) == b""
