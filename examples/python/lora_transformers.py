"""LoRA adapters of a Transformers model are trained inside a budget, by the library's own Trainer.

Two lines differ from the plain script: the import of Trainer, and `budget=`. The model is tiny and
has random weights, so that nothing is downloaded. For a model of your own, take
`AutoModelForCausalLM.from_pretrained(...)` and a data set of yours. `--budget none` trains with the
plain Trainer; losses are the same to the last bit.

Usage: python lora_transformers.py [--budget "10 MiB"|none] [--steps 8]
"""

from __future__ import annotations

import argparse
import sys
import tempfile

import reprise
import torch

try:
    import peft
    import transformers
    from reprise.integrations.transformers import Trainer  # changed
except ImportError as error:
    sys.exit(f"{error.name} is not installed: pip install transformers accelerate peft")

WORDS, LENGTH, BATCH = 256, 64, 8


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    whole = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=WORDS,
            hidden_size=64,
            intermediate_size=192,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=2,
            use_cache=False,
        )
    )
    adapters = peft.LoraConfig(
        task_type="CAUSAL_LM", r=8, lora_dropout=0.05, target_modules=["q_proj", "v_proj"]
    )
    return peft.get_peft_model(whole, adapters)


def samples(number: int) -> list[dict[str, torch.Tensor]]:
    """Returns texts that count upwards, from random starts, with random steps."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(number):
        start, stride = torch.randint(1, WORDS, (2,), generator=generator).tolist()
        ids = (start + stride * torch.arange(LENGTH)) % WORDS
        mask = torch.ones(LENGTH, dtype=torch.long)
        found.append({"input_ids": ids, "labels": ids.clone(), "attention_mask": mask})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", default="10 MiB", help="a size, or none for the plain Trainer")
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    reprise.install_cpu_allocator()  # Then it knows the memory of the model, too.

    with tempfile.TemporaryDirectory() as folder:
        args = transformers.TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=BATCH,
            gradient_accumulation_steps=2,
            learning_rate=1e-2,
            lr_scheduler_type="cosine",
            max_steps=options.steps,
            max_grad_norm=1.0,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        adapted, data = model(), samples(128)
        if options.budget == "none":
            trainer = transformers.Trainer(model=adapted, args=args, train_dataset=data)
        else:
            trainer = Trainer(
                model=adapted,
                args=args,
                train_dataset=data,
                budget=options.budget,  # changed
                time_limit="2s",
            )
        trainer.train()
    for entry in trainer.state.log_history[: options.steps]:
        print(f"step {entry['step']}  loss {entry['loss']!r}  norm {entry['grad_norm']!r}")
    if options.budget != "none":
        report = trainer.in_budget.report()
        print(f"{report.mode} mode; {report}")
    trained = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    print(f"{trained} of {sum(p.numel() for p in adapted.parameters())} parameters are trained")


if __name__ == "__main__":
    main()
