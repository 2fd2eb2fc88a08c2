"""CNI versions and error codes (https://www.cni.dev/docs/spec/)."""

from __future__ import annotations

from podwire.errors import CniError

CURRENT = "1.1.0"
SUPPORTED = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")

# Section "Error": 1-99 belong to the specification, 100 and above to plugins.
INCOMPATIBLE_VERSION = 1
UNSUPPORTED_FIELD = 2
UNKNOWN_CONTAINER = 3
INVALID_ENVIRONMENT = 4
IO_FAILURE = 5
DECODING_FAILURE = 6
INVALID_NETWORK_CONFIG = 7
INVALID_NETNS = 8
TRY_AGAIN_LATER = 11
PLUGIN_NOT_AVAILABLE = 50
LIMITED_CONNECTIVITY = 51
INTERNAL = 999


def parse(version: str) -> tuple[int, int, int]:
    """(1, 0, 0) of 1.0.0; no version is 0.1.0, missing parts are 0. Raises CniError."""
    if not version:
        return (0, 1, 0)
    parts = version.split(".")
    if len(parts) > 3:
        raise CniError(DECODING_FAILURE, f'invalid version "{version}": too many parts')
    numbers = []
    for name, part in zip(("major", "minor", "micro"), parts, strict=False):
        if not (part.isascii() and part.lstrip("+-").isdigit()):
            raise CniError(
                DECODING_FAILURE,
                f'failed to convert {name} version part "{part}": strconv.Atoi: parsing "{part}": invalid syntax',
            )
        numbers.append(int(part))
    numbers += [0] * (3 - len(numbers))
    return (numbers[0], numbers[1], numbers[2])


def at_least(version: str, other: str) -> bool:
    """Whether `version` is `other` or newer. Raises CniError for what is no version."""
    return parse(version) >= parse(other)


def check_supported(version: str, supported: tuple[str, ...] = SUPPORTED) -> None:
    """Raise CniError 1 unless a configuration of this version can be served."""
    if (version or "0.1.0") not in supported:
        names = " ".join(f'"{name}"' for name in supported)
        raise CniError(
            INCOMPATIBLE_VERSION,
            "incompatible CNI versions",
            f'config is "{version}", plugin supports [{names}]',
        )
