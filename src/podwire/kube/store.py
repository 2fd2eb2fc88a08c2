"""What a reflector knows: the newest state of every object, and what changed since the one before.

Pure but for a dictionary. The rules:

* a change is `(key, old, new)`; old None is an addition, new None a deletion;
* an object that was deleted and made again under its name (another uid) is a deletion and then an addition, also when
  the watch never showed the deletion;
* the same resourceVersion twice is no change; any other is taken over, also one that looks older: lists are consistent
  reads (no resourceVersion is asked for), so what they say is so, even after the server's data was restored from a copy;
* an object whose newest version is malformed keeps its last readable state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from podwire.kube.meta import Object

T = TypeVar("T", bound=Object)
Change = tuple[str, T | None, T | None]


class Store(Mapping[str, T], Generic[T]):
    """A mapping from key to object: written by one thread, readable from all (iteration is over a snapshot)."""

    __slots__ = ("_objects",)

    def __init__(self) -> None:
        self._objects: dict[str, T] = {}

    def __getitem__(self, key: str) -> T:
        return self._objects[key]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._objects))

    def __len__(self) -> int:
        return len(self._objects)

    def snapshot(self) -> list[T]:
        """All objects as of now."""
        return list(self._objects.values())

    def put(self, obj: T) -> list[Change[T]]:
        """Take over a new state of one object."""
        key = obj.key
        old = self._objects.get(key)
        if old is not None and old.metadata.uid == obj.metadata.uid and _same(obj, old):
            return []
        self._objects[key] = obj
        if old is not None and old.metadata.uid != obj.metadata.uid:
            return [(key, old, None), (key, None, obj)]
        return [(key, old, obj)]

    def remove(self, key: str, uid: str = "") -> list[Change[T]]:
        """Forget an object, with `uid` only if it is that one."""
        old = self._objects.get(key)
        if old is None or (uid and old.metadata.uid != uid):
            return []
        del self._objects[key]
        return [(key, old, None)]

    def replace(self, objects: Iterable[T], keep: Iterable[str] = ()) -> list[Change[T]]:
        """Take over a whole list: deletions first, then the rest in the list's order; `keep` names unreadable ones."""
        listed = list(objects)
        present = {obj.key for obj in listed}.union(keep)
        changes: list[Change[T]] = []
        for key in [key for key in self._objects if key not in present]:
            changes += self.remove(key)
        for obj in listed:
            changes += self.put(obj)
        return changes


def _same(new: Object, old: Object) -> bool:
    version = new.metadata.resource_version
    return version != "" and version == old.metadata.resource_version
