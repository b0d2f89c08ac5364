"""How many tokens each prompt has, by the files in a model's folder: no torch, no transformers, no network.

Leaves out tokenizers without tokenizer.json (SentencePiece alone), which only transformers can convert.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from data_prep.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Messages = Sequence[Mapping[str, str]]
CHUNK = 1_000  # prompts encoded at once


class PromptTokens:
    """Counts the tokens of prompts as a model would read them.

    folder: holds tokenizer.json and, where the model has one, a chat template. template: another Jinja template; the
    words `none` and `plain` mean the text as it is. system: put before every prompt. Raises DataError.
    """

    def __init__(self, folder: Path, *, template: str | None = None, system: str | None = None) -> None:
        self._tokenizer = _tokenizer(folder)
        config = _json(folder / "tokenizer_config.json")
        text = template if template not in (None, "chat", "none", "plain") else None
        own = text is None and template in (None, "chat")
        text = _own_template(folder, config) if own else text
        self._render = _renderer(text, config) if text else None
        self._plain = template != "none" and text is None  # then the tokenizer puts its special tokens around
        self._as_it_is = template in ("none", "plain")
        self._end = self._tokenizer.token_to_id(_token(config.get("eos_token")))
        self._system = [{"role": "system", "content": system}] if system else []

    def counts(self, prompts: Iterable[Messages]) -> list[int]:
        """Tokens of each prompt."""
        texts = [self._text([*self._system, *prompt]) for prompt in prompts]
        found: list[int] = []
        for start in range(0, len(texts), CHUNK):
            encoded = self._tokenizer.encode_batch(texts[start : start + CHUNK], add_special_tokens=self._plain)
            found += [self._length(one.ids) for one in encoded]
        return found

    def _text(self, messages: Messages) -> str:
        if self._render is not None:
            return self._render(messages)
        if self._as_it_is or len(messages) == 1:
            return "".join(message["content"] for message in messages)
        turns = "".join(f"{message['role'].capitalize()}: {message['content']}\n" for message in messages)
        return f"{turns}Assistant:"  # a model without a template is told who speaks

    def _length(self, ids: Sequence[int]) -> int:
        return len(ids) - (self._plain and bool(ids) and ids[-1] == self._end)  # a response follows, not the end


def tokenizer_file(folder: Path) -> Path | None:
    """The folder's tokenizer.json, None where there is none."""
    path = folder / "tokenizer.json"
    return path if path.is_file() else None


def _tokenizer(folder: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception for a damaged file
        raise DataError(
            f"{folder / 'tokenizer.json'}: cannot be read ({str(error)[:150]}); download it again"
        ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: is no JSON ({error}); download it again") from None
    return found if isinstance(found, dict) else {}


def _own_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    beside = folder / "chat_template.jinja"
    if beside.is_file():
        return beside.read_text(encoding="utf-8")
    found = config.get("chat_template")
    if isinstance(found, list):  # several, by name
        named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


def _renderer(template: str, config: Mapping[str, Any]) -> Any:
    """messages -> text, in the sandbox that transformers renders templates in."""
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = lambda value, **given: json.dumps(value, ensure_ascii=False, **given)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    names = {name: _token(config.get(name)) for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
    try:
        compiled = environment.from_string(template)
    except TemplateError as error:
        raise DataError(f"the chat template cannot be read ({error}); give another: --prompt_template") from None

    def render(messages: Messages) -> str:
        try:
            return compiled.render(
                messages=[dict(m) for m in messages], add_generation_prompt=True, tools=None, **names
            )
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise DataError(f"the chat template does not take a prompt of the messages {roles} ({error})") from None

    return render


def _token(value: object) -> str:
    if isinstance(value, Mapping):
        return str(value.get("content", ""))
    return value if isinstance(value, str) else ""
