"""/run/flannel/subnet.env: what flanneld tells the flannel CNI plugin on its node.

    FLANNEL_NETWORK=10.244.0.0/16
    FLANNEL_SUBNET=10.244.1.1/24
    FLANNEL_MTU=1450
    FLANNEL_IPMASQ=false

FLANNEL_SUBNET is not the subnet's base address but the next one, the address the bridge will have. The file is replaced by
rename, never written in place: a plugin that reads it meanwhile sees the old or the new one. It appears only once the
device is up, since its appearing is what lets the first pod start.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from podwire.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from podwire.flanneld.lease import IPNetwork
    from podwire.flanneld.netconf import NetworkConfig


def text(config: NetworkConfig, subnets: Sequence[IPNetwork], mtu: int, *, ip_masq: bool) -> str:
    """The file's text; `subnets` are this node's, one for each network of the configuration."""
    lines = []
    for network, subnet in zip(config.networks(), subnets, strict=True):
        family = "" if network.version == 4 else "IPV6_"
        lines.append(f"FLANNEL_{family}NETWORK={network}")
        lines.append(f"FLANNEL_{family}SUBNET={subnet.network_address + 1}/{subnet.prefixlen}")
    lines += [f"FLANNEL_MTU={mtu}", f"FLANNEL_IPMASQ={'true' if ip_masq else 'false'}"]
    return "".join(f"{line}\n" for line in lines)


def ensure(path: str, wanted: str) -> bool:
    """Make the file hold `wanted`; whether it had to be written. Raises KernelError."""
    try:
        with open(path, encoding="utf-8") as file:
            if file.read() == wanted:
                return False
    except (OSError, UnicodeDecodeError):
        pass
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(temporary, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(wanted)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise KernelError.of(error.errno or 0, "writing", path) from error
    return True
