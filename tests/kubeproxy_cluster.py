"""A node with an API server and a kube-proxy on it, two pods behind it and a client outside, each in a namespace.

outside 10.20.0.100 ──eth0── node 10.20.0.1 ──┬── pod-1 10.244.1.2
                                              └── pod-2 10.244.1.3
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time

from podwire.kernel import sysctl
from podwire.kube.client import Client
from podwire.kube.kinds import ENDPOINT_SLICES, SERVICES
from podwire.testing.netns import netns

PODWIRE = [os.path.join(os.path.dirname(sys.executable), "podwire")]
PERIOD = 2  # --iptables-sync-period


def wait_until(what, seconds=10):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


class Cluster:
    """An API server and a kube-proxy in one namespace that plays the node."""

    def __init__(self, stack, folder):
        self.folder = folder
        self.node, self.outside, *self.pods = (stack.enter_context(netns()) for _ in range(4))
        self._wire()
        self.processes = []
        stack.callback(self.stop_all)
        self.api = self.start_api()
        self.client = self.node.call(lambda: Client.from_kubeconfig(f"{folder}/kubeconfig"))
        stack.callback(self.client.close)
        self.proxy = None

    def _wire(self):
        node, outside = self.node, self.outside
        node.run("ip", "link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", outside.path)
        node.run("ip", "addr", "add", "10.20.0.1/24", "dev", "eth0")
        outside.run("ip", "addr", "add", "10.20.0.100/24", "dev", "eth0")
        for number, pod in enumerate(self.pods, 1):
            node.run("ip", "link", "add", f"veth{number}", "type", "veth", "peer", "eth0", "netns", pod.path)
            node.run("ip", "link", "set", f"veth{number}", "up")
            node.run("ip", "route", "add", f"10.244.1.{number + 1}", "dev", f"veth{number}", "scope", "link")
            node.run("ip", "addr", "add", "10.244.1.1/32", "dev", f"veth{number}")
            pod.run("ip", "addr", "add", f"10.244.1.{number + 1}/32", "dev", "eth0")
            pod.run("ip", "link", "set", "eth0", "up")
            pod.run("ip", "route", "add", "default", "via", "10.244.1.1", "dev", "eth0", "onlink")
        node.run("ip", "link", "set", "eth0", "up")
        outside.run("ip", "link", "set", "eth0", "up")
        # Without any route to a clusterIP the node's own packets do not come as far as the nat rules.
        node.run("ip", "route", "add", "default", "via", "10.20.0.100")
        node.call(lambda: sysctl.write("net.ipv4.ip_forward", 1))

    def start(self, *argv, log):
        with open(f"{self.folder}/{log}", "a") as file:
            process = self.node.popen(*PODWIRE, *argv, stdout=file, stderr=file)
        self.processes.append(process)
        return process

    def stop_all(self):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()

    def start_api(self):
        files = (f"--data-dir={self.folder}/api", f"--kubeconfig-out={self.folder}/kubeconfig")
        before = self.log("api.log").count(" serving ") if self.processes else 0
        process = self.start("apiserver", "--bind-address=127.0.0.1", *files, log="api.log")
        wait_until(lambda: self.log("api.log").count(" serving ") > before, 30)
        return process

    def start_proxy(self, *flags):
        self.proxy = self.start(
            "kube-proxy",
            f"--kubeconfig={self.folder}/kubeconfig",
            "--hostname-override=node-1",
            "--cluster-cidr=10.244.0.0/16",
            f"--iptables-sync-period={PERIOD}s",
            "--iptables-min-sync-period=100ms",
            f"--state-dir={self.folder}/run",
            *flags,
            log="proxy.log",
        )
        wait_until(lambda: self.get("/healthz").startswith("HTTP/1.0 200"), 15)

    def kill_proxy(self, number=signal.SIGKILL):
        self.proxy.send_signal(number)
        return self.proxy.wait(5)

    def log(self, name="proxy.log"):
        with open(f"{self.folder}/{name}") as file:
            return file.read()

    def get(self, path, port=10256):
        def ask():
            with socket.create_connection(("127.0.0.1", port), timeout=2) as sock:
                sock.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
                return sock.makefile().read()

        try:
            return self.node.call(ask)
        except OSError:
            return ""

    # API objects

    def create(self, kind, body, namespace=None):
        return self.node.call(lambda: self.client.create(kind, body, namespace))

    def service(self, name, port, node_port=0, protocol="TCP", **spec):
        ports = [{"port": port, "protocol": protocol, **({"nodePort": node_port} if node_port else {})}]
        spec = {"type": "NodePort" if node_port else "ClusterIP", "ports": ports, **spec}
        made = self.create(SERVICES, {"metadata": {"name": name}, "spec": spec}, "default")
        return made.spec.cluster_ip

    def endpoints(self, name, port, *ips, protocol="TCP"):
        body = {
            "metadata": {"name": f"{name}-1", "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "ports": [{"name": "", "port": port, "protocol": protocol}],
            "endpoints": [{"addresses": [ip], "nodeName": "node-1", "conditions": {"ready": True}} for ip in ips],
        }
        try:
            self.create(ENDPOINT_SLICES, body, "default")
        except Exception:  # noqa: BLE001 - it is there already
            patch = {"endpoints": body["endpoints"]}
            self.node.call(lambda: self.client.patch(ENDPOINT_SLICES, f"{name}-1", patch, "default"))

    def remove(self, *names):
        for name in names:
            with contextlib.suppress(Exception):
                self.node.call(lambda name=name: self.client.delete(SERVICES, name, "default"))
            with contextlib.suppress(Exception):
                self.node.call(lambda name=name: self.client.delete(ENDPOINT_SLICES, f"{name}-1", "default"))

    # Traffic

    def ask(self, where, host, port, timeout=2):
        """What answers on host:port, or the name of the error."""

        def once():
            with socket.create_connection((host, port), timeout=timeout) as sock:
                return sock.recv(100).decode()

        try:
            return where.call(once)
        except OSError as error:
            return type(error).__name__

    def rules(self, table="nat"):
        return self.node.run("iptables-save", "-t", table).stdout


@contextlib.contextmanager
def serving(where, port, name):
    """A TCP server that says its name and then echoes; a UDP one that answers its name."""
    tcp = where.call(lambda: socket.create_server(("0.0.0.0", port)))
    udp = where.call(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    udp.bind(("0.0.0.0", port))
    ended = False

    def answer(connection):
        with connection, contextlib.suppress(OSError):
            connection.sendall(name)
            while data := connection.recv(100):
                connection.sendall(data)

    def accept():
        while not ended:
            with contextlib.suppress(OSError):
                threading.Thread(target=answer, args=(tcp.accept()[0],), daemon=True).start()

    def receive():
        while not ended:
            with contextlib.suppress(OSError):
                _, peer = udp.recvfrom(100)
                if peer is not None:  # None: shut down
                    udp.sendto(name, peer)

    for target in (accept, receive):
        threading.Thread(target=target, daemon=True).start()
    yield
    ended = True
    for sock in (tcp, udp):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()
