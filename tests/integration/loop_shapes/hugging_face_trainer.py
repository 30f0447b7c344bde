"""The Hugging Face Trainer: accelerate inside, accumulation read ahead, evaluation with grad mode on, checkpoints."""

import os
import time
from typing import Any

import torch
import truth
from torch.utils.data import Dataset
from transformers import PreTrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments


class Samples(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, length: int, timed: bool) -> None:
        self._length = length
        self._timed = timed

    def __len__(self) -> int:
        return self._length

    def __getitems__(self, indices: list[int]) -> list[dict[str, torch.Tensor]]:
        if not self._timed:
            return [{"inputs": torch.rand(8)} for _ in indices]
        with truth.wait():
            time.sleep(0.03)
            return [{"inputs": torch.rand(8)} for _ in indices]


class Model(PreTrainedModel):
    config_class = PreTrainedConfig

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config)
        self.net = truth.SlowNet()
        self.post_init()

    def forward(self, inputs: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        outputs = self.net(inputs)
        return {"loss": outputs.mean(), "logits": outputs}


class Marks(TrainerCallback):
    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        truth.step()


arguments = TrainingArguments(
    output_dir=os.environ["LOOP_TRUTH"] + ".d",
    per_device_train_batch_size=4,
    per_device_eval_batch_size=4,
    gradient_accumulation_steps=2,
    num_train_epochs=2,
    eval_strategy="steps",
    eval_steps=8,
    save_strategy="steps",
    save_steps=8,
    logging_strategy="no",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(
    Model(PreTrainedConfig()),
    arguments,
    train_dataset=Samples(128, timed=True),
    eval_dataset=Samples(32, timed=False),
    callbacks=[Marks()],
)
evaluate = trainer.evaluate


def timed_evaluate(*arguments: Any, **named: Any) -> dict[str, float]:
    with truth.phase("eval"):
        return evaluate(*arguments, **named)


trainer.evaluate = timed_evaluate
trainer.train()
