"""Facts: what this host is like, as far as a job over several hosts depends on it. Cheap: torch is not imported."""

from __future__ import annotations

import hashlib
import os
import platform
import resource
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import shoal
from shoal.base.host import cores

PACKAGES = ("torch", "torchvision", "timm", "numpy", "msgspec", "safetensors")
"""Packages whose versions decide what is trained."""
_SAMPLE = 1 << 20
"""Bytes from the beginning and from the end of a file that go into a fingerprint."""
_MOST_FILES = 200_000
_GLANCE = 5_000


def swift_facts(data: str | None = None) -> dict[str, Any]:
    """What is looked at before every start on other hosts, in some milliseconds. `data`: what all must hold alike."""
    return {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "shoal": shoal.__version__,
        "code": code_hash(),
        "package": str(Path(shoal.__file__).parent),
        "packages": versions(PACKAGES),
        "shm": _space("/dev/shm"),
        "files": list(resource.getrlimit(resource.RLIMIT_NOFILE)),
        "data": None if data is None else sketch(Path(data)),
        "time": time.time(),
    }


def facts(*, data: str | None = None, folder: str | None = None, ports: range | None = None) -> dict[str, Any]:
    """All that `shoal doctor` looks at. `data`: a file or folder to fingerprint; `folder`: where a run is to be
    written; `ports`: the range that Shoal may listen on."""
    return {
        **swift_facts(),
        "cores": cores(),
        "gpus": _gpus(),
        "ports": None if ports is None else _free_ports(ports),
        "data": None if data is None else fingerprint(Path(data)),
        "folder": None if folder is None else _folder(Path(folder)),
        "time": time.time(),  # last: the clock is compared with the moment of the answer
    }


def code_hash() -> str:
    """12 hex digits over every file of the package that makes a difference."""
    root = Path(shoal.__file__).parent
    digest = hashlib.sha256()
    for path in _sorted_files(str(root)):
        if path.endswith((".py", ".yaml", ".npz", ".bin")):
            with open(path, "rb") as file:
                data = file.read()
            name = os.path.relpath(path, root).encode()
            digest.update(b"%d %s %d\n" % (len(name), name, len(data)) + data)
    return digest.hexdigest()[:12]


def versions(names: Iterable[str]) -> dict[str, str]:
    """Package -> its installed version, from the names of folders: importlib.metadata would cost more than the rest."""
    wanted = set(names)
    found: dict[str, str] = {}
    for folder in sys.path:
        try:
            entries = os.listdir(folder or ".")
        except OSError:
            continue
        for entry in entries:
            name, _, rest = entry.partition("-")
            if rest.endswith(".dist-info") and name.lower() in wanted:
                found.setdefault(name.lower(), rest.removesuffix(".dist-info"))
    return dict(sorted(found.items()))


def fingerprint(path: Path) -> dict[str, Any] | None:
    """What a file or folder holds: number of files, bytes, and 12 hex digits over names, sizes and, of a sample of
    files, their beginnings and ends. None where there is nothing, or nothing readable."""
    files = [str(path)] if path.is_file() else _sorted_files(str(path))
    digest, total, count = hashlib.sha256(), 0, 0
    step = max(1, len(files) // 32)
    for number, name in enumerate(files[:_MOST_FILES]):
        try:
            size = os.stat(name).st_size
            digest.update(f"{os.path.relpath(name, path)} {size}\n".encode(errors="surrogateescape"))
            if number % step == 0:
                with open(name, "rb") as file:
                    digest.update(file.read(_SAMPLE))
                    if size > 2 * _SAMPLE:
                        file.seek(-_SAMPLE, os.SEEK_END)
                        digest.update(file.read(_SAMPLE))
        except OSError:
            return None
        total, count = total + size, count + 1
    return {"path": str(path), "files": count, "bytes": total, "hash": digest.hexdigest()[:12]} if count else None


def sketch(path: Path) -> dict[str, Any] | None:
    """As `fingerprint`, at a glance: of a folder the names in it, the sizes of its files and the first names in its
    folders. None where there is nothing, or nothing readable."""
    if path.is_file():
        return fingerprint(path)
    digest, total, count = hashlib.sha256(), 0, 0
    try:
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name)[:_GLANCE]:
                below = sorted(os.listdir(entry.path))[:_GLANCE] if entry.is_dir() else []
                size = 0 if entry.is_dir() else entry.stat().st_size
                digest.update(f"{entry.name} {size} {below}\n".encode(errors="surrogateescape"))
                total, count = total + size, count + max(1, len(below))
    except OSError:
        return None
    return {"path": str(path), "files": count, "bytes": total, "hash": digest.hexdigest()[:12]} if count else None


def _sorted_files(folder: str) -> list[str]:
    found: list[str] = []
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        found += [os.path.join(root, name) for name in sorted(files)]
        if len(found) > _MOST_FILES:
            break
    return found


def _space(folder: str) -> dict[str, int] | None:
    try:
        info = os.statvfs(folder)
    except OSError:
        return None
    return {"bytes": info.f_blocks * info.f_frsize, "free": info.f_bavail * info.f_frsize}


def _gpus() -> dict[str, Any]:
    """Devices, and the models as the driver names them."""
    try:
        devices = sum(entry[6:].isdigit() for entry in os.listdir("/dev") if entry.startswith("nvidia"))
    except OSError:
        devices = 0
    models = []
    for information in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        try:
            line = next(line for line in information.read_text().splitlines() if line.startswith("Model:"))
            models.append(line.partition(":")[2].strip())
        except (OSError, StopIteration):
            continue
    return {"devices": devices, "models": models}


def _free_ports(ports: range) -> int:
    free = 0
    for port in ports:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            free += 1
    return free


def _folder(path: Path) -> dict[str, Any]:
    """Whether a folder can be made and written, tried at its nearest existing parent; nothing is left there."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    return {"path": str(path), "writable": os.access(there, os.W_OK | os.X_OK), **(_space(str(there)) or {})}
