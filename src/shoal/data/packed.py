"""Packed: what was planned to be packed, written whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from shoal.base.errors import ShoalError, shown_path
from shoal.base.files import files_whole, folder_whole, sync_file
from shoal.base.host import cores
from shoal.data.encoded import read_file
from shoal.data.image import ImageError, decode
from shoal.data.packing import Packing, Picked
from shoal.data.recordio import Header, Writer, pack

_NOT_LINKED = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EACCES}
"""Why a hard link cannot be made where a copy can."""


@dataclass(frozen=True)
class Packed:
    """What came of it."""

    images: int
    classes: int
    bad: int
    copied: int
    """Images that could not be linked."""


def write(
    packing: Packing,
    on_bad: Literal["stop", "skip"] = "stop",
    *,
    threads: int | None = None,
    done: Callable[[int], None] = lambda count: None,
    told: Callable[[str], None] = lambda line: None,
) -> Packed:
    """Writes it, wholly or not at all. threads: as many decode, absent: one per core. `done` hears how many images were
    looked at, `told` of each bad one.

    ShoalError: an image that cannot be decoded, unless such are to be skipped; a disk that takes no more.
    """
    good, bad = [], 0

    def checked() -> Iterator[tuple[Picked, bytes]]:
        nonlocal bad
        for count, (image, data) in enumerate(_checked(packing, threads or cores()), 1):
            if isinstance(data, ImageError):
                bad += 1
                told(f"{shown_path(image.path)} {data}")
            elif not bad or on_bad == "skip":  # else nothing will be kept; the others are only looked at
                good.append(image.label)
                yield image, data
            done(count)
        if bad and on_bad == "stop":
            wrong = f"{bad:,} of {len(packing.images):,} images cannot be decoded"
            raise ShoalError(f"{wrong}; nothing was written: mend or remove them, or leave them out with --on-bad skip")
        if not good:
            raise ShoalError(f"none of {len(packing.images):,} images can be decoded; nothing was written")

    try:
        copied = (_write_records if packing.records else _write_folders)(packing, checked())
    except OSError as error:
        reason = error.strerror or str(error)
        raise ShoalError(f"{shown_path(packing.dst)}: cannot be written ({reason}); nothing was left there") from None
    return Packed(len(good), len(set(good)), bad, copied)


def _checked(packing: Packing, threads: int) -> Iterator[tuple[Picked, bytes | ImageError]]:
    """Each image's bytes, after they were decoded once, or why they cannot be; by threads, a few ahead."""
    recoding = packing.recoding

    def check(image: Picked) -> bytes | ImageError:
        try:
            data = read_file(image.path)
            pixels = decode(data)
            return recoding(data, pixels) if recoding else data
        except ImageError as error:
            return error

    pool = ThreadPoolExecutor(threads, "check")
    ahead: deque[tuple[Picked, Future[bytes | ImageError]]] = deque()
    try:
        for image in packing.images:
            ahead.append((image, pool.submit(check, image)))
            if len(ahead) > 8 * threads:
                first, made = ahead.popleft()
                yield first, made.result()
        for first, made in ahead:
            yield first, made.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _write_records(packing: Packing, checked: Iterator[tuple[Picked, bytes]]) -> int:
    """A .rec of the bytes as they are, its .idx, and the .lst that names the classes."""
    with files_whole(*packing.files) as aside:
        rec = aside / packing.dst.name
        with Writer(rec) as writer, open(rec.with_suffix(".lst"), "wb") as lst:
            for number, (image, data) in enumerate(checked):
                labels = (float(image.label), *image.more)
                writer.write(pack(Header(labels, number), data), number)
                folder = os.fsencode(packing.classes[image.label]) + b"/" if packing.classes else b""
                name = folder + os.fsencode(os.path.basename(image.path))
                columns = [b"%d" % number, *(b"%g" % label for label in labels), _one_line(name)]
                lst.write(b"\t".join(columns) + b"\n")
    return 0


def _write_folders(packing: Packing, checked: Iterator[tuple[Picked, bytes]]) -> int:
    """Class folders of hard links; of copies where links cannot be."""
    assert packing.classes is not None
    copied = 0
    with folder_whole(packing.dst) as aside:
        for image, _ in checked:
            folder = aside / packing.classes[image.label]
            folder.mkdir(exist_ok=True)
            new = folder / os.path.basename(image.path)
            old = os.path.realpath(image.path)  # of a link the file: links may lead elsewhere from here
            try:
                os.link(old, new)
            except OSError as error:
                if error.errno not in _NOT_LINKED:
                    raise
                shutil.copyfile(old, new)
                sync_file(new)
                copied += 1
    return copied


def _one_line(name: bytes) -> bytes:
    """A .lst has no way to write a tab or a line break; its names only tell people and name classes."""
    return name.replace(b"\t", b"?").replace(b"\n", b"?").replace(b"\r", b"?")
