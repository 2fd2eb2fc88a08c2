"""NodePorts in net.ipv4.ip_local_reserved_ports: nobody gets one by chance, and everything is given back."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys

import pytest

from podwire.errors import UsageError
from podwire.kernel import reserved_ports, sysctl
from podwire.kubeproxy.reservation import PortReservation, drop_in, port_range, undo_reservation, write_drop_in
from podwire.testing.netns import netns, require

pytestmark = pytest.mark.kernel

PODWIRE = [os.path.join(os.path.dirname(sys.executable), "podwire")]


@pytest.fixture
def node():
    require("root", "ip")
    with netns() as made:
        yield made


def there(node):
    return node.call(reserved_ports.read)


@pytest.fixture
def reservation(node, tmp_path):
    return node.call(lambda: PortReservation(str(tmp_path)))


def test_a_list_too_long_for_one_write_is_written_and_read_back(node):
    ports = frozenset(random.Random(1).sample(range(30000, 32768), 1300))
    assert len(reserved_ports.spell(ports)) > 4096
    node.call(lambda: reserved_ports.write(ports))
    assert there(node) == ports


def test_what_the_administrator_set_stays_and_only_what_was_added_is_given_back(node, reservation, tmp_path):
    node.call(lambda: sysctl.write(reserved_ports.NAME, "8080,30001"))
    node.call(lambda: reservation.want({30001, 30002, 30003}))
    assert sysctl_text(node) == "8080,30001-30003"
    node.call(lambda: reservation.want({30003}))
    assert sysctl_text(node) == "8080,30001,30003"
    node.call(lambda: undo_reservation(str(tmp_path)))
    assert sysctl_text(node) == "8080,30001"
    assert os.listdir(tmp_path) == []


def sysctl_text(node):
    return node.call(lambda: sysctl.read(reserved_ports.NAME))


def test_what_somebody_took_out_is_back_at_the_next_check(node, reservation):
    node.call(lambda: reservation.want({30001}))
    node.call(lambda: sysctl.write(reserved_ports.NAME, "9000"))
    node.call(reservation.check)
    assert sysctl_text(node) == "9000,30001"


@pytest.mark.parametrize("moment", ["record", "write", "second record"])
def test_a_process_that_dies_at_any_point_leaves_nothing_that_cannot_be_given_back(node, tmp_path, moment):
    node.call(lambda: sysctl.write(reserved_ports.NAME, "8080"))
    child = os.fork()
    if child == 0:
        node.call(lambda: die_at(moment, str(tmp_path)))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert node.call(lambda: undo_reservation(str(tmp_path)))
    assert sysctl_text(node) == "8080"


def die_at(moment, folder):
    """Reserve, and be killed before the step `moment` has an effect."""
    records = 0

    def audit(event, arguments):
        nonlocal records
        if event == "os.rename":
            records += 1
            if (moment, records) in (("record", 1), ("second record", 2)):
                os.kill(os.getpid(), signal.SIGKILL)
        elif event == "open" and moment == "write" and writes(*arguments):
            os.kill(os.getpid(), signal.SIGKILL)

    def writes(path, _mode, flags):
        return str(path).endswith("reserved_ports") and flags & os.O_ACCMODE == os.O_WRONLY

    reservation = PortReservation(folder)
    sys.addaudithook(audit)
    reservation.want({30001, 30002})


def test_a_setting_that_is_read_only_is_one_warning(node, tmp_path, caplog):
    script = (
        "import logging; logging.basicConfig(); from podwire.kubeproxy.reservation import PortReservation as P;"
        f"p = P({str(tmp_path)!r}); p.want([30001]); p.check(); p.check()"
    )
    argv = ["unshare", "-m", "sh", "-c", 'mount -t proc -o ro proc /proc && exec "$0" -c "$1"', sys.executable, script]
    done = node.run(*argv)
    assert done.stderr.count("nodePorts are not reserved from clients") == 1
    assert sysctl_text(node) == ""


# The race at boot: the article's incident. The whole ephemeral range is NodePorts but for a few.


def clients(node, number):
    """The source ports of clients that connect out, each while all before it are open."""

    def connect():
        server = socket.create_server(("127.0.0.1", 0), backlog=256)
        made = [socket.create_connection(server.getsockname()[:2]) for _ in range(number)]
        found = [client.getsockname()[1] for client in made]
        for sock in (*made, server):
            sock.close()
        return found

    return node.call(connect)


def apply_drop_in(node, path):
    """What systemd-sysctl does at boot, before services start."""
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, value = line.partition(" = ")
            node.call(lambda name=name, value=value: sysctl.write(name, value))


def test_with_the_drop_in_no_client_gets_a_nodeport_and_without_it_they_do(tmp_path):
    require("root")
    path = tmp_path / "99-podwire.conf"
    done = run_podwire("--write-sysctl-drop-in", f"--sysctl-drop-in={path}", "--service-node-port-range=30000-30099")
    assert str(path) in done.stdout
    outcomes = {}
    for with_drop_in in (True, False):
        with netns() as fresh:
            fresh.call(lambda: sysctl.write("net.ipv4.ip_local_port_range", "30000 30139"))
            if with_drop_in:
                apply_drop_in(fresh, path)
            outcomes[with_drop_in] = [port for port in clients(fresh, 30) if port < 30100]
    assert outcomes[True] == []
    assert outcomes[False] != []


def run_podwire(*argv):
    import subprocess

    return subprocess.run([*PODWIRE, "kube-proxy", *argv], check=True, capture_output=True, text=True)


def test_the_drop_in_keeps_what_other_files_reserve_and_names_one_that_will_win(tmp_path, caplog):
    for name, value in (("10-a.conf", "1,2"), ("50-b.conf", "8080"), ("zz.conf", "9000")):
        (tmp_path / name).write_text(f"net.ipv4.ip_forward=1\nnet/ipv4/ip_local_reserved_ports = {value}\n")
    path = tmp_path / "99-podwire.conf"
    folders = (str(tmp_path),)
    write_drop_in(port_range("30000-32767"), str(path), folders)
    assert path.read_text().endswith("net.ipv4.ip_local_reserved_ports = 9000,30000-32767\n")
    assert "zz.conf" in str([getattr(record, "kv", "") for record in caplog.records])
    assert drop_in(port_range("30000-32767"), str(path), folders) == path.read_text(), (
        "writing it again changes nothing"
    )


def test_a_range_is_spelled_as_the_api_server_takes_it():
    assert port_range("30000+9") == port_range("30000-30009") == frozenset(range(30000, 30010))
    for wrong in ("", "x", "0-5", "5-4", "70000-80000"):
        with pytest.raises(UsageError):
            port_range(wrong)


def test_the_record_is_the_namespaces_own(node, reservation, tmp_path):
    node.call(lambda: reservation.want({30001}))
    with netns() as other:
        other.call(lambda: PortReservation(str(tmp_path)).want({30002}))
        assert node.call(lambda: undo_reservation(str(tmp_path)))
        assert other.call(reserved_ports.read) == {30002}
    (record,) = tmp_path.iterdir()
    assert json.loads(record.read_text()) == {"added": "30002"}
