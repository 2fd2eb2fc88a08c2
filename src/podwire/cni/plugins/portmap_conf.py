"""The configuration of the plugin portmap, read and checked as the reference plugin does.

The backend is what `backend` says, else iptables, unless this machine has only nft. Conditions are written in a backend's own
words; iptables' begin with `-` or `!`, nftables' never do, and words of the other backend are an error.
"""

from __future__ import annotations

from podwire.addresses import Ip
from podwire.cni.spec import result as results
from podwire.cni.spec.text import Fields, TextError, quoted
from podwire.kernel import spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from podwire.addresses import Prefix
    from podwire.cni.skel import Request

DEFAULT_MARK_BIT = 13  # Kubernetes uses 14 and 15, Calico 20 to 31


class Mapping:
    """One host port; `host_ip` is None for every address of the host, `wrong` says why ADD cannot make it."""

    __slots__ = ("container_port", "host_ip", "host_port", "protocol", "wrong")

    def __init__(self, value: object) -> None:
        fields = Fields(value, "PortMapEntry")
        self.host_port = fields.integer("hostPort")
        self.container_port = fields.integer("containerPort")
        self.protocol = fields.text("protocol")
        text = fields.text("hostIP")
        if self.container_port <= 0:
            raise ValueError(f"Invalid container port number: {self.container_port}")
        if self.host_port <= 0:
            raise ValueError(f"Invalid host port number: {self.host_port}")
        self.wrong = ""
        if not self.protocol.isalnum():
            self.wrong = f"Invalid protocol {quoted(self.protocol)} of host port {self.host_port}"
        self.host_ip = None
        try:
            self.host_ip = Ip.parse(text) if text else None
        except ValueError:
            self.wrong = f"Invalid host IP {quoted(text)} of host port {self.host_port}"

    def serves(self, bits: int) -> bool:
        """Whether it is for containers' addresses of this length."""
        return self.host_ip is None or self.host_ip.bits == bits

    @property
    def destination(self) -> Ip | None:
        """The only destination it is for; 0.0.0.0 and :: mean every one of their family."""
        return self.host_ip if self.host_ip is not None and self.host_ip.value else None


class Conf:
    """A configuration, checked. Raises ValueError."""

    __slots__ = (
        "backend",
        "conditions",
        "container_id",
        "ifname",
        "mappings",
        "mark_bit",
        "masq_all",
        "name",
        "nets",
        "previous",
        "set_mark_chain",
        "snat",
    )

    def __init__(self, request: Request) -> None:
        try:
            self._read(Fields(request.conf, "PortMapConf"))
        except TextError as error:
            raise ValueError(f"failed to parse network configuration: {error}") from None
        self.container_id = request.container_id
        self.ifname = request.ifname
        self.previous = results.previous(request.conf, request.version)
        self.nets = self._nets()

    def check_add(self) -> None:
        """What only ADD refuses: a DEL must be able to follow it. Raises ValueError."""
        for mapping in self.mappings:
            if mapping.wrong:
                raise ValueError(f"failed to parse config: {mapping.wrong}")

    def _read(self, fields: Fields) -> None:
        self.name = fields.text("name")
        self.snat = fields.flag("snat") if fields.raw("snat") is not None else True
        self.masq_all = fields.flag("masqAll")
        bit = fields.maybe_integer("markMasqBit")
        self.set_mark_chain = fields.text("externalSetMarkChain")
        if bit is not None and fields.raw("externalSetMarkChain") is not None:
            raise ValueError("Cannot specify externalSetMarkChain and markMasqBit")
        self.mark_bit = DEFAULT_MARK_BIT if bit is None else bit
        if not 0 <= self.mark_bit <= 31:
            raise ValueError("MasqMarkBit must be between 0 and 31")
        self.conditions = {32: fields.texts("conditionsV4"), 128: fields.texts("conditionsV6")}
        self.backend = self._choose_backend(fields)
        given: list[Any] = fields.inner("runtimeConfig").array("portMappings", "[]main.PortMapEntry")
        self.mappings = [Mapping(item) for item in given]

    def _choose_backend(self, fields: Fields) -> str:
        options: dict[str, list[str]] = {"iptables": [], "nftables": []}
        if fields.raw("externalSetMarkChain") is not None:
            options["iptables"].append("externalSetMarkChain")
        for name, bits in (("conditionsV4", 32), ("conditionsV6", 128)):
            first = next(iter(self.conditions[bits]), "")
            if first:
                options["iptables" if first[0] in "-!" else "nftables"].append(name)
        backend = fields.text("backend")
        if fields.raw("backend") is None:
            only_nft = spawn.find("iptables") is None and spawn.find("nft") is not None
            backend = "nftables" if only_nft else "iptables"
        wrong = "nftables" if backend == "iptables" else "iptables"
        if options[wrong]:
            raise ValueError(
                f"{backend} backend was requested but configuration contains {wrong}-specific options "
                f"[{' '.join(options[wrong])}]"
            )
        if backend not in options:
            raise ValueError(f"unrecognized backend {quoted(backend)}")
        return backend

    def _nets(self) -> list[Prefix]:
        """The container's addresses: the first of each family that is not known to be on another interface. IPv4 first."""
        found: dict[int, Prefix] = {}
        for ip in self.previous.ips if self.previous else ():
            bits = ip.address.ip.bits
            interfaces = self.previous.interfaces if self.previous else []
            if bits in found:
                continue
            if ip.interface is not None and 0 <= ip.interface < len(interfaces):
                interface = interfaces[ip.interface]
                if interface.name != self.ifname or not interface.sandbox:
                    continue
            found[bits] = ip.address
        return [found[bits] for bits in sorted(found)]
