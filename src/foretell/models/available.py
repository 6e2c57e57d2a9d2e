"""How much memory this process can still take."""

from __future__ import annotations

from pathlib import Path

from foretell.errors import StorageError
from foretell.storage import read_text

# Where Linux states the limit of a container and what it has taken: version 2 of control groups, then version 1.
_LIMITS = (
    ("sys/fs/cgroup", "memory.max", "memory.current"),
    ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def available_memory(root: Path = Path("/")) -> int | None:
    """Return the bytes that can be allocated without swapping; None where the system does not say (not Linux)."""
    free = _numbers(root / "proc/meminfo").get("MemAvailable")
    if free is None:
        return None
    available = 1024 * free
    for folder, limit, taken in _LIMITS:
        most, now = (_numbers(root / folder / name).get("") for name in (limit, taken))
        if most is not None and now is not None:
            files = _numbers(root / folder / "memory.stat")  # their pages are given back when memory is needed
            available = min(available, most - now + files.get("active_file", 0) + files.get("inactive_file", 0))
    return max(0, available)


def _numbers(path: Path) -> dict[str, int]:
    """Return the numbers of a file with lines like "MemAvailable: 5 kB"; a number alone has the name ""."""
    try:
        lines = read_text(path, "memory statistics").splitlines()
    except StorageError:
        return {}
    found = {}
    for line in lines:
        name, _, value = f" {line}".removesuffix(" kB").rpartition(" ")
        if value.isdecimal():
            found[name.strip().rstrip(":")] = int(value)
    return found
