"""The Trainer of Transformers inside a budget leaves the bits of the plain Trainer.

The models are tiny and have random weights; nothing is downloaded.
"""

from __future__ import annotations

import gc
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import reprise
import torch
from conftest import SOURCE, run_snippets

transformers = pytest.importorskip(
    "transformers", reason="needs transformers: make test-integrations"
)
pytest.importorskip("accelerate", reason="needs accelerate: make test-integrations")

VOCABULARY, LENGTH, BATCH = 128, 32, 8


def llama(**options: Any) -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=96,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            attention_dropout=0.1,
            use_cache=False,
            **options,
        )
    )


def texts(number: int, lengths: tuple[int, ...] = (LENGTH,)) -> list[dict[str, torch.Tensor]]:
    """Returns samples. Each batch of BATCH samples has one length."""
    generator = torch.Generator().manual_seed(7)
    samples = []
    for i in range(number):
        length = lengths[i // BATCH % len(lengths)]
        ids = torch.randint(0, VOCABULARY, (length,), generator=generator)
        mask = torch.ones(length, dtype=torch.long)
        samples.append({"input_ids": ids, "labels": ids.clone(), "attention_mask": mask})
    return samples


def trainer_of(
    model: Any,
    folder: pathlib.Path,
    budget: Any,
    mode: Any = "auto",
    data: Any = None,
    **options: Any,
) -> Any:
    """Returns a plain trainer if there is no budget, and ours otherwise."""
    from reprise.integrations.transformers import Trainer

    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH,
        report_to=[],
        logging_steps=1,
        use_cpu=True,
        disable_tqdm=True,
        **({"max_steps": 3, "save_strategy": "no"} | options),
    )
    parts = {
        "model": model,
        "args": arguments,
        "train_dataset": texts(64) if data is None else data,
        "eval_dataset": texts(BATCH),
    }
    if budget is None:
        return transformers.Trainer(**parts)
    return Trainer(**parts, budget=budget, mode=mode, time_limit=2)


def results(trainer: Any, **train: Any) -> dict[str, Any]:
    """Trains, and returns all that two runs are compared by."""
    trainer.train(**train)
    times = ("runtime", "per_second", "_mem_")
    return {
        "log": [
            {name: value for name, value in entry.items() if not any(t in name for t in times)}
            for entry in trainer.state.log_history
        ],
        "parameters": [p.detach().clone() for p in trainer.model.parameters()],
        "gradients": [p.grad is None for p in trainer.model.parameters()],
        "random": torch.get_rng_state(),
    }


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def half_of_activations(model: Any, plain_peak: int) -> int:
    """Returns a budget: the parameters, and half of the rest of plain training's peak."""
    parameters = sum(p.nbytes for p in model.parameters())
    return parameters + (plain_peak - parameters) // 2


def plain_peak(trainer: Any) -> int:
    """Trains, and returns the largest peak of a forward and backward pass."""
    peaks: list[int] = []
    original = trainer.training_step

    def measured(*arguments: Any, **keywords: Any) -> Any:
        reprise.reset_peak()
        result = original(*arguments, **keywords)
        peaks.append(reprise.peak_bytes())
        return result

    trainer.training_step = measured
    trainer.train()
    return max(peaks)


@pytest.mark.parametrize("mode", ["auto", "follow", "graph", "chain", "online"])
def test_each_mode_has_the_bits_of_the_plain_trainer(mode: str, tmp_path: pathlib.Path) -> None:
    """With accumulation, clipping by the global norm, a schedule and evaluation."""
    options = {
        "gradient_accumulation_steps": 2,
        "max_grad_norm": 0.5,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 1,
        "eval_strategy": "steps",
        "eval_steps": 2,
    }
    expected = results(trainer_of(llama(), tmp_path, None, **options))
    trainer = trainer_of(llama(), tmp_path, 2**30, mode, **options)
    assert same(results(trainer), expected)
    report = trainer.in_budget.report()
    assert report.mode == ("follow" if mode == "auto" else mode)
    assert report.steps == 6
    assert all(entry["loss"] > 0 for entry in expected["log"] if "loss" in entry)


