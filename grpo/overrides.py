"""Raw `key=value`, `+key=value`, `++key=value` and `~key` words, read with Hydra's own parser, into a Draft.

A key that holds text takes what was typed even where Hydra's grammar would want quotes (Chinese paths, `=`, `#`) or
would read a number: `data.train_files=/数据/007.json` means that file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from grpo.config import Draft
from grpo.hydra_text import cut, hydra_value, read_override
from grpo.values import TEXT_OR_LIST, WrongKind, convert, defaults, flatten, groups, kind, shown
from grpo.verl_backend.settings.keys import verl_keys
from grpo.verl_backend.settings.renamed import is_old_group, new_name

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

ORIGIN = "override"


def apply(draft: Draft, words: list[str]) -> None:
    """Lay the overrides over the draft, in their order; what is wrong goes to `draft.problems`."""
    for word in words:
        _apply(draft, word)


def _apply(draft: Draft, word: str) -> None:
    sign, name, text = cut(word)
    if sign == "~":
        _delete(draft, word, name, text)
        return
    override, trouble = read_override(word)
    if name not in defaults() and text is not None and _is_text(name, override, text):
        word = f"{sign}{name}={hydra_value(text)}"  # what was typed, quoted
        override, trouble = read_override(word)
    if name in defaults() and (kind(name) == "str" or kind(name) == "list"):
        draft.put(name, _text_or_list(name, override, text), ORIGIN)
    elif override is None:
        draft.problems.append(f"override {word}: {trouble}")
    elif override.package is not None:
        draft.problems.append(f"override {word}: packages (@) belong to config groups, which we do not have")
    elif override.is_sweep_override():
        draft.problems.append(f"override {word}: one value only; a list is written {name}=[a,b]")
    elif (name in groups() or is_old_group(name)) and isinstance(tree := override.value(), dict):
        for key, value in flatten(tree, f"{name}."):
            draft.key(key, value, ORIGIN)
    else:
        draft.key(name, override.value(), ORIGIN, word)


def _is_text(name: str, override: Override | None, text: str) -> bool:
    """Whether a key that is not ours holds text which Hydra's grammar cannot take unquoted."""
    if override is not None and not override.is_sweep_override():
        return False
    default = verl_keys().get((new_name(name) or (name,))[0])
    # Without a default to go by, `1,2` may have been meant as a list; a path was not.
    return isinstance(default, str) or (default is None and (override is None or "/" in text))


def _text_or_list(name: str, override: Override | None, text: str | None) -> Any:
    """The value for a key of text or of a list, from Hydra where it read text or a list, else as typed."""
    if override is not None and not override.is_sweep_override():
        value = override.value()
        takes_list = kind(name) == "list" or name in TEXT_OR_LIST
        if value is None or (isinstance(value, str) and value) or (isinstance(value, list) and takes_list):
            return value
    return text if text else None


def _delete(draft: Draft, word: str, name: str, text: str | None) -> None:
    """`~key`: ours goes back to its default, verl's is told to verl; `~key=value` only where it has that value."""
    if name in defaults():
        try:
            if text is not None and convert(name, text) != draft.raw[name]:
                draft.problems.append(f"override {word}: {name} is {shown(draft.raw[name])}")
            draft.reset(name)
        except WrongKind as wrong:
            draft.problems.append(f"override {word}: the value {wrong}")
    elif name in groups():
        for key in [key for key in defaults() if key.startswith(name + ".")]:
            draft.reset(key)
    elif name in draft.passthrough:
        del draft.passthrough[name], draft.origins[name]
    else:
        draft.unlisted(name, ORIGIN, word)
