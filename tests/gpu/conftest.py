"""GPU tests: each is skipped, with the reason, where no CUDA device is visible."""

import pytest


@pytest.fixture(autouse=True)
def device():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device is visible")
    return torch.device("cuda", 0)
