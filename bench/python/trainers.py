"""Compares training loops of other libraries inside a budget with the same loops without one.

Each loop trains with the library's default settings, but without checkpoints of its own: plain, and
inside half of the memory above the parameters: parameters, and half of what plain training takes
beside them. Parameters and logs are
compared bit by bit. Times are of whole steps, with data, optimizer, logs and callbacks.
"""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import os
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import reprise
import torch
from stored_page import Page, arguments, steady_memory
from torch import nn

FIRST, SETTLED = 10, 20
WORDS = [a + b for a, b in itertools.product("bcdfghklmnprst", "aeiou")]


class Run(NamedTuple):
    """What a run of a loop has left, and what its steps took: seconds and peaks in bytes."""

    left: Any
    seconds: list[float]
    peaks: list[int]
    parameters: int
    report: Any = None


class Clock:
    """Measures steps. `begin()` and `end()` are called around each.

    The steps of loops that are compared take turns, so that what else the machine does slows both.
    """

    turn: Any = None  # a lock that the processes of a comparison share

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.peaks: list[int] = []

    def begin(self) -> None:
        Clock.turn.acquire()
        reprise.reset_peak()
        self._begun = time.perf_counter()

    def end(self) -> None:
        self.seconds.append(time.perf_counter() - self._begun)
        self.peaks.append(reprise.peak_bytes())
        Clock.turn.release()


def take_turns(turn: Any) -> None:
    Clock.turn = turn


class Sizes(NamedTuple):
    """The sizes of the language models, and of their texts in words."""

    layers: int
    width: int
    words: int
    batch: int


def text(words: int, seed: int) -> str:
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(words))


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<s>", "</s>", "<unk>"]
    ids = {word: i for i, word in enumerate([*special, *WORDS])}
    plain = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="<pad>", bos_token="<s>", eos_token="</s>",
        unk_token="<unk>",
    )  # fmt: skip


def language_model(sizes: Sizes) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(WORDS) + 4,
        hidden_size=sizes.width,
        intermediate_size=4 * sizes.width,
        num_hidden_layers=sizes.layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4 * sizes.words,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config)


