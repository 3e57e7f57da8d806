"""ONNX: for onnxruntime and whatever else reads it. Metadata are its `metadata_props`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from shoal.base.errors import ShoalError, UsageError, first_line
from shoal.inference.formats import silent, traced


def write(graph: torch.nn.Module, example: torch.Tensor, path: Path, metadata: Mapping[str, str]) -> None:
    """ShoalError names the operator that ONNX has no form for."""
    onnx = _needed()
    program = traced(graph, example)
    try:
        with silent():
            made = torch.onnx.export(
                program, dynamo=True, input_names=["images"], output_names=["logits"], verbose=False
            )
            assert made is not None
            made.save(path)
    except Exception as error:  # the exporter's errors have no common base
        raise ShoalError(f"this model cannot be exported to ONNX: {_reason(error)}") from error
    model = onnx.load(path)
    onnx.helper.set_model_props(model, dict(metadata))
    onnx.save(model, path)


def reader(graph: torch.nn.Module, path: Path) -> Callable[[torch.Tensor], torch.Tensor]:
    """By onnxruntime, on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def quantise(path: Path) -> None:
    """Weights as int8 in the file, activations when they are computed (dynamic quantisation)."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    onnx = _needed()
    model, aside = onnx.load(path), path.with_suffix(".float.onnx")
    del model.graph.value_info[:]  # shapes before the quantiser transposes weights, which it takes for an error
    onnx.save(model, aside)
    with silent():
        quantize_dynamic(aside, path, weight_type=QuantType.QUInt8)  # onnxruntime has no convolution of signed weights
    aside.unlink()


def _needed() -> Any:
    """The module onnx, where all that is needed is there."""
    try:
        import onnx
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401

        return onnx
    except ImportError as error:
        raise UsageError(f"--to onnx needs the package {error.name}: pip install 'shoal[export]'") from None


def _reason(error: BaseException) -> str:
    """The operator at fault, found in the chain of causes; else what the innermost says."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    for told in map(str, reversed(chain)):
        if found := re.search(r"OpOverload\(op='([\w.]+)', overload='(\w+)'\)", told):
            return f"it has no operator {found[1]}.{found[2]}"
        if found := re.search(r"torch\.ops\.([\w.]+)", told):
            return f"it has no operator {found[1]}"
    return first_line(chain[-1])
