"""Which network interface the ranks talk over, and what it is."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def choose_interface(
    init_method: str, environment: MutableMapping[str, str] = os.environ
) -> str | None:
    """Name the interface that reaches the meeting place, where the user has not named one.

    Without it a backend takes the address that the host's own name resolves to, often
    127.0.0.1, which no other host can reach.
    """
    host = urlsplit(init_method).hostname
    if host is None or _is_loopback(host):
        return None
    name = interface_to(host)
    if name is not None:
        for variable in VARIABLES:
            environment.setdefault(variable, name)
    return name


def interface_to(host: str) -> str | None:
    """The local interface whose address is used to reach a host; None when not known."""
    import psutil

    address = _address_to(host)
    if address is None:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == address for entry in addresses):
            return str(name)
    return None


def describe(init_method: str | None) -> dict[str, Any]:
    """The interface that ranks meet over, and what the system knows of it."""
    import psutil

    host = urlsplit(init_method).hostname if init_method else None
    name = os.environ.get(VARIABLES[0]) or (interface_to(host) if host else "lo")
    stats = psutil.net_if_stats().get(name) if name else None
    return {
        "interface": name,
        # 0 is what the system says of an interface without a speed, such as a virtual one.
        "speed_mbit": (stats.speed or None) if stats else None,
        "mtu": stats.mtu if stats else None,
        "rdma": rdma(),
    }


def rdma(where: Path = Path("/sys/class/infiniband")) -> dict[str, str]:
    """The RDMA ports of this host with their rates, such as {"mlx5_0/1": "400 Gb/sec (4X NDR)"}."""
    found = {}
    for path in sorted(where.glob("*/ports/*/rate")):
        device, _, port, _ = path.parts[-4:]
        found[f"{device}/{port}"] = path.read_text().strip()
    return found


def _address_to(host: str) -> str | None:
    """The own address that the system picks towards a host; nothing is sent."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(socket.gethostbyname(host)).is_loopback
    except (OSError, ValueError):
        return False