@pytest.mark.parametrize("mode", ["follow", "graph", "chain", "online"])
def test_half_of_the_memory_above_parameters(mode: str, tmp_path: pathlib.Path) -> None:
    reprise.install_cpu_allocator()
    data = texts(4 * BATCH, (128,))
    options = {"optim": "sgd", "data": data}
    plain = trainer_of(llama(), tmp_path, None, **options)
    expected = results(plain)
    del plain
    measured = trainer_of(llama(), tmp_path, None, **options)
    budget = half_of_activations(measured.model, plain_peak(measured))
    del measured
    trainer = trainer_of(llama(), tmp_path, budget, mode, **options)
    assert same(results(trainer), expected)
    report = trainer.in_budget.report()
    assert report.mode == mode
    assert 0 < report.measured_peak_bytes <= budget


@pytest.mark.parametrize("mode", ["follow", "graph", "online"])
def test_mixed_precision(mode: str, tmp_path: pathlib.Path) -> None:
    expected = results(trainer_of(llama(), tmp_path, None, bf16=True))
    assert same(results(trainer_of(llama(), tmp_path, 2**30, mode, bf16=True)), expected)


def test_saving_and_resuming(tmp_path: pathlib.Path) -> None:
    steady = {"lr_scheduler_type": "constant"}
    expected = results(trainer_of(llama(), tmp_path / "plain", None, max_steps=4, **steady))
    saved: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, **steady}
    results(trainer_of(llama(), tmp_path / "run", "95%", max_steps=2, **saved))
    resumed = trainer_of(llama(), tmp_path / "run", 2**30, max_steps=4, **saved)
    found = results(resumed, resume_from_checkpoint=True)
    assert same(found["parameters"], expected["parameters"])
    assert [entry.get("loss") for entry in found["log"]][2:4] == [
        entry.get("loss") for entry in expected["log"]
    ][2:4]


def test_low_rank_adapters_beside_frozen_weights(tmp_path: pathlib.Path) -> None:
    peft = pytest.importorskip("peft", reason="needs peft: make test-integrations")

    def model() -> Any:
        torch.manual_seed(0)
        options = peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=4, lora_dropout=0.1)
        return peft.get_peft_model(llama(), options)

    expected = results(trainer_of(model(), tmp_path, None))
    for mode in ("follow", "graph", "chain"):
        trainer = trainer_of(model(), tmp_path, 2**30, mode)
        assert same(results(trainer), expected), mode
        assert trainer.in_budget.report().mode == mode


def test_the_example(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("peft", reason="needs peft: make test-integrations")
    lines = []
    for budget in ("none", "10 MiB"):
        done = subprocess.run(
            [
                sys.executable,
                SOURCE / "examples" / "python" / "lora_transformers.py",
                "--steps",
                "2",
                "--budget",
                budget,
            ],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(pathlib.Path(reprise.__file__).parents[1])},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        lines.append([line for line in done.stdout.splitlines() if "norm " in line])
    assert len(lines[0]) == 2 and lines[0] == lines[1]
    assert "budget 10.00 MiB" in done.stdout


def test_lengths_that_change(tmp_path: pathlib.Path) -> None:
    data = texts(6 * BATCH, (16, 24))
    options = {"data": data, "max_steps": 6, "train_sampling_strategy": "sequential"}
    expected = results(trainer_of(llama(), tmp_path, None, **options))
    trainer = trainer_of(llama(), tmp_path, 2**30, **options)
    assert same(results(trainer), expected)
    assert trainer.in_budget.report().kinds == 2


def test_a_trainer_of_another_class(tmp_path: pathlib.Path) -> None:
    """The user's class has a loss of its own. The last accumulation of an epoch is shorter."""
    from reprise.integrations.transformers import within

    plain_trainer: Any = transformers.Trainer

    class Smooth(plain_trainer):
        model_accepts_loss_kwargs = False

        def compute_loss(self, model: Any, inputs: Any, **_: Any) -> Any:
            labels = inputs.pop("labels")
            logits = model(**inputs).logits
            return torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1
            )

    def trainer() -> Any:
        plain = trainer_of(
            llama(), tmp_path, None, gradient_accumulation_steps=2, data=texts(3 * BATCH)
        )
        return Smooth(model=plain.model, args=plain.args, train_dataset=plain.train_dataset)

    expected = results(trainer())
    found = within(trainer(), budget=2**30, time_limit=2)
    assert same(results(found), expected)
    assert found.in_budget.report().kinds == 2  # 2 batches, and 1 at the end of the epoch


