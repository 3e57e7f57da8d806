"""Reading records that are not in the page cache: in a wholly random order, in blocks, and in blocks fetched ahead.

Writes 200 MB below $TMPDIR for each size of record; the system forgets them before each turn. Nothing is decoded.
"""

from __future__ import annotations

import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pairs import machine

from shoal.data.order import order
from shoal.data.readahead import Readahead
from shoal.data.recordio import Header, Records, Writer, pack
from shoal.data.shuffle import Shuffle

TURNS = 5
TOTAL, BLOCK, BLOCKS = 200_000_000, 4_000_000, 8  # bytes, bytes, blocks


def rate(file: Path, shuffle: Shuffle | None, reader: Callable[[Records], Callable[[int], object]]) -> float:
    """MB/s."""
    records = Records(file)
    indices = order(len(records), 0, 0, shuffle).tolist()
    forget(file, records)
    read, began = reader(records), time.perf_counter()
    for index in indices:
        read(index)
    return TOTAL / 1e6 / (time.perf_counter() - began)


def forget(file: Path, records: Records) -> None:
    """Has the page cache drop the file; what is mapped stays in it."""
    records._bytes.madvise(mmap.MADV_DONTNEED)
    handle = os.open(file, os.O_RDONLY)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def main() -> None:
    print(machine())
    for size in (3_000, 110_000):
        blocks = Shuffle(block=BLOCK // size, blocks=BLOCKS)
        ways = {
            "random": (None, lambda records: records.image),
            "blocks": (blocks, lambda records: records.image),
            "ahead": (blocks, lambda records, blocks=blocks: Readahead(records, blocks).image),
        }
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "some.rec"
            with Writer(file) as writer:
                for _ in range(TOTAL // size):
                    writer.write(pack(Header((0.0,)), os.urandom(size)))
            os.sync()
            found: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(TURNS):
                for way, arguments in ways.items():
                    found[way].append(rate(file, *arguments))
        print(f"records of {size:,} bytes, blocks of {blocks.block:,}, medians of {TURNS} turns, smallest to largest")
        for way, rates in found.items():
            ratios = [one / random for one, random in zip(rates, found["random"], strict=True)]
            print(
                f"  {way:7} {statistics.median(rates):5.0f} MB/s ({min(rates):.0f} to {max(rates):.0f}), "
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) of random"
            )


if __name__ == "__main__":
    main()
