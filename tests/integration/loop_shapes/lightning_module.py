"""Lightning: the loop is not ours, the backward runs inside the optimizer, a sanity check comes first."""

import logging
import time
import warnings
from typing import Any

import lightning
import torch
import truth
from torch.utils.data import DataLoader

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class TimedData(truth.SlowData):
    """Tells its own loading as the wait: with no workers it is all there is to wait for."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        with truth.wait():
            time.sleep(0.03)
            return [torch.rand(8) for _ in indices]


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = truth.SlowNet()

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        time.sleep(0.02)
        return self.net(batch).mean()

    def validation_step(self, batch: torch.Tensor) -> None:
        self.net(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)

    def optimizer_step(self, *arguments: Any, **named: Any) -> None:
        super().optimizer_step(*arguments, **named)
        truth.step()


trainer = lightning.Trainer(
    accelerator="cpu",
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Module(), DataLoader(TimedData(96), batch_size=4), DataLoader(truth.SlowData(32), batch_size=4))
