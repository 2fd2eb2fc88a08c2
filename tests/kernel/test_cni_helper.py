"""The resident helper on the real kernel: the same outcome as without it, refusals, deaths, and many at once.

The first part runs the tests of the plugins themselves again, on a node with a helper.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from cni_rig import ARTICLE, Host

# The same tests, with this module's fixture `host`.
from test_cni_plugins import (  # noqa: F401
    binaries,
    test_a_failed_add_takes_back_everything_but_the_bridge,
    test_a_full_disk_is_named_and_nothing_is_left,
    test_a_namespace_that_vanished_does_not_keep_its_address,
    test_a_read_only_disk_is_named_and_an_address_on_it_is_not_lost,
    test_an_address_that_somebody_else_has_fails_the_add,
    test_gc_frees_links_addresses_and_rules_of_what_is_not_valid_and_reports_what_is_not_marked,
    test_ipv6_addresses_are_settled_when_add_returns,
    test_masquerade_is_undone_whichever_backend_made_it_and_without_the_link,
    test_the_articles_pod_has_address_bridge_and_files,
    test_the_result_tells_what_is_there,
    test_two_adds_of_one_attachment_at_once_make_one,
    test_two_pods_talk_through_the_bridge_from_the_moment_add_returns,
    test_whenever_an_add_is_killed_del_cleans_up,
)

from podwire.cni import delegate
from podwire.testing.netns import Netns, require

pytestmark = pytest.mark.kernel

CONF = {**ARTICLE, "cniVersion": "1.0.0"}
LOCAL = {
    "name": "net",
    "cniVersion": "1.0.0",
    "type": "host-local",
    "ipam": {"type": "host-local", "subnet": "10.9.0.0/24"},
}


class Helper:
    """A helper on a node; what it says is gathered."""

    def __init__(self, node):
        self.node = node
        self.lines = []
        argv = node.command(sys.executable, "-P", "-m", "podwire", "cni", "helper")
        self.process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        self.lines.append(self.process.stderr.readline())
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr))
        self.reader.start()

    @property
    def pid(self):
        return self.process.pid  # nsenter and the command line become the helper

    def workers(self):
        with open(f"/proc/{self.pid}/task/{self.pid}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]

    def served(self):
        """CPU time of workers: it grows only if they do something."""
        total = 0
        for pid in self.workers():
            with open(f"/proc/{pid}/schedstat", encoding="ascii") as file:
                total += int(file.read().split()[0])
        return total

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        self.process.wait(timeout=20)
        self.reader.join(timeout=20)
        self.process.stderr.close()


@pytest.fixture
def host(binaries):  # noqa: F811 - the fixture
    made = Host(binaries)
    made.helper = Helper(made.node)
    assert "ready" in made.helper.lines[0], made.helper.lines
    yield made
    if made.helper.process.poll() is None:
        made.helper.end()
    made.close()


@pytest.fixture
def bare(binaries):  # noqa: F811 - the fixture
    made = Host(binaries)
    yield made
    made.close()


def refusals(host):
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        found = [line for line in host.helper.lines if "refused" in line]
        if found:
            return found
        time.sleep(0.02)
    return []


def test_a_helper_serves(host):
    before = host.helper.served()
    host.add(CONF)
    assert host.helper.served() - before > 500_000  # ns: an ADD is no less, a refusal no more
    host.delete(CONF)
    assert refusals_now(host) == []


def refusals_now(host):
    return [line for line in host.helper.lines if "refused" in line]


ENVIRONMENTS = {
    "no command": {"CNI_COMMAND": ""},
    "version": {"CNI_COMMAND": "VERSION"},
    "no container": {"CNI_CONTAINERID": ""},
    "bad interface": {"CNI_IFNAME": "a/b"},
    "no namespace": {"CNI_NETNS": "/nowhere"},
    "a file": {"CNI_NETNS": "/etc/passwd"},
    "nothing to delete": {"CNI_COMMAND": "DEL"},
    "check": {"CNI_COMMAND": "CHECK"},
    "status": {"CNI_COMMAND": "STATUS"},
    "nonsense": {"CNI_COMMAND": "NONSENSE"},
    "no path": {"CNI_PATH": "/nowhere"},
    "relative path": {"CNI_PATH": "."},
}


@pytest.mark.parametrize("case", ENVIRONMENTS)
@pytest.mark.parametrize("plugin", sorted(delegate.PLUGINS))
def test_status_output_and_notes_are_the_same_to_the_letter(host, bare, plugin, case):
    conf = {**CONF, "type": plugin, "ipam": {"type": "host-local", "subnet": "10.9.0.0/24"}}
    said = []
    for side in (host, bare):
        env = {
            "CNI_COMMAND": "ADD", "CNI_CONTAINERID": "pod", "CNI_IFNAME": "eth0", "CNI_PATH": side.binaries,
            "CNI_NETNS": "/proc/1/root/nowhere", **ENVIRONMENTS[case],
        }  # fmt: skip
        done = subprocess.run(
            side.node.command(f"{side.binaries}/{plugin}"),
            input=json.dumps(conf), env=env, capture_output=True, text=True, timeout=60, cwd="/", check=False,
        )  # fmt: skip
        said.append((done.returncode, done.stdout, done.stderr))
    assert said[0] == said[1]
    assert refusals_now(host) == []


def test_standard_input_may_be_large_broken_or_none(host, bare):
    for text in ("", "{", "x" * 300_000, json.dumps({**LOCAL, "padding": "x" * 300_000})):
        said = []
        for side in (host, bare):
            env = {
                "CNI_COMMAND": "ADD",
                "CNI_CONTAINERID": "pod",
                "CNI_IFNAME": "eth0",
                "CNI_PATH": "/",
                "CNI_NETNS": "/x",
            }
            done = subprocess.run(
                side.node.command(f"{side.binaries}/host-local"), input=text, env=env, capture_output=True, text=True,
                timeout=60, check=False,
            )  # fmt: skip
            said.append((done.returncode, done.stdout, done.stderr))
        assert said[0] == said[1]


def test_working_folder_and_limits_are_the_stubs(host, bare):
    said = []
    for side in (host, bare):
        side.node.write("/run/here/resolv.conf", "nameserver 192.0.2.7\n")
        conf = {**LOCAL, "ipam": {**LOCAL["ipam"], "resolvConf": "resolv.conf", "dataDir": "data"}}
        status, result = side.call("ADD", conf, under=["sh", "-c", 'cd /run/here; exec "$@"', "sh"], netns="/x")
        assert (status, result["dns"]) == (0, {"nameservers": ["192.0.2.7"]})
        assert "10.9.0.2" in side.node.listdir("/run/here/data/net")
        said.append(side.call("ADD", LOCAL, "limited", under=["prlimit", "--fsize=0"], netns="/x"))
        assert side.call("ADD", LOCAL, "free", netns="/x")[0] == 0  # the limit was one call's
    assert said[0] == said[1]
    assert said[0][0] == 1
    assert "file too large" in said[0][1]["msg"]
    assert refusals_now(host) == []


def test_the_umask_is_the_stubs(host):
    for mask, mode in (("077", 0o700), ("022", 0o755)):
        conf = {**LOCAL, "ipam": {**LOCAL["ipam"], "dataDir": f"/run/masked{mask}"}}
        host.call("ADD", conf, under=["sh", "-c", f'umask {mask}; exec "$@"', "sh"], netns="/x")
        assert os.stat(f"{host.node.root}/run/masked{mask}/net").st_mode & 0o777 == mode


def test_a_foreign_plugin_gets_the_stubs_environment(host, tmp_path):
    (tmp_path / "foreign").write_text(
        '#!/bin/sh\necho "{\\"code\\": 99, \\"msg\\": \\"$PATH $MINE $CNI_COMMAND\\"}"; exit 1\n'
    )
    (tmp_path / "foreign").chmod(0o755)
    conf = {**CONF, "delegate": {"type": "foreign"}}
    for mine in ("one", "two"):
        status, error = host.call("ADD", conf, CNI_PATH=str(tmp_path), PATH="/usr/bin:/bin", MINE=mine)
        assert (status, error["code"], error["msg"]) == (1, 99, f"/usr/bin:/bin {mine} ADD")


@pytest.mark.parametrize(
    ("under", "why"),
    [
        (["unshare", "--net"], "net namespace"),
        (["unshare", "--mount"], "mnt namespace"),
        (["unshare", "--user", "--map-root-user"], "user namespace"),
        (["setpriv", "--bounding-set=-net_admin", "--inh-caps=-all"], "capabilities"),
        (["setpriv", "--no-new-privs"], "capabilities"),
        (["/usr/sbin/chroot", "/"], ""),
    ],
)
def test_a_stub_from_elsewhere_is_refused_and_does_the_work_itself(host, under, why):
    netns = Netns.new()
    conf = {**LOCAL, "ipam": {**LOCAL["ipam"], "dataDir": "/run/data"}}
    status, result = host.call("ADD", conf, under=under, netns=netns.path)
    netns.close()
    assert status == 0, result
    assert result["ips"][0]["address"] == "10.9.0.2/24"
    if why:
        assert why in refusals(host)[0]
    else:
        assert refusals_now(host) == []


def test_a_stub_in_a_chroot_is_refused(host, tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    host.node.run("mount", "--rbind", "/", str(root))
    host.call("ADD", LOCAL, under=["/usr/sbin/chroot", str(root)], netns="/x")
    assert "another root folder" in refusals(host)[0]
    host.node.run("umount", "-l", str(root))


def test_a_namespace_path_that_means_something_else_to_the_helper_is_refused(host):
    conf = {"name": "lo", "cniVersion": "1.0.0", "type": "loopback"}
    status, error = host.call("ADD", conf, ifname="lo", netns="/proc/self/ns/net")
    assert status == 1
    assert error["code"] == 8  # the plugin's own namespace
    assert refusals_now(host) == []  # the same for both, so it was not refused
    host.pod("pod")
    status, result = host.call(
        "ADD", conf, ifname="lo", netns="/proc/self/fd/9",
        under=["sh", "-c", f'exec 9< {host.pod("pod").path}; exec "$@"', "sh"],
    )  # fmt: skip
    assert status == 0, result
    assert "not the same for both" in refusals(host)[0]


def test_a_stub_of_another_installation_is_refused(host, tmp_path):
    text = delegate.stub("host-local").replace("c[0])", "b'x'*32)")
    (tmp_path / "host-local").write_text(text)
    (tmp_path / "host-local").chmod(0o755)
    host.binaries = str(tmp_path)
    assert host.call("ADD", LOCAL, netns="/x")[0] == 0
    assert "another installation" in refusals(host)[0]


def test_only_one_helper_runs_and_a_killed_ones_socket_is_replaced(host):
    second = Helper(host.node)
    assert second.process.wait(timeout=20) == 1
    assert "another helper is running" in second.lines[0]
    second.reader.join()
    second.process.stderr.close()
    workers = host.helper.workers()
    host.helper.end(signal.SIGKILL)
    deadline = time.monotonic() + 5
    while any(os.path.exists(f"/proc/{pid}") for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in workers)
    host.add(CONF)  # nobody listens on the socket
    host.helper = Helper(host.node)
    assert "ready" in host.helper.lines[0]
    before = host.helper.served()
    host.delete(CONF)
    assert host.helper.served() > before


def test_sigterm_ends_a_helper_when_its_stubs_are_served(host, tmp_path):
    (tmp_path / "slow").write_text('#!/bin/sh\nsleep 1\necho \'{"code": 99, "msg": "slow"}\'; exit 1\n')
    (tmp_path / "slow").chmod(0o755)
    process = host.start("ADD", {**CONF, "delegate": {"type": "slow"}}, CNI_PATH=str(tmp_path), PATH="/usr/bin:/bin")
    time.sleep(0.4)
    host.helper.end()
    assert host.helper.process.returncode == 0
    said, _ = process.communicate(timeout=20)
    assert json.loads(said)["msg"] == "slow"
    assert host.node.listdir("/run/podwire") == ["cni-helper.lock"]


def test_stubs_that_wait_do_not_keep_others_waiting(host, tmp_path):
    (tmp_path / "slow").write_text('#!/bin/sh\nsleep 2\necho \'{"code": 99, "msg": "slow"}\'; exit 1\n')
    (tmp_path / "slow").chmod(0o755)
    conf = {**CONF, "delegate": {"type": "slow"}}
    began = time.monotonic()
    slow = [
        host.start("ADD", conf, f"slow{number}", CNI_PATH=str(tmp_path), PATH="/usr/bin:/bin") for number in range(20)
    ]
    time.sleep(0.5)
    host.add(CONF, "quick")
    assert time.monotonic() - began < 2  # of 20 that take 2 s each, all were being served
    for process in slow:
        assert json.loads(process.communicate(timeout=30)[0])["msg"] == "slow"


def test_two_hundred_at_once(host):
    names = [f"pod{number}" for number in range(200)]
    for name in names:
        host.pod(name)
    for command in ("ADD", "DEL"):
        processes = [host.start(command, CONF, name) for name in names]
        said = [process.communicate(timeout=120) for process in processes]
        assert [process.returncode for process in processes] == [0] * 200, said
        if command == "ADD":
            addresses = {json.loads(text)["ips"][0]["address"] for text, _ in said}
            assert len(addresses) == len(host.reserved("cni0")) == 200
            assert len(host.ports()) == 200
    assert host.reserved("cni0") == []
    assert host.ports() == []
    assert host.node.listdir("/var/lib/cni/flannel") == []


def settle(host):
    """Wait until no worker is at work: a killed stub's may be finishing its last system call."""
    last = -1
    while (now := host.helper.served()) != last:
        last = now
        time.sleep(0.05)


