"""Jobs of the old worlds, small: a YAML in PaddleClas's form, and what becomes of a job."""

from __future__ import annotations

from pathlib import Path

from shoal.importing.draft import Draft
from shoal.importing.findings import Findings
from shoal.importing.recognise import read
from shoal.recipe.load import parse
from shoal.recipe.recipe import Recipe

CONF = """\
Global:
  checkpoints: null
  pretrained_model: null
  epochs: 120
  device: gpu
  output_dir: ./output/
  print_batch_step: 10
  eval_interval: 2
  save_interval: 5
  image_shape: [3, 224, 224]
Arch:
  name: ResNet50_vd
  class_num: 1000
Loss:
  Train:
    - CELoss: {weight: 1.0, epsilon: 0.1}
  Eval:
    - CELoss: {weight: 1.0}
Optimizer:
  name: Momentum
  momentum: 0.9
  lr:
    name: Cosine
    learning_rate: 0.1
    warmup_epoch: 5
  regularizer: {name: L2, coeff: 0.00007}
DataLoader:
  Train:
    dataset:
      name: ImageNetDataset
      image_root: ./images/
      cls_label_path: ./images/train_list.txt
      transform_ops:
        - DecodeImage: {to_rgb: True, channel_first: False}
        - RandCropImage: {size: 192}
        - RandFlipImage: {flip_code: 1}
        - NormalizeImage: {scale: 1.0/255.0, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225], order: ''}
      batch_transform_ops:
        - MixupOperator: {alpha: 0.2}
    sampler: {name: DistributedBatchSampler, batch_size: 64, drop_last: False, shuffle: True}
    loader: {num_workers: 4, use_shared_memory: True}
  Eval:
    dataset:
      name: ImageNetDataset
      image_root: ./images/
      cls_label_path: ./images/val_list.txt
      transform_ops:
        - ResizeImage: {resize_short: 224}
        - CropImage: {size: 192}
    sampler: {name: DistributedBatchSampler, batch_size: 32}
    loader: {num_workers: 4}
Metric:
  Eval:
    - TopkAcc: {topk: [1, 5]}
"""


def imported(*words: str | Path, cards: int | None = None) -> tuple[Recipe, Draft, Findings]:
    """The recipe that a job becomes, with what was found on the way."""
    findings = Findings()
    draft = read([str(word) for word in words], None, cards, findings)
    assert not findings.wrong and not findings.lacking, findings
    return parse(draft.text([]), "imported").recipe, draft, findings


def found(*words: str | Path) -> Findings:
    findings = Findings()
    read([str(word) for word in words], None, None, findings)
    return findings
