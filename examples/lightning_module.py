"""Protect a training with Lightning's Trainer: manual optimisation, with `refiner.backward` in the step.

    pip install -r requirements.lock -r examples/requirements.lock
    python examples/lightning_module.py           # bundled images, seconds on 2 cores

Expect a line per epoch, and that the loss falls. The client's secret is created in `lightning.secret`, mode
600: keep that file, it fixes the noise of each image.

Manual optimisation (`automatic_optimization = False`) is Lightning's own way to compute gradients yourself;
the Trainer's loops, loggers and checkpoints stay. `Trainer(precision="bf16-mixed")` runs the step under
autocast, and is refused. Use one device: strategies such as DDP don't average these gradients.
"""

import argparse
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import refiner
from refiner.data import load_train_and_test


def make_model(classes: int) -> nn.Module:
    convolution = nn.Sequential(nn.Conv2d(3, 16, 5, stride=4, padding=2), nn.GroupNorm(4, 16), nn.ReLU())
    return nn.Sequential(convolution, nn.Flatten(), nn.Linear(1024, classes))


class ProtectedModule(LightningModule):
    """A classifier whose training steps are protected."""

    def __init__(self, model: nn.Module, defense: refiner.Defense) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model, self.defense = model, defense  # no save_hyperparameters(): a defence holds the secret
        self.defense_state = defense.init_state()

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        x, y = batch
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        # In place of self.manual_backward(loss):
        result = refiner.backward(self.model, F.cross_entropy, x, y, self.defense, state=self.defense_state)
        optimizer.step()
        self.log("loss", result.loss, on_step=False, on_epoch=True)

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        x, y = batch
        self.log("accuracy", (self.model(x).argmax(1) == y).float().mean())

    def on_train_epoch_end(self) -> None:
        metrics = self.trainer.callback_metrics
        epoch, loss = self.current_epoch + 1, metrics["loss"]
        print(f"epoch {epoch}: loss {loss:.3f}, accuracy {metrics['accuracy']:.1%}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.05)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="sample", help="or cifar10, with REFINER_DATA")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--secret", default="lightning.secret")
    parser.add_argument("--precision", default="32-true", help="bf16-mixed shows how it is refused")
    options = parser.parse_args()
    seed_everything(0)
    train, _ = load_train_and_test(options.data)
    data = TensorDataset(train.images[: options.images].float() / 255, train.labels[: options.images])
    defense = refiner.Refiner(secret=refiner.load_secret(options.secret), iterations=3)
    off = ("logger", "enable_model_summary", "enable_checkpointing", "enable_progress_bar")
    quiet: Any = dict.fromkeys(off, False)
    trainer = Trainer(max_epochs=options.epochs, accelerator="cpu", precision=options.precision, **quiet)
    module = ProtectedModule(make_model(train.classes), defense)
    trainer.fit(module, DataLoader(data, batch_size=16, shuffle=True), DataLoader(data, batch_size=100))
    print(f"the secret of this client is in {options.secret}: keep it")
