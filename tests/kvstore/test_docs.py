"""The example of docs/kvstore.md is a program that works, of about forty lines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from a_server import ServerProcess

from shoal.launch.handshake import SECRET_FILE

PAGE = Path(__file__).parents[2] / "docs" / "kvstore.md"


def example() -> str:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def test_it_is_short():
    assert len(example().splitlines()) <= 40


@pytest.mark.slow
@pytest.mark.parametrize("type", ["dist_sync", "dist_async"])
def test_it_learns(tmp_path, type):
    (tmp_path / "example.py").write_text(example().replace('"dist_sync"', f'"{type}"'))
    with ServerProcess(tmp_path, 2) as server:
        outputs = []
        for rank in range(2):
            env = {**os.environ, "SHOAL_SERVERS": server.address, SECRET_FILE: str(tmp_path / "secret")}
            env |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
            outputs.append(
                subprocess.Popen(
                    [sys.executable, "example.py"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
                )
            )
        told = [process.communicate(timeout=400)[0] for process in outputs]
        assert server.process.wait(30) == 0, server.lines
    for rank, text in enumerate(told):
        match = re.search(rf"worker {rank} of 2: (\d\.\d\d) right", text)
        assert match is not None and float(match[1]) > 0.9, text
    assert (tmp_path / "momentum.safetensors").is_file()
