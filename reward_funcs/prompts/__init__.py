"""Texts that a reward or a run may use, one file each, and prompts as one text. Leaves out chat templates."""

from __future__ import annotations

from typing import Any


def as_text(prompt: Any) -> str:
    """A prompt as one text: messages as `role: content` lines, the only one of a user as its content; None as ""."""
    if prompt is None:
        return ""
    if isinstance(prompt, str):
        return prompt
    messages = list(prompt)
    if len(messages) == 1:
        return str(messages[0]["content"])
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages)
