"""The Accept header: which media type, and the object itself, its metadata, or a table of it.

kubectl's `get` asks for `application/json;as=Table;v=v1;g=meta.k8s.io`, its `delete` and metadata informers for
`as=PartialObjectMetadata(List)`, its discovery for `as=APIGroupDiscoveryList`; client-go prefers protobuf and takes JSON.
This server writes JSON and YAML. The first clause (by quality, then in order) that it can satisfy wins; none: 406.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from podwire.apiserver import status

if TYPE_CHECKING:
    from collections.abc import Iterable

WRITABLE = ("application/json", "application/yaml")
_AS_META = {"Table": "table", "PartialObjectMetadata": "partial", "PartialObjectMetadataList": "partial"}


class Rendering(NamedTuple):
    """How to answer: `form` is object, table, partial or discovery; `version` the version of the form asked for."""

    form: str = "object"
    version: str = ""
    yaml: bool = False
    include: str = "Metadata"
    pretty: bool = False

    @property
    def media_type(self) -> str:
        """The Content-Type of the answer, with the form as apimachinery writes it."""
        base = "application/yaml" if self.yaml else "application/json"
        if self.form == "discovery":
            return f"{base};g=apidiscovery.k8s.io;v={self.version};as=APIGroupDiscoveryList"
        return base


def negotiate(accept: str, forms: Iterable[str] = ("table", "partial")) -> Rendering:
    """The rendering for an Accept header, of the forms that are possible here. Raises StatusError 406."""
    if not accept.strip():
        return Rendering()
    for media_type, parameters in _clauses(accept):
        yaml = media_type in {"application/yaml", "application/x-yaml"}
        if not yaml and media_type not in {"application/json", "application/*", "*/*"}:
            continue
        form, group, version = parameters.get("as", ""), parameters.get("g", ""), parameters.get("v", "")
        if not form:
            return Rendering(yaml=yaml)
        if group == "meta.k8s.io" and version in {"v1", "v1beta1"} and _AS_META.get(form, form) in forms:
            return Rendering(_AS_META[form], version, yaml)
        if (
            (group, form) == ("apidiscovery.k8s.io", "APIGroupDiscoveryList")
            and version == "v2"
            and "discovery" in forms
        ):
            return Rendering("discovery", version, yaml)
    raise status.not_acceptable(WRITABLE)


def _clauses(accept: str) -> list[tuple[str, dict[str, str]]]:
    """(media type, parameters) in order of preference."""
    found = []
    for clause in accept.split(","):
        media_type, *rest = [part.strip() for part in clause.split(";")]
        parameters = dict(part.split("=", 1) for part in rest if "=" in part)
        try:
            quality = float(parameters.get("q", "1"))
        except ValueError:
            quality = 0.0
        if media_type and quality > 0:
            found.append((quality, media_type.lower(), parameters))
    found.sort(key=lambda clause: -clause[0])
    return [(media_type, parameters) for _, media_type, parameters in found]
