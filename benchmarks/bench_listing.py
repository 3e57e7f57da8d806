"""Listing a folder of many images: from the disk, from what was kept, and as torchvision's ImageFolder does it.

Makes `bench_listing.py N` empty files (default 100,000) in 1,000 class folders below $TMPDIR, and removes them. The
kernel knows their names already, as it does after a first listing; on a cold or a network disk all but the second take
longer.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pairs import machine

TURNS = 3
WAYS = {
    "listed": "from shoal.data.tree import tree; found = tree(root, keep=False)",
    "kept": "from shoal.data.tree import tree; found = tree(root)",
    "ImageFolder": "from torchvision.datasets import ImageFolder; found = ImageFolder(root, allow_empty=True).samples",
}
PROBE = """
import sys, time
import {module}
def kib(word): return int(next(line for line in open("/proc/self/status") if line.startswith(word)).split()[1])
root = sys.argv[1]
open("/proc/self/clear_refs", "w").write("5")  # the highest so far was that of the imports
before, began = kib("VmRSS"), time.perf_counter()
{way}
print(time.perf_counter() - began, (kib("VmRSS") - before) / 1024, (kib("VmHWM") - before) / 1024)
"""


def one(way: str, root: Path) -> tuple[float, float, float]:
    """Seconds, and the MiB that the process grew by, and had grown by at its highest."""
    module = "torchvision.datasets" if way == "ImageFolder" else "shoal.data.tree"
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(way=WAYS[way], module=module), str(root)],
        env=os.environ | {"XDG_CACHE_HOME": str(root.parent / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, grown, peak = map(float, done.stdout.split())
    return seconds, grown, peak


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "images"
        for label in range(1000):
            (root / f"n{label:08}").mkdir(parents=True)
            for number in range(label, count, 1000):
                (root / f"n{label:08}/n{label:08}_{number}.JPEG").touch()
        time.sleep(4)  # a folder that has just changed is not kept
        one("kept", root)
        found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
        for _ in range(TURNS):
            for way in WAYS:
                found[way].append(one(way, root))
    print(f"{count:,} files in 1,000 folders; a process each, medians of {TURNS} turns, smallest to largest")
    for way, measured in found.items():
        seconds, grown, peak = zip(*measured, strict=True)
        print(
            f"  {way:12} {statistics.median(seconds):6.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"
            f"   {statistics.median(grown):6.1f} MiB held, {statistics.median(peak):.1f} at the highest"
        )


if __name__ == "__main__":
    main()
