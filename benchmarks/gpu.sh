#!/usr/bin/env bash
# Every GPU test and benchmark, in one command of nine minutes at most. Prints figures for docs/measured.md.
# Usage: benchmarks/gpu.sh [PYTHON]      (any Python that has Shoal's dependencies; the sources need not be installed)
set -uo pipefail
[ -n "${SHOAL_GPU_BOUNDED:-}" ] || SHOAL_GPU_BOUNDED=1 exec timeout 535 bash "$0" "$@"
cd "$(dirname "$0")/.."
python=${1:-python3}
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH}
"$python" - <<'P' || exit 1
import torch
assert torch.cuda.is_available(), "no CUDA device is visible"
print(torch.cuda.get_device_name(0), "torch", torch.__version__)
P
status=0
timeout 150 "$python" -m pytest -m gpu -q tests || status=1
timeout 60 "$python" -m pytest -q tests/contracts/test_decoder.py || status=1 # nvjpeg's part of it runs here alone
for precision in fp32 bf16 O1 O2; do
  folder=$(mktemp -d)
  timeout 60 "$python" -m shoal train digits "precision=$precision" --run "$folder/run" 2>"$folder/log" ||
    { status=1; tail -n 20 "$folder/log"; }
  rm -rf "$folder"
done
devices=$("$python" -c "import torch; print(torch.cuda.device_count())")
if [ "$devices" -ge 2 ]; then # a part of the model on each of two devices
  for strategy in fsdp pipeline; do
    folder=$(mktemp -d)
    timeout 60 "$python" -m shoal train digits -n 2 "strategy=$strategy" --run "$folder/run" 2>"$folder/log" ||
      { status=1; tail -n 20 "$folder/log"; }
    rm -rf "$folder"
  done
fi
# ResNet-50 at 224 px, synthetic images: images/s against a bare loop with the same settings, and peak memory.
resnet="imagenet-resnet50 data=synthetic data.images=4096 data.classes=1000 data.channels=3 data.size=224 shards=1 batch=256"
for settings in "precision=fp32" "precision=bf16" "precision=O2" "precision=bf16 model.compile=true" \
  "precision=O2 model.compile=true"; do
  # shellcheck disable=SC2086
  timeout 90 "$python" benchmarks/bench_loop.py $resnet model.channels_last=true $settings --goal 0.97 || status=1
done
exit $status
