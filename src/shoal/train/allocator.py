"""The C library's allocator, told what a training needs: a step's memory is kept for the next step, on huge pages.

By itself glibc gives large freed blocks back to the system and gets them again page by page, zeroed, thousands of times
a step. On CPUs that is a tenth to a third of a small net's step.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # glibc's numbers for mallopt
_LARGEST_KEPT = 32 << 20  # bytes; glibc takes no more
_HEAP = 256 << 20  # bytes by which the heap grows; only those that are used take memory
_HUGE = 2 << 20
_MADV_HUGEPAGE = 14
_OWN_WORDS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES", "LD_PRELOAD")


def describe() -> str:
    """A line that says what `keep_memory` does here, and why."""
    libc, reason = _told()
    if libc is None:
        return f"allocator: as it is ({reason})"
    pages = ", on huge pages" if _pages_on_request() else ""
    return f"allocator: keeps freed blocks up to {_LARGEST_KEPT >> 20} MiB for the next step{pages} (else zeroed anew)"


def keep_memory() -> None:
    """Makes it hold for this process; before its large allocations."""
    libc, _ = _told()
    if libc is None:
        return
    libc.mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)
    libc.mallopt(_TRIM_THRESHOLD, 2**31 - 1)
    libc.mallopt(_TOP_PAD, _HEAP)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.free(libc.malloc(_LARGEST_KEPT // 2))  # has the heap grow now
    if _pages_on_request():
        libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        low, high = _heap()
        low, high = -(-low // _HUGE) * _HUGE, high // _HUGE * _HUGE
        if low < high:
            libc.madvise(low, high - low, _MADV_HUGEPAGE)


def _told() -> tuple[ctypes.CDLL | None, str]:
    """The C library where its allocator may be told what to do, else the reason why not."""
    told = [word for word in _OWN_WORDS if os.environ.get(word)]
    if told:
        return None, f"{told[0]} is set"
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt") or not hasattr(libc, "gnu_get_libc_version"):
        return None, "not glibc's"
    return libc, ""


def _pages_on_request() -> bool:
    """Whether the system gives huge pages to who asks for them."""
    try:
        with open("/sys/kernel/mm/transparent_hugepage/enabled") as file:
            return "[madvise]" in file.read()
    except OSError:
        return False


def _heap() -> tuple[int, int]:
    """First and last address of the heap; 0, 0 where it is not told."""
    try:
        with open("/proc/self/maps") as file:
            for line in file:
                if line.rstrip().endswith("[heap]"):
                    low, high = line.split(None, 1)[0].split("-")
                    return int(low, 16), int(high, 16)
    except OSError:
        pass
    return 0, 0