@pytest.mark.parametrize("mode", ["auto", "graph"])
@pytest.mark.parametrize("name", ["gpt2", "bert", "qwen3", "mixtral", "t5", "vit"])
def test_other_models(name: str, mode: str, tmp_path: pathlib.Path) -> None:
    t = transformers
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    vocabulary = {"vocab_size": VOCABULARY}

    def model() -> Any:
        torch.manual_seed(0)
        if name == "gpt2":
            return t.GPT2LMHeadModel(t.GPT2Config(n_embd=32, n_layer=2, n_head=4, **vocabulary))
        if name == "bert":
            config = t.BertConfig(intermediate_size=64, **small, **vocabulary)
            return t.BertForMaskedLM(config)
        if name == "qwen3":
            options = {"num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 64}
            return t.Qwen3ForCausalLM(t.Qwen3Config(**options, **small, **vocabulary))
        if name == "mixtral":  # Its experts get as many rows as the data say.
            options = {"num_key_value_heads": 2, "num_local_experts": 4, "intermediate_size": 64}
            return t.MixtralForCausalLM(
                t.MixtralConfig(output_router_logits=True, **options, **small, **vocabulary)
            )
        if name == "t5":
            config = t.T5Config(
                d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                decoder_start_token_id=0, **vocabulary,
            )  # fmt: skip
            return t.T5ForConditionalGeneration(config)
        config = t.ViTConfig(image_size=16, patch_size=4, intermediate_size=64, **small)
        return t.ViTForImageClassification(config)

    data: Any = texts(4 * BATCH)
    if name == "vit":
        generator = torch.Generator().manual_seed(1)
        data = [
            {"pixel_values": torch.randn(3, 16, 16, generator=generator), "labels": i % 2}
            for i in range(4 * BATCH)
        ]
    expected = results(trainer_of(model(), tmp_path, None, data=data))
    trainer = trainer_of(model(), tmp_path, 2**30, mode, data=data)
    assert same(results(trainer), expected)
    report = trainer.in_budget.report()
    assert report.mode == ("follow" if mode == "auto" else mode)
    works = [one.work for one in report.overheads]
    assert works.count("choose a mode") == works.count("capture") == 1
    assert works.count("plan") <= 2


def test_a_budget_that_is_too_small(tmp_path: pathlib.Path) -> None:
    trainer = trainer_of(llama(), tmp_path, "100 KiB")
    before = [p.detach().clone() for p in trainer.model.parameters()]
    with pytest.raises(reprise.BudgetError, match="smallest") as raised:
        trainer.train()
    assert raised.value.requested > 100 * 1024
    assert same([p.detach() for p in trainer.model.parameters()], before)


def test_gradient_checkpointing_is_switched_off(tmp_path: pathlib.Path) -> None:
    """TRL's trainers have it on by default. It changes no bits."""
    on: dict[str, Any] = {"gradient_checkpointing": True}
    expected = results(trainer_of(llama(), tmp_path, None, **on))
    gc.collect()  # Trainers of earlier tests are circles of references, and a share counts them.
    with pytest.warns(RuntimeWarning, match="the plan decides what runs again"):
        trainer = trainer_of(llama(), tmp_path, "80%", **on)
    assert same(results(trainer), expected)
    assert trainer.in_budget.report().mode == "follow"


def test_refusals(tmp_path: pathlib.Path) -> None:
    from reprise.integrations.transformers import within

    trainer = trainer_of(llama(), tmp_path, "80%")
    with pytest.raises(reprise.InputError, match="already"):
        within(trainer, budget="80%")
    with pytest.raises(reprise.InputError, match="has run no step"):
        trainer.in_budget.report()
    with pytest.raises(reprise.InputError, match="budget"):
        trainer_of(llama(), tmp_path, "plenty").train()


def test_the_page(tmp_path: pathlib.Path) -> None:
    plain = trainer_of(llama(), tmp_path, None, max_steps=1)
    run_snippets(
        "docs/integrations/transformers.md",
        {"model": plain.model, "args": plain.args, "data": plain.train_dataset},
    )
