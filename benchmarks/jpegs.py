"""ImageNet JPEGs to measure with: imagenet_sample.tar in the folder SHOAL_TEST_DATA (default: ../shared/data beside the
repository)."""

from __future__ import annotations

import os
import sys
import tarfile
from pathlib import Path

FOLDER = Path(os.environ.get("SHOAL_TEST_DATA") or Path(__file__).parents[1] / "../shared/data")


def unpacked(folder: Path, copies: int) -> tuple[Path, list[bytes]]:
    """A folder of class folders in which each image lies so many times, and each image's bytes."""
    archive = FOLDER / "imagenet_sample.tar"
    if not archive.is_file():
        sys.exit(f"no {archive}; SHOAL_TEST_DATA names the folder of the data")
    images = []
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile() and member.name.lower().endswith((".jpeg", ".jpg")):
                images.append(tar.extractfile(member).read())  # type: ignore[union-attr]
                for copy in range(copies):
                    place = folder / f"c{len(images) % 100:02}" / f"{len(images)}-{copy}.jpg"
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_bytes(images[-1])
    return folder, images
