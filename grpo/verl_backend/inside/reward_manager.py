"""verl's reward managers, each telling the reward which response it scores: `naive`, `dapo` and the others by name.

verl's managers give a reward the text and the record, but not the step, the group and the length in tokens that
metrics and completions.jsonl need, and verl's own dump of training has no length either. This file is loaded by path:
`reward.reward_manager.source=importlib`, `.module.path=` this file, `.name` as without it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls

_REPO = str(Path(__file__).resolve().parents[3])
if _REPO not in sys.path:
    sys.path.append(_REPO)


def __getattr__(name: str) -> type:
    """The manager that verl registers under `name`, with `Telling` before it."""
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return type(name, (Telling, get_reward_manager_cls(name)), {})
    except ValueError:  # what verl raises for a name that nobody registered
        raise AttributeError(name) from None


class Telling:
    """Puts an entry into extra_info, which scoring.py takes out again before the reward sees it."""

    config: Any
    tokenizer: Any

    async def run_single(self, data: Any) -> dict[str, Any]:
        """Score the last row of `data`, as verl's managers do."""
        from grpo.verl_backend.inside.scoring import RESPONSE

        row = {name: values[-1] for name, values in data.non_tensor_batch.items()}
        if isinstance(row.get("extra_info"), dict):
            row["extra_info"][RESPONSE] = self._about(row, data.batch)
        return await super().run_single(data)  # type: ignore[misc]

    def _about(self, row: dict[str, Any], batch: Any) -> dict[str, Any]:
        ids = batch["responses"][-1]
        length = int(batch["attention_mask"][-1][-len(ids) :].sum())
        limit = int(self.config.data.max_response_length)
        ended = length > 0 and int(ids[length - 1]) == self.tokenizer.eos_token_id
        session, step = row.get("session_id"), row.get("global_steps")
        return {
            "key": None if session is None else f"{row['uid']}_{int(session)}",
            "step": None if step is None else int(step),
            "length": length,
            "truncated": length >= limit and not ended,
            "prompt": [dict(message) for message in row.get("raw_prompt", ())],
        }
