#!/usr/bin/env bash
# Every GPU test and benchmark, in one command of at most nine minutes. Prints figures for docs/measured.md.
# Usage: benchmarks/gpu.sh [PYTHON]      (any Python that has Shoal's dependencies; the sources need not be installed)
set -uo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH}
"$python" - <<'P' || exit 1
import torch
assert torch.cuda.is_available(), "no CUDA device is visible"
print(torch.cuda.get_device_name(0), "torch", torch.__version__)
P
status=0
timeout 300 "$python" -m pytest -m gpu -q tests || status=1
for precision in fp32 bf16; do
  folder=$(mktemp -d)
  timeout 100 "$python" -m shoal train digits "precision=$precision" --run "$folder/run" 2>"$folder/log" ||
    { status=1; tail -n 20 "$folder/log"; }
  rm -rf "$folder"
done
exit $status
