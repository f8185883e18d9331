"""What the machine is: processor, GPUs, the links between them, how busy it is."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

import torch

LINK_NAMES = {10: "internal", 20: "PCIe switch", 30: "PCIe switches", 40: "PCIe host", 50: "NUMA"}


def describe(device: str, network: dict[str, Any] | None) -> dict[str, Any]:
    """The ``hardware`` of the conditions.

    Raises:
        RuntimeError: the driver does not answer.
    """
    on_gpu = device == "cuda"
    gpu = torch.cuda.get_device_properties(0) if on_gpu else None
    state = _gpu_state() if on_gpu else {}
    return {
        "device": gpu.name if gpu else "cpu",
        "count": torch.cuda.device_count() if on_gpu else os.cpu_count(),
        "memory_bytes": gpu.total_memory if gpu else _memory_bytes(),
        "clocks_mhz": state.get("clocks_mhz") if on_gpu else _cpu_mhz(),
        "power_w": state.get("power_w"),
        "cpu": cpu_model(),
        "links": state.get("links"),
        "network": network,
    }


def driver() -> str | None:
    """Version of the GPU driver, null without one."""
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        return str(nvml.nvmlSystemGetDriverVersion())
    finally:
        nvml.nvmlShutdown()


def cpu_model() -> str | None:
    """The model string of the first core, as Linux gives it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or None
    match = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match else platform.processor() or None


def load() -> dict[str, Any]:
    """How busy the machine is with things that are not this job's."""
    import psutil

    here = psutil.Process()
    starter = here.parent() or here  # forked ranks are its children
    family = {starter.pid, *(process.pid for process in starter.children(recursive=True))}
    running = [
        process
        for process in psutil.process_iter(["status"])
        if process.info["status"] == psutil.STATUS_RUNNING and process.pid not in family
    ]
    return {
        "other_processes": len(running),
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cpu_mhz() -> dict[str, int | None] | None:
    import psutil

    found = psutil.cpu_freq()
    if found is None:
        return None
    return {"now": round(found.current), "max": round(found.max) or None}


def _nvml() -> Any:
    """The management library, ready to use; None where it or the driver is absent."""
    try:
        import pynvml  # type: ignore[import-not-found]
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def _gpu_state() -> dict[str, Any]:
    """Clocks, power and links of the visible GPUs, as far as NVML tells."""
    nvml = _nvml()
    if nvml is None:
        raise RuntimeError('clocks, power and links need NVML: pip install "nvidia-ml-py"')
    try:
        handles = [
            nvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(n).uuid}")
            for n in range(torch.cuda.device_count())
        ]
        return {
            "clocks_mhz": [_clocks(nvml, handle) for handle in handles],
            "power_w": [_asked(nvml, lambda h=h: nvml.nvmlDeviceGetPowerUsage(h) / 1000)
                        for h in handles],
            "links": [[_link(nvml, one, other) for other in handles] for one in handles],
        }  # fmt: skip
    finally:
        nvml.nvmlShutdown()


def _asked(nvml: Any, question: Any) -> Any:
    """An answer, or null where this GPU has none."""
    try:
        return question()
    except nvml.NVMLError:
        return None


def _clocks(nvml: Any, handle: Any) -> dict[str, Any]:
    kind = nvml.NVML_CLOCK_SM
    return {
        "now": _asked(nvml, lambda: nvml.nvmlDeviceGetClockInfo(handle, kind)),
        "max": _asked(nvml, lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, kind)),
    }


def _link(nvml: Any, one: Any, other: Any) -> str | None:
    """How two GPUs are connected: "X" for itself, "NV18" for 18 NVLinks, else the way over PCIe."""
    if one is other:
        return "X"
    direct = _nvlinks(nvml, one, other)
    if direct:
        return f"NV{direct}"
    level = _asked(nvml, lambda: nvml.nvmlDeviceGetTopologyCommonAncestor(one, other))
    return None if level is None else LINK_NAMES.get(int(level), "system")


def _nvlinks(nvml: Any, one: Any, other: Any) -> int:
    """NVLinks from one GPU straight to another, or into the switch that joins them all."""
    pci = nvml.nvmlDeviceGetPciInfo(other).busId
    found = 0
    for number in range(nvml.NVML_NVLINK_MAX_LINKS):
        remote = _asked(nvml, lambda n=number: nvml.nvmlDeviceGetNvLinkRemotePciInfo(one, n))
        if remote is None:
            continue
        kind = _asked(nvml, lambda n=number: nvml.nvmlDeviceGetNvLinkRemoteDeviceType(one, n))
        found += remote.busId == pci or kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
    return found
