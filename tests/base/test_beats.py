from __future__ import annotations

from shoal.base.beats import beat, heard


def test_beats_are_heard_by_all_who_listen_and_by_nobody_afterwards():
    outer, inner = [], []
    beat()
    with heard(lambda: outer.append(1)):
        beat()
        with heard(lambda: inner.append(1)):
            beat()
        beat()
    beat()
    assert (len(outer), len(inner)) == (3, 1)
