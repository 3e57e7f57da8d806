"""Lightning's Trainer on the same pictures and net. Images/s of this worker, as JSON.

python lightning_loop.py BATCH STEPS WORKERS
"""

from __future__ import annotations

import json
import os
import sys
import time

import lightning  # pyright: ignore[reportMissingImports]
import torch
from cifar_like import Made, net, optimizer_of
from torch.utils.data import DataLoader

WARM = 5


class Net(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = net()

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _: int) -> torch.Tensor:
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer_of(self)


class Clock(lightning.Callback):
    began = 0.0

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: object) -> None:
        if trainer.global_step == WARM:
            self.began = time.perf_counter()


def main() -> None:
    batch, steps, workers = (int(word) for word in sys.argv[1:])
    torch.set_num_threads(1)
    clock = Clock()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=workers,
        strategy="ddp" if workers > 1 else "auto",
        max_steps=WARM + steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[clock],
    )
    images = Made((WARM + steps) * batch * workers)
    trainer.fit(Net(), DataLoader(images, batch, shuffle=True, num_workers=1, drop_last=True))
    rate = steps * batch / (time.perf_counter() - clock.began)
    print(json.dumps({"images_per_s": rate, "rank": os.environ.get("LOCAL_RANK", "0")}), flush=True)


if __name__ == "__main__":
    main()
