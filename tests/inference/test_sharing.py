import time

import torch

from shoal.inference.sharing import sharing


def test_a_pass_that_waits_for_its_images_leaves_the_cores_to_who_makes_them():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:

        def slow_then_quick():
            for pause_s in (0.05, 0.05, 0, 0):
                time.sleep(pause_s)
                yield pause_s

        had = []
        for _ in sharing(slow_then_quick()):
            had.append(torch.get_num_threads())
            time.sleep(0.2)  # of which a twentieth is no waiting
        assert had == [2, 1, 2, 2]
        assert torch.get_num_threads() == 2
        for _ in sharing([1]):
            break
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
