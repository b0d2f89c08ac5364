"""Keys that grpo.yaml does not list: whether verl knows them, how it is told, and the nearest when nobody does."""

from __future__ import annotations

import re
from collections.abc import Iterable

from grpo.flags import by_spelling
from grpo.values import defaults


def refused_by_verl(key: str, *, added: bool, likeness: float = 0.8) -> str | None:
    """Why a key that is not ours cannot go to verl either, or None.

    added: it may be new to verl (written +key or ++key, or in a file). likeness: of a known key beside it from which on
    a new one counts as misspelled.
    """
    from grpo.verl_backend.settings.keys import sibling, verl_keys
    from grpo.verl_backend.settings.renamed import gone, new_name

    if new := new_name(key):  # with a value it is translated; this one takes a key away
        return f"is the name that an older verl had for it; write {new[0]}"
    if instead := gone(key):
        return f"cannot be used: {instead}"

    theirs = verl_keys()
    parents = [key[: match.start()] for match in re.finditer(r"\.", key)]
    group = any(known.startswith(key + ".") for known in theirs)
    if group or key in theirs or any(theirs.get(parent) == {} for parent in parents):
        return None
    known_group = bool(parents) and any(known.startswith(parents[0] + ".") for known in theirs)
    if added and known_group and sibling(key, theirs, cutoff=likeness) is None:
        return None
    near = near_key(key, theirs)
    return "is no key of ours and none of verl's; " + (f"did you mean {near}?" if near else "--help WORD finds keys")


def near_key(key: str, theirs: Iterable[str] = ()) -> str | None:
    """The key, ours or verl's, that `key` was most likely meant to be; a flag's name leads to the flag."""
    if key in by_spelling():
        return f"--{key}"
    from grpo.verl_backend.settings.keys import nearest_key

    return nearest_key(key, [*defaults(), *(name for name in theirs if name not in defaults())])