def check_at_most_once(host, status, value):
    """After an ADD that was disturbed: whatever it said is true, and its DEL leaves nothing."""
    assert len(host.ports()) <= 2  # `warm` and this one: never two of this one
    assert len(host.reserved("cni0")) <= 2
    if status == 0:
        assert f"{value['ips'][0]['address'].partition('/')[0]}" in host.reserved("cni0")
        assert len(host.ports()) == 2
    host.delete(CONF)
    assert host.reserved("cni0") == ["10.244.1.2"]
    assert len(host.ports()) == 1
    assert host.node.listdir("/var/lib/cni/flannel") == ["warm"]


STUB_CALLS = (
    "openat",
    "newfstatat",
    "socket",
    "setsockopt",
    "connect",
    "getsockopt",
    "sendmsg",
    "recvfrom",
    "close",
    "write",
)
WORKER_CALLS = (
    "accept4",
    "recvmsg",
    "newfstatat",
    "openat",
    "fcntl",
    "sendto",
    "setns",
    "flock",
    "rename",
    "write",
    "close",
)


@pytest.mark.parametrize("call", STUB_CALLS)
@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_a_stub_killed_at_any_system_call_takes_its_work_with_it(host, command, call):
    """Killed at its first, second, … call of a kind; the DEL that follows at once finds nobody still at work."""
    require("strace")
    host.add(CONF, "warm")
    for number in range(1, 200, 7 if call in ("openat", "newfstatat", "close") else 1):
        if command == "DEL":
            host.add(CONF)
        inject = f"inject={call}:signal=KILL:when={number}"
        process = host.start(command, CONF, under=["strace", "-o", "/dev/null", "-e", f"trace={call}", "-e", inject])
        process.communicate(timeout=60)
        host.delete(CONF)
        assert host.reserved("cni0") == ["10.244.1.2"], number
        assert len(host.ports()) == 1, number
        assert host.node.listdir("/var/lib/cni/flannel") == ["warm"], number
        if process.returncode == 0:
            break
    assert process.returncode == 0


