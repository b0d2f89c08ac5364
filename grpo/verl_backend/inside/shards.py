"""Reads the model files that verl's FSDP ranks wrote and joins them, one tensor at a time.

A file is a pickle: only tensors are built from it, and hollow stand-ins for torch.distributed's classes, so no code
runs and no process group is asked for, whichever torch wrote it. Leaves out what becomes of the tensors (merge.py).
"""

from __future__ import annotations

import json
import math
import pickle
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_FILE = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")
_FOREIGN = "torch.distributed."
_DTENSOR = ("torch.distributed.tensor.DTensor", "torch.distributed._tensor.api.DTensor")


class MergeError(Exception):
    """A checkpoint cannot be merged; the text is one line for the user."""


@dataclass(frozen=True)
class Weight:
    """One tensor of a model that is not read before `load` is called."""

    shape: torch.Size
    dtype: torch.dtype
    load: Callable[[], torch.Tensor]


def open_shards(actor: Path) -> dict[str, Weight]:
    """Name in the trained model -> weight. The files stay mapped; raises MergeError."""
    ranks = [_read(file) for file in shard_files(actor)]
    odd = {name for rank in ranks for name in rank.keys() ^ ranks[0].keys()}
    if odd:
        raise MergeError(f"{actor}: not every rank has {min(odd)}; the files are not of one checkpoint")
    return {name: _weight(name, [rank[name] for rank in ranks]) for name in ranks[0]}


def shard_files(actor: Path) -> list[Path]:
    """The model file of each rank, in order; raises MergeError where one is missing."""
    found = {(int(match[1]), int(match[2])) for file in actor.glob("*.pt") if (match := _FILE.fullmatch(file.name))}
    sizes = {size for size, _ in found}
    if not sizes:
        raise MergeError(f"{actor} has no model_world_size_W_rank_R.pt, which verl's FSDP ranks write")
    written = actor / "fsdp_config.json"
    told = json.loads(written.read_text(encoding="utf-8"))["world_size"] if written.is_file() else max(sizes)
    if sizes != {told}:
        raise MergeError(f"{actor} has model files of {sorted(sizes)} ranks where fsdp_config.json says {told}")
    missing = [rank for rank in range(told) if (told, rank) not in found]
    if missing:
        names = ", ".join(f"model_world_size_{told}_rank_{rank}.pt" for rank in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise MergeError(f"{actor}: missing {names}{more}; copy them there, each node has those of its own ranks")
    return [actor / f"model_world_size_{told}_rank_{rank}.pt" for rank in range(told)]


class _Sharded(torch.Tensor):
    """Stands for a DTensor: its shape and dtype, `_local_tensor` (this rank's part) and `_spec` (how it was cut)."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} of a sharded tensor: its parts are joined first")


class _Hollow:
    """Stands for any other class of torch.distributed: attributes, no behaviour."""

    def __new__(cls, *args: Any) -> _Hollow:
        self = super().__new__(cls)
        self.__dict__["args"] = args
        return self

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {"state": state})


def _read(file: Path) -> dict[str, torch.Tensor]:
    try:
        with _only_stand_ins(file):
            state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as problem:
        what = re.search(r"GLOBAL (\S+)", str(problem))
        named = f" ({what[1]})" if what else ""
        raise MergeError(
            f"{file} holds more than tensors{named}; such a file could run code when it is opened, so it is refused"
        ) from None
    except (RuntimeError, ValueError, EOFError, OSError) as problem:
        reason = str(problem).splitlines()[0][:150]
        raise MergeError(f"{file} cannot be read ({reason}); it was not written to its end, or it is damaged") from None
    if not isinstance(state, dict):
        raise MergeError(f"{file} does not hold names and tensors, as a model file of verl does")
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise MergeError(f"{file}: {name} is a {type(value).__name__}, where verl writes tensors and DTensors")
    return state


@contextmanager
def _only_stand_ins(file: Path) -> Iterator[None]:
    """Within: torch.load builds plain tensors and our stand-ins, and refuses all else."""
    before = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(file)
        ours: list[Any] = [(_stand_in(name), name) for name in names if name.startswith(_FOREIGN)]
        with torch.serialization.safe_globals(ours):
            yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def _stand_in(name: str) -> type:
    return _Sharded if name in _DTENSOR else type(name.rpartition(".")[2], (_Hollow,), {})


def _weight(name: str, parts: list[torch.Tensor]) -> Weight:
    first = parts[0]
    if not isinstance(first, _Sharded):
        return Weight(first.shape, first.dtype, lambda: _same_on_every_rank(name, parts))
    state: Any = first
    spec = state._spec
    ways = [(type(placement).__name__, getattr(placement, "dim", 0)) for placement in spec.placements]
    unknown = next((kind for kind, _ in ways if kind not in ("Shard", "Replicate")), None)
    if unknown:
        raise MergeError(f"{name} is cut by {unknown} (tensor parallelism in the trainer); only FSDP shards are merged")
    sizes = _mesh_sizes(spec.mesh, len(parts), len(ways))
    local = [part._local_tensor for part in parts]  # type: ignore[attr-defined]

    def load() -> torch.Tensor:
        whole = _joined(local, sizes, ways)
        if whole.shape != first.shape:
            raise MergeError(f"{name}: the ranks' parts make {list(whole.shape)} and not {list(first.shape)}")
        return whole

    return Weight(first.shape, local[0].dtype, load)


def _mesh_sizes(mesh: Any, ranks: int, ways: int) -> tuple[int, ...]:
    """How many ranks there are along each dimension of the mesh, which verl numbers row by row.

    torch to 2.8 stores the mesh as a tensor, to 2.12 the shape of its layout, since then the axes of the layout.
    """
    if ways == 1:
        return (ranks,)
    layout = getattr(mesh, "_layout", None)
    if layout is None:
        sizes = tuple(mesh.mesh.shape)
    elif hasattr(layout, "axes"):
        sizes = tuple(math.prod(_flat(axis.shape)) for axis in layout.axes)
    else:
        sizes = tuple(math.prod(_flat(size)) for size in layout.shape)
    if len(sizes) != ways or math.prod(sizes) != ranks:
        raise MergeError(f"the ranks are laid out as {sizes}, which does not fit {ranks} files and {ways} ways to cut")
    return sizes


def _flat(sizes: Any) -> tuple[int, ...]:
    return (sizes,) if isinstance(sizes, int) else tuple(number for size in sizes for number in _flat(size))


def _joined(parts: Sequence[torch.Tensor], sizes: Sequence[int], ways: Sequence[tuple[str, int]]) -> torch.Tensor:
    """parts: by rank; the first dimension of the mesh is the outermost cut."""
    if not sizes:
        return parts[0]
    inner = len(parts) // sizes[0]
    rows = [parts[start : start + inner] for start in range(0, len(parts), inner)]
    (kind, dim), rest = ways[0], ways[1:]
    if kind == "Replicate" or len(rows) == 1:
        return _joined(rows[0], sizes[1:], rest)
    return torch.cat([_joined(row, sizes[1:], rest) for row in rows], dim=dim)


def _same_on_every_rank(name: str, parts: list[torch.Tensor]) -> torch.Tensor:
    """FSDP leaves buffers, and all weights of a single rank, uncut."""
    for rank, part in enumerate(parts[1:], start=1):
        if not torch.equal(part, parts[0]):
            raise MergeError(f"{name} is not cut into shards, but rank 0 and rank {rank} differ in it")
    return parts[0]
