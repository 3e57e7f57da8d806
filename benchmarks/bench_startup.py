"""How long a person waits for `--help` and for an error, against importing the libraries alone (whole processes)."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from pairs import compare, finish, machine, verdict, whole_process

PAIRS = 15
FAULTY = "data: digits\nmodel: digits-cnn\noptim: {name: sgd, lr: fast}\nbatch: 0\nlength: 10\n"
SHOAL = str(Path(sys.executable).with_name("shoal"))


def main() -> None:
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        faulty = Path(folder) / "faulty.yaml"
        faulty.write_text(FAULTY)
        for name, argv, imports, goal in (
            ("shoal --help", [SHOAL, "--help"], "click", 1.4),
            ("an unknown recipe", [SHOAL, "train", "digit"], "click", 1.6),
            ("a faulty recipe", [SHOAL, "train", str(faulty)], "click, yaml, pydantic", 1.5),
        ):
            base = [sys.executable, "-c", f"import {imports}"]
            subprocess.run(base, check=True)  # the comparison needs its libraries
            whole_process(argv)
            pair = (partial(whole_process, argv), partial(whole_process, base))
            ours, theirs, ratio, low, high = compare(*pair, PAIRS)
            print(
                f"{name}: {ours * 1e3:.0f} ms, `import {imports}`: {theirs * 1e3:.0f} ms (medians of {PAIRS} pairs); "
                f"ratio {ratio:.2f}, {low:.2f} to {high:.2f}"
            )
            verdict(name, ratio, f"<= {goal}", ratio <= goal)
    finish()


if __name__ == "__main__":
    main()
