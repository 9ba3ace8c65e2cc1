"""The Trainer of Lightning inside a budget leaves the bits of the plain Trainer."""

from __future__ import annotations

import gc
import pathlib
from typing import Any

import pytest
import reprise
import torch
from conftest import run_snippets
from torch import nn

lightning = pytest.importorskip("lightning", reason="needs lightning: make test-integrations")
pytestmark = [
    pytest.mark.usefixtures("runtime"),
    pytest.mark.filterwarnings("ignore"),
]
Module: Any = lightning.LightningModule
Callback: Any = lightning.Callback
ROWS = 64


class Net(Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 32))
            for _ in range(12)
        )
        self.norm = nn.BatchNorm1d(32)
        self.head = nn.Linear(32, 10)
        self.calls = 0

    def loss_of(self, batch: Any) -> Any:
        x, y = batch
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(self.norm(x)), y)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss_of(batch)
        self.log("train", loss, on_epoch=True)
        self.log_dict({"double": 2 * loss.detach()})
        return {"loss": loss, "rows": batch[0].sum()}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val", self.loss_of(batch))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


class Notes(Callback):
    """Keeps all that two runs are compared by."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.peaks: list[int] = []

    def on_train_batch_start(self, *_: Any) -> None:
        reprise.reset_peak()

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int
    ) -> None:
        metrics = {name: value.item() for name, value in trainer.callback_metrics.items()}
        self.seen.append((outputs["loss"].item(), metrics))
        self.peaks.append(reprise.peak_bytes())


def fit(
    module: Any,
    folder: pathlib.Path,
    budget: Any,
    mode: Any = "auto",
    rows: int = ROWS,
    **options: Any,
) -> dict[str, Any]:
    from reprise.integrations.lightning import Budget

    generator = torch.Generator().manual_seed(5)
    x = torch.randn(5 * rows, 32, generator=generator)
    y = torch.randint(0, 10, (5 * rows,), generator=generator)
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), rows)
    notes, callbacks = Notes(), list(options.pop("callbacks", []))
    ours = None if budget is None else Budget(budget, mode=mode, time_limit=2)
    path = options.pop("ckpt_path", None)
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_model_summary=False,
        enable_checkpointing=False, default_root_dir=folder,
        callbacks=[*callbacks, notes, *([] if ours is None else [ours])],
        **({"max_epochs": 2, "enable_progress_bar": False} | options),
    )  # fmt: skip
    torch.manual_seed(3)
    trainer.fit(module, data, data, ckpt_path=path)
    trainer.save_checkpoint(folder / "last.ckpt")
    return {
        "numbers": (notes.seen, {n: v.item() for n, v in trainer.callback_metrics.items()}),
        "tensors": [t.detach().clone() for t in module.state_dict().values()],
        "peak": max(notes.peaks),
        "report": None if ours is None else ours.report(),
    }


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    tensors = zip(a["tensors"], b["tensors"], strict=True)
    return a["numbers"] == b["numbers"] and all(torch.equal(x, y) for x, y in tensors)


@pytest.mark.parametrize("mode", ["auto", "follow", "graph", "chain", "online"])
def test_each_mode_has_the_bits_of_the_plain_trainer(mode: str, tmp_path: pathlib.Path) -> None:
    """With accumulation, clipping, logs, validation and a schedule."""
    options: dict[str, Any] = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}
    expected = fit(Net(), tmp_path, None, **options)
    assert {"train_step", "train_epoch", "double", "val"} <= expected["numbers"][1].keys()
    found = fit(Net(), tmp_path, 2**30, mode, **options)
    assert same(found, expected)
    assert found["report"].mode == ("follow" if mode == "auto" else mode)
    assert found["report"].steps == 10


@pytest.mark.parametrize("mode", ["auto", "graph"])
def test_a_step_that_logs_is_captured_once(mode: str, tmp_path: pathlib.Path) -> None:
    """With a progress bar and a running mean, which the trainer writes down at each batch."""

    class Logs(Net):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss_of(batch)
            self.log("loss", loss, prog_bar=True, on_step=True, on_epoch=True)
            return loss

    options: dict[str, Any] = {"enable_progress_bar": True, "log_every_n_steps": 1}
    expected = fit(Logs(), tmp_path, None, **options)
    found = fit(Logs(), tmp_path, 2**30, mode, **options)
    assert same(found, expected)
    works = [one.work for one in found["report"].overheads]
    assert works == ["choose a mode", "capture", "plan"]


SHARES = [("follow", 70), ("graph", 50), ("chain", 50), ("online", 70)]


@pytest.mark.parametrize(("mode", "share"), SHARES)
def test_half_of_the_memory_above_parameters(mode: str, share: int, tmp_path: pathlib.Path) -> None:
    reprise.install_cpu_allocator()
    gc.collect()  # Trainers of earlier tests are circles of references.
    held = reprise.live_bytes()
    expected = fit(Net(), tmp_path, None, rows=1024, max_epochs=1)
    gc.collect()
    # The optimizer's state is twice the parameters, and the data set stays in memory.
    held += 3 * sum(t.nbytes for t in expected["tensors"]) + 5 * 1024 * (32 * 4 + 8)
    budget = held + (expected["peak"] - held) * share // 100
    found = fit(Net(), tmp_path, budget, mode, rows=1024, max_epochs=1)
    assert same(found, expected)
    assert found["report"].measured_peak_bytes <= budget


@pytest.mark.parametrize("mode", ["auto", "graph"])
def test_mixed_precision(mode: str, tmp_path: pathlib.Path) -> None:
    expected = fit(Net(), tmp_path, None, precision="bf16-mixed")
    assert same(fit(Net(), tmp_path, 2**30, mode, precision="bf16-mixed"), expected)


def test_resuming(tmp_path: pathlib.Path) -> None:
    (tmp_path / "plain").mkdir()
    expected = {}
    for budget in (None, 2**30):
        fit(Net(), tmp_path / "plain", budget, max_epochs=1)
        path = tmp_path / "plain" / "last.ckpt"
        expected[budget] = fit(Net(), tmp_path / "plain", budget, max_epochs=2, ckpt_path=path)
    assert same(expected[2**30], expected[None])


class ByIndex(Net):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss_of(batch) * (1 + batch_idx)


class ByStep(Net):
    def factor(self) -> float:
        return 1.0 / (1 + self.global_step)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss_of(batch) * self.factor()


class WithHook(Net):
    def on_after_backward(self) -> None:
        self.calls += 1


@pytest.mark.parametrize("mode", ["auto", "online"])
@pytest.mark.parametrize("kind", [ByIndex, ByStep, WithHook])
def test_steps_that_have_to_run_as_python(kind: Any, mode: str, tmp_path: pathlib.Path) -> None:
    plain, ours = kind(), kind()
    expected = fit(plain, tmp_path, None)
    found = fit(ours, tmp_path, 2**30, mode)
    assert same(found, expected)
    assert found["report"].mode == ("follow" if mode == "auto" else mode)
    if mode == "auto":
        assert found["report"].predicted_peak_bytes > 0  # The last step had a plan.
    assert ours.calls == plain.calls
    with pytest.raises(reprise.InputError, match="as Python"):
        fit(kind(), tmp_path, 2**30, "graph")


def test_metrics_are_updated_once(tmp_path: pathlib.Path) -> None:
    torchmetrics = pytest.importorskip("torchmetrics")

    class Counting(Net):
        def __init__(self) -> None:
            super().__init__()
            self.mean = torchmetrics.MeanMetric()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            loss = self.loss_of(batch)
            self.mean.update(loss.detach())
            return loss

    plain, ours = Counting(), Counting()
    expected, found = fit(plain, tmp_path, None), fit(ours, tmp_path, 2**30)
    assert same(found, expected)
    assert torch.equal(ours.mean.compute(), plain.mean.compute())


def test_refusals(tmp_path: pathlib.Path) -> None:
    from reprise.integrations.lightning import Budget

    class ByHand(Net):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

    with pytest.raises(reprise.InputError, match="by hand"):
        fit(ByHand(), tmp_path, "80%")
    with pytest.raises(reprise.InputError, match="no step"):
        Budget("80%").report()
    with pytest.raises(reprise.BudgetError, match="smallest"):
        fit(Net(), tmp_path, "50 KiB", "graph")


def test_the_page(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = torch.utils.data.TensorDataset(torch.randn(16, 32), torch.randint(0, 10, (16,)))
    data = torch.utils.data.DataLoader(rows, 8)
    names = {"lightning": lightning, "module": Net(), "data": data}
    run_snippets("docs/integrations/lightning.md", names)
