"""A data set of the Hugging Face Hub, ORG/NAME or ORG/NAME:CONFIG -> parquet files on this machine. Reads no rows.

Every public data set has a parquet export on the branch refs/convert/parquet, as CONFIG/train/0000.parquet and so on,
so no loading script runs here. HF_ENDPOINT, HF_HUB_OFFLINE, HF_TOKEN and HF_HOME are huggingface_hub's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from data_prep.errors import DataError

REVISION = "refs/convert/parquet"
MIRROR = "HF_ENDPOINT=https://hf-mirror.com"
_TRAIN_FILE = re.compile(r"(?P<config>[^/]+)/(partial-)?train/[^/]+\.parquet")


def download(name: str, limit: int | None = None) -> list[Path]:
    """The parquet files of the train split, no more of them than `limit` rows need. Raises DataError."""
    import httpx
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )
    from huggingface_hub.utils import disable_progress_bars

    repo, _, config = name.partition(":")
    disable_progress_bars()
    try:
        if _is_offline():
            return _cached(name, repo, config)
        listed = HfApi().list_repo_files(repo, repo_type="dataset", revision=REVISION)
        paths: list[Path] = []
        rows = 0
        for file in train_files(listed, config, name):
            paths.append(Path(hf_hub_download(repo, file, repo_type="dataset", revision=REVISION)))
            rows += _rows_in(paths[-1]) if limit is not None else 0
            if limit is not None and rows >= limit:
                break
        return paths
    except GatedRepoError:
        raise DataError(f"{name}: this data set asks for permission; accept its terms, then set HF_TOKEN") from None
    except RevisionNotFoundError:
        raise DataError(f"{name}: the Hub has no parquet copy of it; download its files and name one") from None
    except (RepositoryNotFoundError, HFValidationError):
        raise DataError(
            f"{name}: no such file here, and no such data set on the Hub (or a private one: HF_TOKEN)"
        ) from None
    except (httpx.HTTPError, OfflineModeIsEnabled, OSError) as error:
        raise DataError(_unreachable(name, error)) from error


def train_files(listed: Iterable[str], config: str, name: str) -> list[str]:
    """The train split's files in order, of `config` or of the only or "default" one. Raises DataError."""
    configs: dict[str, list[str]] = {}
    for file in sorted(listed):
        match = _TRAIN_FILE.fullmatch(file)
        if match:
            configs.setdefault(match["config"], []).append(file)
    if not configs:
        raise DataError(f"{name}: has no train split on the Hub; download the file you want and name it")
    if not config and "default" in configs:
        config = "default"
    if not config and len(configs) == 1:
        config = next(iter(configs))
    if config not in configs:
        repo, names = name.partition(":")[0], sorted(configs)
        what = f"has no part called {config}" if config else "has several parts"
        raise DataError(f"{name}: {what}; choose one of {', '.join(names)}, for example {repo}:{names[0]}")
    return configs[config]


def _is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _cached(name: str, repo: str, config: str) -> list[Path]:
    """The files of an earlier download. Raises DataError."""
    from huggingface_hub import constants

    # The cache's published layout: refs/<branch> holds the commit, snapshots/<commit> the files.
    folder = Path(constants.HF_HUB_CACHE) / f"datasets--{repo.replace('/', '--')}"
    reference = folder / "refs" / REVISION
    if not reference.is_file():
        raise DataError(f"{name}: not downloaded yet, and HF_HUB_OFFLINE is set; unset it, or name a local file")
    snapshot = folder / "snapshots" / reference.read_text(encoding="utf-8").strip()
    here = [file.relative_to(snapshot).as_posix() for file in snapshot.rglob("*.parquet")]
    return [snapshot / file for file in train_files(here, config, name)]


def _rows_in(path: Path) -> int:
    import pyarrow.parquet as pq

    return pq.ParquetFile(path).metadata.num_rows


def _unreachable(name: str, error: Exception) -> str:
    from huggingface_hub import constants

    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return (
        f"{name}: no such file here, and the Hub at {constants.ENDPOINT} cannot be reached ({reason:.120}); "
        f"set {MIRROR} for the mirror, or download the data elsewhere and name a local file: --data FILE.parquet"
    )