def release(tracer):
    """End strace; its SIGINT waits for each thread to stop, which one in the middle of a system call may not do for long."""
    tracer.send_signal(signal.SIGINT)
    try:
        tracer.communicate(timeout=2)
    except subprocess.TimeoutExpired:
        tracer.kill()
        tracer.communicate()


@pytest.mark.parametrize("call", WORKER_CALLS)
def test_a_worker_killed_at_any_system_call_is_never_doubled(host, call):
    """Either the stub did the work itself, because it had not begun, or it says that nobody knows (11); never twice."""
    require("strace")
    host.add(CONF, "warm")
    full = len(host.helper.workers())
    outcomes = []
    for number in range(1, 200, 5 if call in ("openat", "newfstatat", "close") else 1):
        tracers = [
            subprocess.Popen(
                ["strace", "-f", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={number}",
                 "-p", str(pid)],
                stderr=subprocess.PIPE, text=True,
            )
            for pid in host.helper.workers()
        ]  # fmt: skip
        for tracer in tracers:
            assert "attached" in tracer.stderr.readline()
        status, value = host.call("ADD", CONF)
        killed = sum(tracer.poll() is not None for tracer in tracers)
        for tracer in tracers:
            release(tracer)
        outcomes.append(0 if status == 0 else value["code"])
        check_at_most_once(host, status, value)
        deadline = time.monotonic() + 5
        while len(host.helper.workers()) < full and time.monotonic() < deadline:
            time.sleep(0.01)
        if not killed and status == 0 and number > 1:
            break
    assert set(outcomes) <= {0, 11}
    if call in ("setns", "flock", "rename"):  # only the work itself makes these
        assert outcomes[0] == 11


def test_a_helper_killed_at_any_moment_is_never_doubled(host):
    host.add(CONF, "warm")
    dice = random.Random(3)
    outcomes = set()
    for _ in range(40):
        process = host.start("ADD", CONF)
        time.sleep(dice.uniform(0.005, 0.03))
        victims = [*host.helper.workers()]
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        said, _ = process.communicate(timeout=60)
        value = json.loads(said)
        outcomes.add(process.returncode if process.returncode == 0 else value["code"])
        check_at_most_once(host, process.returncode, value)
    assert outcomes <= {0, 11}


def test_an_idle_helper_uses_nothing(host):
    host.add(CONF)
    settle(host)
    before = host.helper.served()
    with open(f"/proc/{host.helper.pid}/schedstat", encoding="ascii") as file:
        main = file.read()
    time.sleep(1.5)
    assert host.helper.served() == before
    with open(f"/proc/{host.helper.pid}/schedstat", encoding="ascii") as file:
        assert file.read() == main
