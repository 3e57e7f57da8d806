"""Makes src/shoal/data/digits/digits.npz from scikit-learn's copy of the UCI digits. Same bytes on every run.

Needs scikit-learn, which Shoal does not: `pip install scikit-learn`, then `python scripts/make_digits.py`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

TARGET = Path(__file__).resolve().parents[1] / "src/shoal/data/digits/digits.npz"


def split(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices for training and validation, in a fixed random order; one in five of every class is for validation.

    Order and choice come from Philox's raw bits, which numpy keeps stable; its permutations may change between
    versions.
    """
    bits = np.random.Philox(key=0).random_raw(len(labels))
    by_class = np.lexsort((bits, labels))  # class by class, each class in random order
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[by_class[4::5]] = True
    order = np.argsort(bits, kind="stable")
    return order[~chosen[order]], order[chosen[order]]


def main() -> None:
    from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports]

    digits = load_digits()
    counts = digits.images.astype(np.int64)  # [1797, 8, 8], black pixels of a 4x4 block: 0..16
    assert counts.shape == (1797, 8, 8) and counts.min() == 0 and counts.max() == 16
    images = np.round(counts * 255 / 16).astype(np.uint8)
    labels = digits.target.astype(np.uint8)
    train, val = split(labels)
    np.savez_compressed(
        TARGET,
        train_images=images[train],
        train_labels=labels[train],
        val_images=images[val],
        val_labels=labels[val],
    )
    print(f"{TARGET}: {len(train)} + {len(val)} images, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
