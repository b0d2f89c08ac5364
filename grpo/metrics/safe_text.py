"""Text from outside (models, data, services, the command line) made safe to show on a terminal and in a report.

Leaves out HTML: the report's template escapes.
"""

from __future__ import annotations

import os
import re

# Names of environment variables whose value is a secret. PROMPT_KEY and the like are settings, not secrets.
_SECRET_NAME = re.compile(r"(API_?KEY|ACCESS_?KEY|SECRET(_?KEY)?|TOKEN|PASSWORD|PASSWD)$", re.IGNORECASE)
_SHORTEST_SECRET = 8  # characters; shorter values are words like `false`
_URL_LOGIN = re.compile(r"(?<=://)[^/\s@]+@")

# C0 and C1 controls (an escape sequence can repaint a terminal), and the marks that reverse the order of text.
_BIDI = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_UNSAFE = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff{_BIDI}]")


def visible(text: str) -> str:
    """`text` with control characters, direction marks and lone surrogates spelled out (`␛`, `<U+202E>`).

    Line feeds and tabs stay.
    """

    def spell(match: re.Match[str]) -> str:
        code = ord(match[0])
        return chr(0x2400 + code) if code < 0x20 else "␡" if code == 0x7F else f"<U+{code:04X}>"

    return _UNSAFE.sub(spell, text.replace("\r\n", "\n"))


def redact(text: str) -> str:
    """`text` without the secrets of this process's environment (`***WANDB_API_KEY***`) and without logins in URLs."""
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_SECRET and _SECRET_NAME.search(name):
            text = text.replace(value, f"***{name}***")
    return _URL_LOGIN.sub("***@", text)
