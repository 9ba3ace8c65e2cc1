"""TRL's trainers in their default configuration: parameters and all their logs are equal."""

from __future__ import annotations

import copy
import gc
import pathlib
import random
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
trl = pytest.importorskip("trl", reason="TRL is not installed: make test-integrations")
import reprise  # noqa: E402
from datasets import Dataset  # noqa: E402
from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: E402
from transformers import (  # noqa: E402
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

pytestmark = [
    pytest.mark.usefixtures("runtime"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]

WORDS = "abcdefghijklmnopqrstuvwxyz"
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
ROWS = 16
# Keys with these parts are times and memory, which differ from run to run.
UNLIKE = ("time", "per_second", "memory", "flos")


def tokens_of_words() -> Any:
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    names = ("pad_token", "bos_token", "eos_token", "unk_token")
    return PreTrainedTokenizerFast(tokenizer_object=words, **dict(zip(names, SPECIAL, strict=True)))


def llama(kind: Any = LlamaForCausalLM, **more: Any) -> Any:
    config = LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, **more,
    )  # fmt: skip
    return kind(config)


def texts(seed: int, words: int = 6) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=words)) for _ in range(ROWS)]


def pairs() -> dict[str, list[str]]:
    return {"chosen": texts(1), "rejected": texts(2)}


def reward_of(completions: list[str], **_others: Any) -> list[float]:
    return [float(len(set(text.split()))) for text in completions]


def trainer_of(kind: str, folder: pathlib.Path) -> Any:
    torch.manual_seed(0)
    common: dict[str, Any] = {
        "output_dir": str(folder), "max_steps": 4, "per_device_train_batch_size": 2,
        "logging_steps": 1, "report_to": [], "use_cpu": True, "save_strategy": "no",
        "disable_tqdm": True, "seed": 1,
    }  # fmt: skip
    data: dict[str, list[str]]
    more: dict[str, Any] = {}
    model = llama()
    if kind == "sft":
        make, arguments, data = trl.SFTTrainer, trl.SFTConfig(**common), {"text": texts(1)}
    elif kind == "reward":
        model = llama(LlamaForSequenceClassification, num_labels=1)
        make, arguments, data = trl.RewardTrainer, trl.RewardConfig(**common), pairs()
    elif kind == "dpo":
        make, arguments, data = trl.DPOTrainer, trl.DPOConfig(**common), pairs()
        data["prompt"] = texts(3)
        more["ref_model"] = copy.deepcopy(model)
    else:
        limits = {"num_generations": 2, "max_completion_length": 6}
        make, arguments = trl.GRPOTrainer, trl.GRPOConfig(**limits, **common)
        data, more["reward_funcs"] = {"prompt": texts(3)}, reward_of
    return make(
        model,
        args=arguments,
        train_dataset=Dataset.from_dict(data),
        processing_class=tokens_of_words(),
        **more,
    )


def logs_of(trainer: Any) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in entry.items() if not any(part in key for part in UNLIKE)}
        for entry in trainer.state.log_history
    ]


@pytest.mark.parametrize("kind", ["sft", "reward", "dpo", "grpo"])
def test_parameters_and_logs_are_those_of_the_plain_trainer(
    kind: str, tmp_path: pathlib.Path
) -> None:
    from reprise.integrations.transformers import within

    reprise.install_cpu_allocator()
    plain = trainer_of(kind, tmp_path)
    gc.collect()
    level = reprise.live_bytes()
    reprise.reset_peak()
    plain.train()
    activations = reprise.peak_bytes() - level
    parameters = [p.detach().clone() for p in plain.model.parameters()]
    logs = logs_of(plain)
    del plain
    gc.collect()
    trainer = trainer_of(kind, tmp_path)
    # One buffer of TRL's own kernels is most of the peak of such a tiny model. So the budget has
    # room for twice the plain step.
    budget = reprise.live_bytes() + 2 * activations
    with pytest.warns(RuntimeWarning, match="the plan decides what runs again"):
        within(trainer, budget=budget, time_limit=0.5)
    trainer.train()
    assert logs_of(trainer) == logs
    assert all(map(torch.equal, parameters, trainer.model.parameters()))
    report = trainer.in_budget.report()
    assert report.steps == 4 and report.measured_peak_bytes <= budget
