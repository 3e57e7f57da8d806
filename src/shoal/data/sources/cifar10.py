from __future__ import annotations

import io
import pickle
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shoal.base.errors import first_line, shown_path
from shoal.data.encoded import EncodedSource, train_or_val
from shoal.data.source import Encoded, Held, Pixels, SourceError, Split, Streamed

if TYPE_CHECKING:
    import numpy as np

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
MEAN, STD = (125.307, 122.961, 113.8575), (62.9932, 62.0887, 66.7048)
PARTS = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "val": ("test_batch",)}
ADDRESS = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
_FOLDERS = ("", "cifar-10-batches-py", "cifar-10-batches-bin")
_ARCHIVES = ("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz")
_RECORD = 1 + 3 * 32 * 32  # bytes of an image in the binary version: label, red, green, blue


class Cifar10(EncodedSource, frozen=True, kw_only=True):
    """CIFAR-10 (Krizhevsky 2009), 50,000 and 10,000 images of 32x32 pixels, in whatever form is found in `path`: the
    folder or archive that torchvision loads, the binary version, or MXNet's *train*.rec and *val*.rec."""

    name: Literal["cifar10"] = "cifar10"
    path: str = "data/cifar10"
    """Folder that holds it, or the archive."""
    download: bool = False
    """Fetch the archive (170 MB) into `path` where nothing is found there."""

    def open(self, split: Split) -> Pixels | Encoded:
        found = self._found(split)
        if found is None and self.download:
            self._fetch()
            found = self._found(split)
        if found is None:
            raise SourceError(
                f"{shown_path(self.path)}: no CIFAR-10 here: none of the folders {', '.join(_FOLDERS[1:])}, the "
                f"archives {', '.join(_ARCHIVES)}, or *train*.rec with *val*.rec; data.path names where it is, "
                "data.download=true fetches it (170 MB)"
            )
        return found

    def _found(self, split: Split) -> Pixels | Encoded | None:
        """The split from the first form that is there, or None."""
        path = Path(self.path)
        for folder in (path / name for name in _FOLDERS):
            for ending in ("", ".bin"):
                files = [folder / (part + ending) for part in PARTS[split]]
                if any(file.is_file() for file in files):
                    return self._arrays({file.name: _read(file) for file in files}, folder)
        for archive in (path, *(path / name for name in _ARCHIVES)):
            if archive.is_file():
                return self._arrays(_members(archive, PARTS[split]), archive)
        if any(path.glob("*.rec")):
            return self._records(train_or_val(path, split))
        return None

    def _arrays(self, files: dict[str, bytes], where: Path) -> Held:
        """Of the batches of one split, by file name."""
        import numpy as np

        pairs = [
            (_binary if name.endswith(".bin") else _pickled)(data, f"{shown_path(where / name)}")
            for name, data in files.items()
        ]
        images = np.concatenate([images for images, _ in pairs]).reshape(-1, 3, 32, 32)
        labels = np.concatenate([labels for _, labels in pairs])
        return Held(images, labels, CLASSES, mean=MEAN, std=STD, limit=self.limit)

    def _records(self, file: Path) -> Pixels | Encoded:
        from shoal.data.recordio import opened

        records = opened(file)
        labels = records.labels()[: self.limit]
        wrong = ~((labels >= 0) & (labels < len(CLASSES)))
        if wrong.any():
            at = int(wrong.argmax())
            raise SourceError(
                f"{records.where(at)}: label {labels[at]:g}; CIFAR-10 has 0 to 9 (other data: data=recordio)"
            )
        images = Streamed(
            records.image,
            records.where,
            labels,
            CLASSES,
            mean=MEAN,
            std=STD,
            side=32,
            on_bad=self.on_bad,
            jpeg=self.decoder.ready(),
            nbytes=records.nbytes,
            version=records.version,
        )
        return self.held(images)

    def _fetch(self) -> None:
        """torchvision's download, checked by its MD5; one worker of a host fetches, the others wait for it."""
        import fcntl

        from torchvision.datasets import CIFAR10

        path = Path(self.path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            with open(path / ".download.lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                CIFAR10(str(path), download=True)
        except Exception as error:  # URLError, a broken connection, a wrong checksum, a read-only folder …
            reason = first_line(error)
            raise SourceError(
                f"{shown_path(path)}: CIFAR-10 cannot be downloaded ({reason}); where there is a network fetch "
                f"{ADDRESS} and put it, as it is, into this folder"
            ) from None


def form_at(path: Path) -> str | None:
    """The form of CIFAR-10 that lies at a path, .rec pairs aside; None: none."""
    if path.is_file():
        return "an archive" if path.name in _ARCHIVES else None
    for folder in (path / name for name in _FOLDERS):
        for ending, form in (("", "the version for Python"), (".bin", "the binary version")):
            if any((folder / (part + ending)).is_file() for parts in PARTS.values() for part in parts):
                return form
    return "an archive" if any((path / name).is_file() for name in _ARCHIVES) else None


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SourceError(
            f"{shown_path(file)}: cannot be read ({error.strerror}); CIFAR-10 is not whole here"
        ) from None


def _members(archive: Path, parts: tuple[str, ...]) -> dict[str, bytes]:
    """The files of one split in an archive, in order."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = Path(member.name).name
                if member.isfile() and name.removesuffix(".bin") in parts:
                    found[name] = tar.extractfile(member).read()  # type: ignore[union-attr]
    except (OSError, EOFError, tarfile.TarError) as error:
        reason = first_line(error)
        raise SourceError(f"{shown_path(archive)}: is no whole archive ({reason}); fetch it again: {ADDRESS}") from None
    missing = [part for part in parts if not {part, part + ".bin"} & set(found)]
    if missing:
        raise SourceError(f"{shown_path(archive)}: has no {missing[0]}; CIFAR-10's own archive: {ADDRESS}")
    return dict(sorted(found.items()))


def _binary(data: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [n, 3072], labels [n]."""
    import numpy as np

    if not data or len(data) % _RECORD:
        raise SourceError(f"{where}: {len(data):,} bytes are no whole number of images of {_RECORD:,}; fetch it again")
    rows = np.frombuffer(data, np.uint8).reshape(-1, _RECORD)
    return rows[:, 1:], _checked(rows[:, 0], where)


def _pickled(data: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [n, 3072], labels [n]."""
    import numpy as np

    try:
        held = _Arrays(io.BytesIO(data), encoding="latin1").load()
        images, labels = np.asarray(held["data"], np.uint8), np.asarray(held["labels"], np.int64)
        if images.shape != (len(labels), _RECORD - 1):
            raise ValueError(f"images {list(images.shape)} for {len(labels)} labels")
    except Exception as error:  # whatever a damaged pickle makes of itself
        reason = first_line(error)
        raise SourceError(f"{where}: is no batch of CIFAR-10 ({reason}); fetch it again: {ADDRESS}") from None
    return images, _checked(labels, where)


def _checked(labels: np.ndarray, where: str) -> np.ndarray:
    wrong = (labels < 0) | (labels >= len(CLASSES))
    if wrong.any():
        at = int(wrong.argmax())
        raise SourceError(f"{where}: image {at} has label {labels[at]}; CIFAR-10 has 0 to 9")
    return labels


class _Arrays(pickle.Unpickler):
    """Unpickles arrays and nothing else: a pickle that was downloaded may run any code."""

    def find_class(self, module: str, name: str) -> Any:
        known = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}
        if (module, name) in known or (module.endswith("core.multiarray") and name == "_reconstruct"):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no array needs")
