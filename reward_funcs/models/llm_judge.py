"""`llm_judge:FOLDER`, or `llm_judge:url=http://HOST/v1:model=NAME`: a model says how good a response is (S1-14, S1-16).

A causal language model from a local folder, with its own tokenizer and chat template, greedy, in batches; or a server
that speaks OpenAI's chat completions. A reply without a score is a failed call, unless `unreadable` says its worth.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from reward_funcs.async_calls import run_all
from reward_funcs.errors import RewardError
from reward_funcs.http_json import check_url, post, short
from reward_funcs.judging import question, read_score, read_template
from reward_funcs.models.loading import chosen_device, local_folder
from reward_funcs.returns import Attempt, Score
from reward_funcs.score import Sample

TOKEN = "LLM_JUDGE_API_KEY"
LARGEST = 4 * 2**20  # bytes of one reply


class Judge:
    """The judge's score over the top of its scale, 0 to 1; best value 1.

    path or url, model: who judges. template: a file (reward_funcs/prompts/judge.txt). scale: the top of the scale that
    the template asks for. unreadable: the score of a reply without one; not given = a failed call. max_tokens: of a
    reply. batch, device: of a local judge. timeout, retries: of a request. The key is the environment's
    LLM_JUDGE_API_KEY.
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        url: str | None = None,
        model: str | None = None,
        template: str | None = None,
        scale: float = 10.0,
        unreadable: float | None = None,
        max_tokens: int = 512,
        batch: int = 8,
        device: str = "auto",
        timeout: float = 120.0,
        retries: int = 2,
    ) -> None:
        if (path is None) == (url is None):
            raise RewardError(
                "--reward llm_judge: give either a model's folder, llm_judge:PATH, or llm_judge:url=URL:model=NAME"
            )
        if url is not None and model is None:
            raise RewardError(
                "--reward llm_judge: an address needs the model's name there: llm_judge:url=URL:model=NAME"
            )
        if scale <= 0 or max_tokens < 1 or batch < 1 or timeout <= 0 or retries < 0:
            raise RewardError("--reward llm_judge: scale, max_tokens, batch and timeout have to be more than 0")
        self._template, self._scale, self._unreadable = read_template(template), scale, unreadable
        if url is not None:
            check_url(url, TOKEN)
            self._replies: Any = _Remote(url, str(model), max_tokens=max_tokens, timeout=timeout, retries=retries)
        else:
            self._replies = _Local(
                local_folder(str(path), "llm_judge"), batch=batch, device=device, max_tokens=max_tokens
            )

    def __call__(self, samples: Sequence[Sample]) -> list[Attempt]:
        """The judge's score of each sample."""
        return [self._read(reply) for reply in self._replies([question(self._template, s) for s in samples])]

    def _read(self, reply: str | BaseException) -> Attempt:
        if isinstance(reply, BaseException):
            return reply
        score = read_score(reply, self._scale)
        if score is not None:
            return Score(score)
        if self._unreadable is not None:
            return Score(self._unreadable)
        return RewardError(f"the judge gave no score from 0 to {self._scale:g}; it said {short(reply[-80:])}")


class _Remote:
    def __init__(self, url: str, model: str, *, max_tokens: int, timeout: float, retries: int) -> None:
        self._url = url.rstrip("/") + ("" if url.rstrip("/").endswith("/chat/completions") else "/chat/completions")
        self._model, self._max_tokens, self._timeout, self._retries = model, max_tokens, timeout, retries

    def __call__(self, questions: Sequence[str]) -> list[str | BaseException]:
        replies: list[Any] = [None] * len(questions)
        run_all([lambda text=text: self._ask(text) for text in questions], replies.__setitem__)
        for reply in replies:
            if isinstance(reply, BaseException) and not isinstance(reply, RewardError):
                raise reply
        return replies

    async def _ask(self, text: str) -> str:
        asked = {
            "model": self._model,
            "messages": [{"role": "user", "content": text}],
            "temperature": 0,
            "max_tokens": self._max_tokens,
        }
        limits = {"timeout": self._timeout, "retries": self._retries, "largest": LARGEST}
        reply = await post(self._url, asked, token_name=TOKEN, **limits)
        try:
            said = reply["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError):
            said = None
        if not isinstance(said, str):
            raise RewardError(f"{self._url} gave no choices[0].message.content, but {short(reply)}")
        return said


class _Local:
    def __init__(self, path: str, *, batch: int, device: str, max_tokens: int) -> None:
        self._path, self._batch, self._device, self._max_tokens = path, batch, device, max_tokens
        self._lock = threading.Lock()
        self._loaded: tuple[Any, Any] | None = None

    def __call__(self, questions: Sequence[str]) -> list[str]:
        import torch

        with self._lock:
            model, tokenizer = self._loaded or self._load()
            texts = [self._templated(tokenizer, text) for text in questions]
            replies: list[str] = []
            for start in range(0, len(texts), self._batch):
                inputs = tokenizer(
                    texts[start : start + self._batch], return_tensors="pt", padding=True,
                    add_special_tokens=not tokenizer.chat_template,
                ).to(model.device)  # fmt: skip
                with torch.inference_mode():
                    ids = model.generate(
                        **inputs, do_sample=False, max_new_tokens=self._max_tokens, pad_token_id=tokenizer.pad_token_id
                    )
                replies += tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        return replies

    @staticmethod
    def _templated(tokenizer: Any, text: str) -> str:
        if not tokenizer.chat_template:
            return text
        messages = [{"role": "user", "content": text}]
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    def _load(self) -> tuple[Any, Any]:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(self._path, trust_remote_code=False, padding_side="left")
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        device = chosen_device(self._device)
        model: Any = AutoModelForCausalLM.from_pretrained(
            self._path,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=torch.float32 if device == "cpu" else "auto",
        )
        self._loaded = model.to(device).eval(), tokenizer
        return self._loaded