def hugging_face(name: str, sizes: Sizes, steps: int, budget: int | None) -> Run:
    """Trains with the Trainer of Transformers, or with one of TRL."""
    import transformers
    from datasets import Dataset
    from reprise.integrations.transformers import within

    torch.manual_seed(0)
    model, fast, rows = language_model(sizes), tokenizer(), steps * sizes.batch
    # Texts differ in length, and so do the batches.
    lengths = [random.Random(i).randint(sizes.words * 3 // 4, sizes.words) for i in range(rows)]
    if name in ("transformers", "grpo", "reward"):
        lengths = [sizes.words] * rows
    texts = [text(length, i) for i, length in enumerate(lengths)]
    settings: dict[str, Any] = {
        "output_dir": tempfile.mkdtemp(),
        "max_steps": steps,
        "per_device_train_batch_size": sizes.batch,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": 1,
    }
    if name != "transformers":  # TRL's default. The plan decides what runs again.
        settings["gradient_checkpointing"] = False
    options: dict[str, Any] = {"processing_class": fast}
    if name == "transformers":
        ids = fast(texts)["input_ids"]
        data = Dataset.from_dict({"input_ids": ids, "labels": ids})
        kind, arguments = transformers.Trainer, transformers.TrainingArguments
    elif name == "sft":
        from trl import SFTConfig, SFTTrainer

        data = Dataset.from_dict({"text": texts})
        kind, arguments = SFTTrainer, SFTConfig
    elif name == "dpo":
        from trl import DPOConfig, DPOTrainer

        others = [text(length, rows + i) for i, length in enumerate(lengths)]
        prompts = [text(4, 2 * rows + i) for i in range(rows)]
        data = Dataset.from_dict({"prompt": prompts, "chosen": texts, "rejected": others})
        kind, arguments = DPOTrainer, DPOConfig
        options["ref_model"] = copy.deepcopy(model)
    elif name == "grpo":
        from trl import GRPOConfig, GRPOTrainer

        data = Dataset.from_dict({"prompt": texts})
        kind, arguments = GRPOTrainer, GRPOConfig
        settings |= {"num_generations": sizes.batch, "max_completion_length": 8}
        options["reward_funcs"] = lambda completions, **_: [
            float(len(set(one.split()))) for one in completions
        ]
    clock = Clock()

    class Timed(transformers.TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            clock.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.end()

    trainer = kind(
        model, args=arguments(**settings), train_dataset=data, callbacks=[Timed()], **options
    )
    if budget is not None:
        within(trainer, budget=budget, mode="follow")
    trainer.train()
    times = ("time", "second", "runtime", "memory", "flos")
    logs = [
        {key: value for key, value in log.items() if not any(part in key for part in times)}
        for log in trainer.state.log_history
    ]
    left = logs, [p.detach().numpy().tobytes() for p in model.parameters()]
    parameters = sum(p.nbytes for p in model.parameters())
    report = trainer.in_budget.report() if budget is not None else None
    return Run(left, clock.seconds, clock.peaks, parameters, report)


def with_lightning(_name: str, sizes: Sizes, steps: int, budget: int | None) -> Run:
    """Trains a language model with Lightning, which logs losses and a metric."""
    import lightning
    import torchmetrics
    from reprise.integrations.lightning import Budget

    vocabulary, clock = len(WORDS) + 4, Clock()

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.model = language_model(sizes)
            self.right = torchmetrics.classification.MulticlassAccuracy(vocabulary, average="micro")

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            logits = self.model(input_ids=batch).logits[:, :-1].flatten(0, 1)
            wanted = batch[:, 1:].flatten()
            loss = nn.functional.cross_entropy(logits, wanted)
            self.right(logits.detach(), wanted)
            self.log("loss", loss, on_epoch=True)
            self.log("right", self.right)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    logs: list[Any] = []

    class Timed(lightning.Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            clock.begin()

        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            clock.end()
            logs.append({name: value.item() for name, value in trainer.callback_metrics.items()})

    module = Module()
    draw = torch.Generator().manual_seed(1)
    data = [
        torch.randint(4, vocabulary, (sizes.batch, sizes.words), generator=draw)
        for _ in range(steps)
    ]
    callbacks: list[Any] = [Timed()]
    if budget is not None:
        callbacks.append(Budget(budget, mode="follow"))
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks,
    )  # fmt: skip
    trainer.fit(module, torch.utils.data.DataLoader(data, batch_size=None))  # type: ignore[arg-type]
    left = logs, [p.detach().numpy().tobytes() for p in module.parameters()]
    parameters = sum(p.nbytes for p in module.parameters())
    report = callbacks[-1].report() if budget is not None else None
    return Run(left, clock.seconds, clock.peaks, parameters, report)


LOOPS: dict[str, Callable[[str, Sizes, int, int | None], Run]] = {
    "transformers": hugging_face,
    "sft": hugging_face,
    "dpo": hugging_face,
    "grpo": hugging_face,
    "lightning": with_lightning,
}


def train(name: str, sizes: Sizes, steps: int, budget: int | None) -> Run:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    steady_memory()
    return LOOPS[name](name, sizes, steps, budget)


def apart(*runs: tuple[Any, ...]) -> list[Run]:
    """Trains each in a process of its own, because libraries keep models of earlier loops."""
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(len(runs), initializer=take_turns, initargs=(spawn.Lock(),)) as pool:
        made = [pool.apply_async(train, run) for run in runs]
        while not all(one.ready() for one in made):
            for one in made:
                if one.ready():
                    one.get()  # It raises what the loop has raised. The other one would wait.
            time.sleep(0.5)
        return [one.get() for one in made]


def compare(name: str, small: bool, steps: int, say: Callable[[str], None]) -> None:
    sizes = Sizes(2, 32, 16, 2) if small else Sizes(6, 256, 256, 8)
    if not small and name in ("sft", "dpo", "grpo"):
        # A buffer of TRL's head has 16,384 columns, whatever the vocabulary.
        sizes = Sizes(8, 256, 192, 8 if name == "sft" else 4)
    (before,) = apart((name, sizes, min(FIRST, steps), None))
    peak = max(before.peaks)
    budget = peak if small else before.parameters + (peak - before.parameters) // 2
    plain, ours = apart((name, sizes, steps, None), (name, sizes, steps, budget))
    settled = slice(min(SETTLED, steps - 1), None)
    seconds = statistics.median(plain.seconds[settled])
    pairs = zip(ours.seconds[settled], plain.seconds[settled], strict=True)
    later = statistics.median(now / then for now, then in pairs)
    first = [sum(run.seconds[:FIRST]) for run in (plain, ours)]
    over = max(ours.peaks) - budget
    row = [
        name, f"{peak / 1e6:.0f} MB, {seconds * 1e3:.0f} ms", f"{budget / peak:.2f}",
        "equal" if ours.left == plain.left else "**differ**",
        "held" if over <= 0 else f"**{over / 1e6:.1f} MB over**",
        f"{first[1] / first[0]:.2f} ({first[0]:.1f} s, {first[1]:.1f} s)", f"{later:.2f}",
    ]  # fmt: skip
    say(f"| {' | '.join(row)} |")


PROGRAM = "PYTHONPATH=build/release/python .venv-integrations/bin/python \\\n      {}"
ABOUT = f"""\
`make test-integrations` installs the libraries.
Settings are the libraries' defaults, but TRL's gradient checkpointing is off in both.
The budget is half of the memory above the parameters, as a share of plain training's
peak. Parameters and all logs are compared with those of the plain loop. The first steps
are {FIRST}, together, over the plain loop's; both times are in brackets. The last column
is the median of the steps behind step {SETTLED}, each over the same step of the plain loop.
Both loops run at the same time, and their steps take turns."""


def main() -> None:
    parser = arguments(__doc__, LOOPS, "loop", small=True)
    parser.add_argument("--steps", type=int, default=28)
    # At half of the memory one operation of DPO's head does not fit beside what stays.
    parser.set_defaults(loops=[name for name in LOOPS if name != "dpo"])
    options = parser.parse_args()
    link = "[Follow mode](../follow.md) says more."
    say = Page(options.output, "Loops of other libraries inside a budget", link, PROGRAM, ABOUT)
    say("\n| loop | plain | budget | bits | the budget is | first steps | later steps |")
    say("|---|---|--:|---|---|--:|--:|")
    for name in options.loops:
        compare(name, options.small, options.steps, say)


if __name__ == "__main__":
    main()
