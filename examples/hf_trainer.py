"""Protect a training with Hugging Face's Trainer: `training_step` calls `refiner.backward`.

    pip install -r requirements.lock -r examples/requirements.lock
    python examples/hf_trainer.py           # a small ViT with random weights, bundled images, seconds

Expect a line per epoch with a loss that falls, then the accuracy. The client's secret is created in
`hf_trainer.secret`, with mode 600: keep that file, it fixes the noise of each image.

`training_step` is where the Trainer computes a batch's gradient; clipping, scheduler and logs stay.
Images stay in 0..1 and the model normalises them (`do_normalize=False`). `bf16=True` is refused.
"""

import argparse
import tempfile
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

import refiner
from refiner.data import load_train_and_test


class ProtectedTrainer(Trainer):
    """A Trainer whose training steps are protected."""

    def __init__(self, *args: Any, defense: refiner.Defense, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.args.gradient_accumulation_steps != 1:
            raise ValueError("gradient_accumulation_steps: expected 1; use a larger batch")
        self.defense, self.defense_state = defense, defense.init_state()

    def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        model.train()
        inputs = self._prepare_inputs(inputs)
        x, y = inputs["pixel_values"], inputs["labels"]
        return refiner.backward(model, F.cross_entropy, x, y, self.defense, state=self.defense_state).loss


class NormalizingViTForImageClassification(ViTForImageClassification):
    """A ViT that takes images in 0..1; transformers finds the loss by the end of the class's name."""

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None, **kwargs: Any) -> Any:
        return super().forward((pixel_values - 0.5) / 0.5, labels=labels, **kwargs)


def make_model(
    classes: int,
) -> ViTForImageClassification:  # also for --model examples/hf_trainer.py:make_model
    return NormalizingViTForImageClassification(ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32,
        patch_size=8, num_labels=classes, hidden_dropout_prob=0.1,
    ))  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="sample", help="or cifar10, with REFINER_DATA")
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--secret", default="hf_trainer.secret")
    parser.add_argument("--bf16", action="store_true", help="shows how it is refused")
    options = parser.parse_args()
    set_seed(0)
    train, _ = load_train_and_test(options.data)
    images, labels = train.images[: options.images].float() / 255, train.labels[: options.images]
    data: Any = [{"pixel_values": x, "labels": y} for x, y in zip(images, labels, strict=True)]
    defense = refiner.Refiner(secret=refiner.load_secret(options.secret), iterations=2)
    settings: Any = dict(per_device_train_batch_size=16, num_train_epochs=options.epochs, learning_rate=5e-3)
    settings |= dict(logging_strategy="epoch", save_strategy="no", report_to=[], use_cpu=True)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, bf16=options.bf16, disable_tqdm=True, **settings)
        model = make_model(train.classes)
        trainer = ProtectedTrainer(model, arguments, train_dataset=data, eval_dataset=data, defense=defense)
        trainer.train()
        predicted = torch.tensor(trainer.predict(data).predictions).argmax(1)
    print(f"accuracy {(predicted == labels).float().mean():.1%} on the images that it was trained on")
    print(f"the secret of this client is in {options.secret}: keep it")
