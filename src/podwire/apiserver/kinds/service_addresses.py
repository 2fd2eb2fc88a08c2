"""ipFamilyPolicy, ipFamilies and clusterIPs of a Service: what follows from what, and the addresses themselves.

The rules are those of KEP-563 (dual stack) as kubernetes `pkg/registry/core/service/storage/alloc.go` carries them out.
They are worked out before validation, in the transaction that stores the Service, and refuse with 422 at once: a wrong
address is the only thing a person hears about then, as from a real API server. With one configured range the same code
serves a single-stack cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from podwire.apiserver import formats, status
from podwire.apiserver.allocators import AddressRange, Refused
from podwire.apiserver.resource import Cause

if TYPE_CHECKING:
    from podwire.apiserver.resource import Context, Resource

Spec = dict[str, Any]

FAMILIES = ("IPv4", "IPv6")
POLICIES = ("PreferDualStack", "RequireDualStack", "SingleStack")


def external(spec: Spec) -> bool:
    """Type ExternalName: no address, no family."""
    return spec.get("type") == "ExternalName"


def headless(spec: Spec) -> bool:
    """Its clusterIP is None."""
    return bool(spec.get("clusterIPs") == ["None"])


def check(spec: Spec) -> list[Cause]:
    """clusterIP, clusterIPs, ipFamilies and ipFamilyPolicy, each in itself and against each other."""
    if external(spec):
        return []
    addresses, families = spec.get("clusterIPs") or [], spec.get("ipFamilies") or []
    causes = _mirrored(spec.get("clusterIP") or "", addresses)
    for index, family in enumerate(families):
        if family not in FAMILIES:
            causes.append(Cause.not_supported(f"spec.ipFamilies[{index}]", family, FAMILIES))
        if family in families[:index]:
            causes.append(Cause.duplicate(f"spec.ipFamilies[{index}]", family))
    policy = spec.get("ipFamilyPolicy")
    if policy is not None and policy not in POLICIES:
        causes.append(Cause.not_supported("spec.ipFamilyPolicy", policy, POLICIES))
    wrong = _texts(addresses)
    causes += wrong
    if len(addresses) > 2:
        causes.append(Cause.invalid("spec.clusterIPs", addresses, "may only hold up to 2 values"))
    if wrong:  # families of texts that are no addresses would only add noise
        return causes
    if len(addresses) > 1 and len({formats.family(ip) for ip in addresses}) != len(addresses):
        causes.append(Cause.invalid("spec.clusterIPs", addresses, "may specify no more than one IP for each IP family"))
    if not headless(spec):
        for index, (ip, family) in enumerate(zip(addresses, families, strict=False)):
            if family in FAMILIES and formats.family(ip) != family:
                detail = f"expected an {family} value as indicated by `ipFamilies[{index}]`"
                causes.append(Cause.invalid(f"spec.clusterIPs[{index}]", ip, detail))
    return causes


def _mirrored(address: str, addresses: list[str]) -> list[Cause]:
    """`clusterIP` is `clusterIPs[0]`."""
    if not address:
        detail = "must be empty when `clusterIP` is not specified"
        return [Cause.invalid("spec.clusterIPs", addresses, detail)] if addresses else []
    if not addresses:
        return [Cause.required("spec.clusterIPs")]
    if addresses[0] != address:
        return [Cause.invalid("spec.clusterIPs", addresses, "first value must match `clusterIP`")]
    return []


def _texts(addresses: list[str]) -> list[Cause]:
    causes = []
    for index, ip in enumerate(addresses):
        if index == 0 and ip == "None":
            if len(addresses) > 1:
                causes.append(Cause.invalid("spec.clusterIPs", addresses, "'None' must be the first and only value"))
            continue
        causes += [Cause.invalid(f"spec.clusterIPs[{index}]", ip, text) for text in formats.address(ip)]
    return causes


class Addresses:
    """One request's work on the addresses of a Service; `old` is its stored spec, None on create."""

    def __init__(self, resource: Resource, owner: tuple[str, str], spec: Spec, old: Spec | None, ctx: Context) -> None:
        self._resource = resource
        self._namespace, self._name = owner
        self._spec = spec
        self._old = old
        self._ctx = ctx
        ranges = [AddressRange(prefix) for prefix in ctx.flags.service_ranges]
        self._ranges = {ranges_.family: ranges_ for ranges_ in ranges}

    def settle(self) -> None:
        """Fill in policy, families and addresses; raises StatusError."""
        spec, old = self._spec, self._old
        if external(spec) or self._settled_dual_stack():
            return
        self._policy()
        self._refuse(check(spec))
        self._families()
        if headless(spec) or (old is not None and headless(old)):
            return
        if old is None or external(old):
            self._allocate(range(len(spec["ipFamilies"])))
        elif len(old.get("ipFamilies") or ()) == 1 and len(spec["ipFamilies"]) == 2:
            self._allocate(range(1, 2))

    def _settled_dual_stack(self) -> bool:
        """A PreferDualStack Service that nobody changed stays as it is, also when the cluster's ranges changed."""
        spec, old = self._spec, self._old
        return old is not None and all(
            (
                spec.get("ipFamilyPolicy") == "PreferDualStack",
                old.get("ipFamilyPolicy") in {"PreferDualStack", None},
                *(spec.get(key) == old.get(key) for key in ("type", "clusterIPs", "ipFamilies")),
            )
        )

    def _policy(self) -> None:
        """Without a word about it: what it was, both families for headless without selector, else single stack."""
        spec, old = self._spec, self._old or {}
        if spec.get("ipFamilyPolicy") is not None:
            return
        if old.get("ipFamilyPolicy") is not None:
            spec["ipFamilyPolicy"] = old["ipFamilyPolicy"]
        elif spec.get("clusterIP") == "None" and not spec.get("selector"):
            spec["ipFamilyPolicy"] = "RequireDualStack"
        else:
            spec["ipFamilyPolicy"] = "SingleStack"

    def _families(self) -> None:
        """The families, from addresses, policy and what the cluster has."""
        spec = self._spec
        causes = self._reductions() + self._too_many()
        families = list(spec.get("ipFamilies") or [])
        for index, ip in enumerate(spec.get("clusterIPs") or []):
            if ip == "None":
                break
            family = formats.family(ip)
            if index < len(families):
                continue
            if family in self._ranges:
                families.append(family)
            else:
                detail = f"{family} is not configured on this cluster"
                causes.append(Cause.invalid(f"spec.clusterIPs[{index}]", spec["clusterIPs"], detail))
        self._refuse(causes)
        everywhere = spec.get("clusterIP") == "None" and not spec.get("selector")
        if not everywhere:  # a headless Service without selector may have families that the cluster has not
            self._refuse(self._unconfigured(families))
        families = families or [next(iter(self._ranges))]
        wanted = spec["ipFamilyPolicy"] != "SingleStack" and len(families) == 1
        if wanted and (everywhere or len(self._ranges) == 2):
            families.append("IPv6" if families[0] == "IPv4" else "IPv4")
        spec["ipFamilies"] = families

    def _reductions(self) -> list[Cause]:
        """To give up the second address one must say SingleStack; saying it is enough."""
        spec, old = self._spec, self._old
        if old is None:
            return []
        words = (("clusterIPs", "cluster IP"), ("ipFamilies", "IP family"))
        if spec["ipFamilyPolicy"] == "SingleStack":
            for key, _ in words:
                if spec.get(key) == old.get(key) and len(spec.get(key) or ()) > 1:
                    spec[key] = spec[key][:1]
            return []
        return [
            Cause.invalid(
                "spec.ipFamilyPolicy", spec["ipFamilyPolicy"], f"must be 'SingleStack' to release the secondary {word}"
            )
            for key, word in words
            if spec.get(key) and len(spec[key]) < len(old.get(key) or ())
        ]

    def _too_many(self) -> list[Cause]:
        spec = self._spec
        if spec["ipFamilyPolicy"] != "SingleStack":
            return []
        need = "must be 'RequireDualStack' or 'PreferDualStack' when multiple"
        return [
            Cause.invalid("spec.ipFamilyPolicy", "SingleStack", f"{need} {word} are specified")
            for key, word in (("clusterIPs", "cluster IPs"), ("ipFamilies", "IP families"))
            if len(spec.get(key) or ()) == 2
        ]

    def _unconfigured(self, families: list[str]) -> list[Cause]:
        causes = []
        policy = self._spec["ipFamilyPolicy"]
        if policy == "RequireDualStack" and len(self._ranges) < 2:
            detail = "this cluster is not configured for dual-stack services"
            causes.append(Cause.invalid("spec.ipFamilyPolicy", policy, detail))
        for index, family in enumerate(families):
            if family not in self._ranges:
                causes.append(Cause.invalid(f"spec.ipFamilies[{index}]", family, "not configured on this cluster"))
        return causes

    def _allocate(self, places: range) -> None:
        """An address for each of these places of ipFamilies: the one asked for or any."""
        spec, owner = self._spec, f"{self._namespace}/{self._name}"
        addresses = [*(spec.get("clusterIPs") or []), "", ""][: len(spec["ipFamilies"])]
        for place in places:
            pool, asked = self._ranges[spec["ipFamilies"][place]], addresses[place]
            try:
                if asked:
                    pool.take(self._ctx, asked, owner)
                else:
                    addresses[place] = pool.next(self._ctx, int(self._ctx.new_uid().replace("-", ""), 16))
            except Refused as refusal:
                if not asked:
                    raise status.internal(f"failed to allocate a serviceIP: {refusal}") from None
                detail = f"failed to allocate IP {asked}: {refusal}"
                self._refuse([Cause.invalid("spec.clusterIPs", addresses, detail)])
        spec["clusterIPs"], spec["clusterIP"] = addresses, addresses[0]

    def _refuse(self, causes: list[Cause]) -> None:
        if causes:
            raise status.invalid(self._resource, self._name, causes)
