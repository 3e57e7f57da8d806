"""The listing of a folder: the same from the cache as from the disk; anew when anything changed or is damaged."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from shoal.data import tree as trees
from shoal.data.source import SourceError
from shoal.data.sources.folder import Folder, images_in, is_folder
from shoal.data.tree import tree

NAMES = ("b.jpg", "B.PNG", "a.x.webp", "a/z.jpg", "a/a/0.tif", "a-b/1.gif", "note.txt", ".hidden.jpg", ".git/x.jpg")


def names_below(root: Path) -> list[str]:
    """The slow way: every path, sorted part by part, by bytes."""
    found = [path.relative_to(root) for path in root.rglob("*") if path.suffix.lower() in trees.ENDINGS]
    seen = [path for path in found if not any(part.startswith(".") for part in path.parts)]
    return [str(root / path) for path in sorted(seen, key=lambda path: [os.fsencode(part) for part in path.parts])]


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """Three classes, last changed a minute ago; listings of any size are kept, in a cache of this test's own."""
    for folder in ("ant", "bee", os.fsdecode(b"caf\xe9"), "."):
        for name in NAMES:
            path = tmp_path / "images" / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    monkeypatch.setattr(trees, "KEPT_FROM", 1)
    monkeypatch.setattr(trees, "_STILL_NS", 0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "images"


def kept(root: Path) -> list[Path]:
    return list((root.parent / "cache/shoal/listings").glob("*"))


@pytest.fixture
def no_listing(monkeypatch) -> None:
    """Whatever is listed now comes from the cache."""
    monkeypatch.setattr(trees.os, "scandir", lambda path: pytest.fail(f"{path} was listed"))


def test_all_images_in_the_order_of_their_bytes(root):
    found = tree(str(root), keep=False)
    assert list(found) == images_in(root) == names_below(root) and len(found) == 4 * 6
    assert found.classes == ("a", "a-b", "ant", "bee", os.fsdecode(b"caf\xe9"))
    tops = [os.path.relpath(path, root).split("/")[0] for path in found]
    assert [found.classes[of] if of >= 0 else top for of, top in zip(found.class_of(), tops, strict=True)] == tops
    assert (found.class_of() < 0).sum() == 3 and not kept(root)


def test_from_the_cache_it_is_the_same_and_no_folder_is_listed(root, request):
    first = tree(str(root))
    assert len(kept(root)) == 1
    request.getfixturevalue("no_listing")
    again = tree(str(root))
    assert list(again) == list(first) and again.classes == first.classes
    assert np.array_equal(again.class_of(), first.class_of())


def test_a_source_opened_from_the_cache_is_the_same(root, request):
    source = Folder(path=str(root), val_share=0.3, on_bad="skip", image_size=8, memory_gib=0)
    seen = [[(split.where(i), split.labels[i]) for i in range(len(split.labels))] for split in map(source.open, SPLITS)]
    request.getfixturevalue("no_listing")
    for split, before in zip(map(source.open, SPLITS), seen, strict=True):
        assert [(split.where(i), split.labels[i]) for i in range(len(split.labels))] == before


SPLITS = ("train", "val")
CHANGES = {
    "added": lambda root: (root / "bee/a/a/new.jpg").touch(),
    "removed": lambda root: (root / "ant/b.jpg").unlink(),
    "renamed": lambda root: os.rename(root / "ant/b.jpg", root / "ant/c.jpg"),
    "moved": lambda root: os.rename(root / "ant/b.jpg", root / "bee/c.jpg"),
    "a class more": lambda root: (root / "cow").mkdir(),
    "a class less": lambda root: os.rename(root / "bee", root.parent / "bee"),
    "added, the clock turned back": lambda root: with_old_times(root / "bee", lambda: (root / "bee/new.jpg").touch()),
}


def with_old_times(folder: Path, change) -> None:
    """As tar and rsync leave folders."""
    before = os.stat(folder)
    change()
    os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", CHANGES)
def test_any_change_of_a_folder_has_it_listed_anew(change, root):
    before = list(tree(str(root)))
    time.sleep(0.01)  # a tick of the file system's clock
    CHANGES[change](root)
    found = tree(str(root))
    assert list(found) == names_below(root) and (list(found) != before or change == "a class more")
    assert len(found.classes) == sum(entry.is_dir() and entry.name[0] != "." for entry in os.scandir(root))


def test_a_damaged_listing_is_made_anew(root):
    found = list(tree(str(root)))
    (file,) = kept(root)
    whole = file.read_bytes()
    for at in range(0, len(whole), 37):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 8]) + whole[at + 1 :])
        assert list(tree(str(root))) == found, at
    for size in (0, 1, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        assert list(tree(str(root))) == found, size
    assert file.read_bytes() == whole


def test_a_folder_that_has_just_changed_is_not_kept(root, monkeypatch):
    monkeypatch.setattr(trees, "_STILL_NS", 10**10)
    tree(str(root))
    assert not kept(root)


def test_a_few_images_are_not_kept_nor_is_anything_where_the_cache_cannot_be_written(root, monkeypatch):
    monkeypatch.setattr(trees, "KEPT_FROM", 25)
    tree(str(root))
    assert not kept(root)
    monkeypatch.setattr(trees, "KEPT_FROM", 1)
    (root.parent / "cache").write_bytes(b"a file")
    assert list(tree(str(root))) == names_below(root)


def test_workers_that_start_at_once_see_the_same(root):
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: list(tree(str(root))), range(32)))
    assert all(one == names_below(root) for one in found) and len(kept(root)) == 1


@pytest.mark.parametrize("time", [0, 5])
def test_folders_whose_times_say_nothing_are_not_kept(time, root, monkeypatch):
    monkeypatch.setattr(trees, "_stamp", lambda status: (time, time))
    tree(str(root))
    assert not kept(root)


# Links


def test_a_link_back_is_named(root):
    (root / "bee/a/back").symlink_to(root / "bee")
    with pytest.raises(SourceError) as caught:
        tree(str(root))
    assert str(caught.value) == (
        f"{root / 'bee/a/back'}: leads back to {root / 'bee'}, which it lies in; remove the link"
    )
    (root / "bee/a/back").unlink()
    (root / "bee/here").symlink_to(".")
    with pytest.raises(SourceError, match=f"^{root / 'bee/here'}: leads back to {root / 'bee'}, "):
        tree(str(root))


def test_a_link_to_another_folder_is_followed(root):
    before = list(tree(str(root)))
    (root / "cow").symlink_to("bee")
    (root / "bee/ants").symlink_to("../ant")
    assert len(tree(str(root))) == len(before) + 6 + 2 * 6


def test_a_link_to_itself_is_a_bad_image_or_none(root):
    for name in ("ant/self.jpg", "self", "ant/gone.jpg"):
        (root / name).symlink_to(Path(name).name)
    assert list(tree(str(root))) == names_below(root)
    stopping, skipping = (
        Folder(path=str(root), val_share=0.3, on_bad=on_bad, image_size=8, cache="none").open("train")
        for on_bad in ("stop", "skip")
    )
    (at,) = (index for index in range(len(stopping.labels)) if stopping.where(index).endswith("self.jpg"))
    with pytest.raises(SourceError, match=r"ant/self.jpg cannot be read \(Too many levels of symbolic links\); mend"):
        stopping.image(at)
    assert skipping.image(at) is None


def test_what_nobody_may_look_at_is_no_folder():
    class Entry:
        def is_dir(self) -> bool:
            raise PermissionError

    assert not is_folder(Entry())  # type: ignore[arg-type]
