"""A node with podwire's CNI plugins on it, containers, and traffic between them: for the tests that run the installed executables."""

import contextlib
import json
import socket
import subprocess
import threading

from podwire.testing.netns import Netns, Node

LEASE = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
ARTICLE = {
    "name": "cni0",
    "type": "flannel",
    "delegate": {"ipMasq": False, "hairpinMode": True, "isDefaultGateway": True},
}


class Host:
    """A node with the plugins, and containers on it."""

    def __init__(self, binaries):
        self.binaries = binaries
        self.node = Node()
        self.pods = {}
        self.node.write("/run/flannel/subnet.env", LEASE)

    def close(self):
        for pod in self.pods.values():
            pod.close()
        self.node.close()

    def pod(self, name):
        if name not in self.pods:
            self.pods[name] = Netns.new()
        return self.pods[name]

    def start(self, command, conf, name="pod", ifname="eth0", netns=None, under=(), **env):
        variables = {
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": name,
            "CNI_NETNS": self.pod(name).path if netns is None else netns,
            "CNI_IFNAME": ifname,
            "CNI_PATH": self.binaries,
            **env,
        }
        process = subprocess.Popen(
            self.node.command(*under, f"{self.binaries}/{conf['type']}"),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables, text=True,
        )  # fmt: skip
        with contextlib.suppress(BrokenPipeError):  # it may be dead already: some are killed early
            process.stdin.write(json.dumps(conf))
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.stdin = None
        return process

    def call(self, command, conf, name="pod", **options):
        process = self.start(command, conf, name, **options)
        said, notes = process.communicate(timeout=60)
        assert "Traceback" not in notes, notes
        value = json.loads(said) if said.strip() else None
        return process.returncode, value

    def add(self, conf, name="pod", **options):
        status, result = self.call("ADD", conf, name, **options)
        assert status == 0, result
        return result

    def delete(self, conf, name="pod", **options):
        assert self.call("DEL", conf, name, **options) == (0, None)

    def reserved(self, network):
        names = self.node.listdir(f"/var/lib/cni/networks/{network}")
        return [name for name in names if name[0].isdigit() or ":" in name]

    def ports(self):
        with self.node.rtnl() as door:
            return door.links(kind="veth")


def exchange(server, client, address, family=socket.AF_INET):
    """Send a line from one container to another over TCP and get it back, and say whom the server saw."""
    listener = server.call(lambda: socket.create_server((address, 0), family=family))
    with listener:
        seen = []

        def serve():
            connection, peer = listener.accept()
            with connection:
                seen.append(peer[0])
                connection.sendall(connection.recv(100))

        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        with client.call(lambda: socket.create_connection((address, port), timeout=5)) as connection:
            connection.sendall(b"hello")
            assert connection.recv(100) == b"hello"
        thread.join()
    return seen[0]
