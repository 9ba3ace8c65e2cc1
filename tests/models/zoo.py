"""Forty models of Transformers, timm and torchvision, small and with random weights.

Nothing is downloaded. Each model comes with a batch, and its training step is the one that the
library has in mind: its own loss where it has one, else the mean of the squares of its outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

VOCABULARY, LENGTH, BATCH = 256, 64, 16


@dataclass
class Case:
    """A model with a batch.

    Attributes:
        model: The model, in training mode.
        inputs: The tensors of the batch by the names of the model's arguments, or in order.
        options: The other arguments of the model.
    """

    model: nn.Module
    inputs: dict[str, torch.Tensor] | list[torch.Tensor]
    options: dict[str, Any] = field(default_factory=dict)

    def tensors(self) -> list[torch.Tensor]:
        return list(self.inputs.values() if isinstance(self.inputs, dict) else self.inputs)

    def step(self) -> Callable[..., torch.Tensor]:
        """Returns the training step. It takes the tensors of the batch and returns the loss."""
        model, options = self.model, self.options
        names = list(self.inputs) if isinstance(self.inputs, dict) else None

        def train(*tensors: torch.Tensor) -> torch.Tensor:
            if names is None:
                output = model(*tensors, **options)
            else:
                output = model(**dict(zip(names, tensors, strict=True)), **options)
            loss = getattr(output, "loss", None)
            if loss is None:
                loss = torch.stack([t.float().square().mean() for t in tensors_in(output)]).sum()
            loss.backward()
            return loss.detach()

        return train


def tensors_in(output: Any) -> Iterable[torch.Tensor]:
    """Yields the tensors of what a model returns that have a gradient."""
    if isinstance(output, torch.Tensor):
        if output.requires_grad:
            yield output
    elif isinstance(output, dict):
        for item in output.values():
            yield from tensors_in(item)
    elif isinstance(output, (list, tuple)):
        for item in output:
            yield from tensors_in(item)


@dataclass(frozen=True)
class Model:
    """A row of the table.

    Attributes:
        library: "transformers", "timm" or "torchvision".
        make: Makes the model and its batch.
        shows: What the model has that not every model has, such as a number that it reads.
    """

    library: str
    make: Callable[[], Case]
    shows: str = ""


MODELS: dict[str, Model] = {}


# --- Transformers -------------------------------------------------------------------------------

SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 384,
    "max_position_embeddings": 128,
}
# The special tokens of many configurations lie outside of a small vocabulary.
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DECODER = SMALL | TOKENS | {"use_cache": False}
GROUPED = DECODER | {"num_key_value_heads": 2, "head_dim": 32}


def ids(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (BATCH, length))


def of_text(kind: str, options: dict[str, Any], labels: str = "labels") -> Case:
    """Returns a language model, or an encoder of texts, with texts that fill the batch."""
    import transformers

    model = getattr(transformers, kind)
    config = model.config_class(**options)
    text = ids()
    inputs = {"input_ids": text, "attention_mask": torch.ones_like(text)}
    if labels:
        inputs[labels] = text.clone()
    return Case(model(config), inputs)


def text_model(name: str, kind: str, shows: str = "", **options: Any) -> None:
    MODELS[name] = Model("transformers", lambda: of_text(kind, options), shows)


text_model("GPT-2", "GPT2LMHeadModel", n_embd=128, n_layer=4, n_head=4, n_positions=128,
           vocab_size=VOCABULARY, use_cache=False, **TOKENS)  # fmt: skip
text_model("Llama", "LlamaForCausalLM", **GROUPED)
text_model("Mistral", "MistralForCausalLM", **GROUPED)
text_model("Qwen3", "Qwen3ForCausalLM", **GROUPED)
text_model("Gemma 3", "Gemma3ForCausalLM", **GROUPED)
text_model("Phi-3", "Phi3ForCausalLM", **(DECODER | {"num_key_value_heads": 2}))
text_model("OLMo 2", "Olmo2ForCausalLM", **(DECODER | {"num_key_value_heads": 2}))
text_model("Mixtral", "MixtralForCausalLM", "experts", **GROUPED, num_local_experts=4)
text_model("Qwen2-MoE", "Qwen2MoeForCausalLM", "experts", **DECODER, num_key_value_heads=2,
           num_experts=4, num_experts_per_tok=2, moe_intermediate_size=128,
           shared_expert_intermediate_size=256)  # fmt: skip
text_model("Mamba", "MambaForCausalLM", "a scan", vocab_size=VOCABULARY, hidden_size=64,
           num_hidden_layers=2, state_size=8, use_cache=False, **TOKENS)  # fmt: skip
text_model("Bloom", "BloomForCausalLM", vocab_size=VOCABULARY, hidden_size=128, n_layer=4,
           n_head=4, use_cache=False, **TOKENS)  # fmt: skip
text_model("OPT", "OPTForCausalLM", "LayerDrop", vocab_size=VOCABULARY, hidden_size=128,
           num_hidden_layers=4, num_attention_heads=4, ffn_dim=384, word_embed_proj_dim=128,
           max_position_embeddings=128, use_cache=False, layerdrop=0.0, **TOKENS)  # fmt: skip
text_model("BERT", "BertForMaskedLM", **SMALL, **TOKENS)
text_model("ALBERT", "AlbertForMaskedLM", "layers that share weights", **SMALL, **TOKENS,
           embedding_size=64)  # fmt: skip
text_model("ELECTRA", "ElectraForMaskedLM", **SMALL, **TOKENS, embedding_size=64)
text_model("XLNet", "XLNetLMHeadModel", vocab_size=VOCABULARY, d_model=128, n_layer=4, n_head=4,
           d_inner=384, **TOKENS)  # fmt: skip
text_model("DeBERTa-v2", "DebertaV2ForMaskedLM", "relative positions", **SMALL, **TOKENS,
           relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=32)  # fmt: skip
text_model("T5", "T5ForConditionalGeneration", "encoder and decoder", vocab_size=VOCABULARY,
           d_model=128, d_kv=32, d_ff=384, num_layers=3, num_heads=4, use_cache=False,
           decoder_start_token_id=0, pad_token_id=0, eos_token_id=2)  # fmt: skip
text_model("BART", "BartForConditionalGeneration", "reads `rand([]) < p` (LayerDrop)",
           vocab_size=VOCABULARY, d_model=128, encoder_layers=3, decoder_layers=3,
           encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=384,
           decoder_ffn_dim=384, max_position_embeddings=128, use_cache=False,
           decoder_start_token_id=2, forced_eos_token_id=2, **TOKENS)  # fmt: skip


def transformers_model(name: str, shows: str = "") -> Callable[[Callable[[], Case]], None]:
    def note(make: Callable[[], Case]) -> None:
        MODELS[name] = Model("transformers", make, shows)

    return note


@transformers_model("Whisper")
def whisper() -> Case:
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=VOCABULARY, d_model=128, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=384,
        decoder_ffn_dim=384, num_mel_bins=40, max_source_positions=100, max_target_positions=64,
        decoder_start_token_id=1, use_cache=False, **TOKENS,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config)
    sound = torch.randn(BATCH, 40, 200)
    return Case(model, {"input_features": sound, "labels": ids(32)})


@transformers_model("wav2vec 2.0", "a leaf of its own (`requires_grad` in the step)")
def wav2vec2() -> Case:
    import transformers

    config = transformers.Wav2Vec2Config(
        vocab_size=32, hidden_size=128, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=384, conv_dim=(64, 64, 64), conv_stride=(5, 4, 4), conv_kernel=(10, 8, 4),
        num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4, feat_extract_norm="layer",
        mask_time_prob=0.0, layerdrop=0.0, pad_token_id=0, num_labels=10,
    )  # fmt: skip
    model = transformers.Wav2Vec2ForSequenceClassification(config)
    return Case(model, {"input_values": torch.randn(BATCH, 8000), "labels": classes(BATCH)})


@transformers_model("CLIP")
def clip() -> Case:
    import transformers

    text = SMALL | TOKENS | {"num_hidden_layers": 2}
    image = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
             "intermediate_size": 384, "image_size": 64, "patch_size": 8}  # fmt: skip
    config = transformers.CLIPConfig(text_config=text, vision_config=image, projection_dim=64)
    words = ids(32)
    words[:, -1] = 2
    inputs = {"input_ids": words, "pixel_values": torch.randn(BATCH, 3, 64, 64)}
    return Case(transformers.CLIPModel(config), inputs, {"return_loss": True})


@transformers_model("ViT")
def vit() -> Case:
    import transformers

    config = transformers.ViTConfig(
        hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=384,
        image_size=64, patch_size=8, num_labels=10,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    return Case(model, {"pixel_values": images(64), "labels": classes()})


@transformers_model("SegFormer")
def segformer() -> Case:
    import transformers

    config = transformers.SegformerConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 64, 96], decoder_hidden_size=64, num_labels=8,
    )  # fmt: skip
    model = transformers.SegformerForSemanticSegmentation(config)
    return Case(model, {"pixel_values": images(96, 4), "labels": torch.randint(0, 8, (4, 96, 96))})


@transformers_model("DETR", "reads conditions on masks")
def detr() -> Case:
    import transformers

    backbone = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32, 64, 96], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage4"],
    )  # fmt: skip
    config = transformers.DetrConfig(
        use_timm_backbone=False, backbone_config=backbone, backbone=None, d_model=64,
        encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=128, decoder_ffn_dim=128, num_queries=16, num_labels=8,
    )  # fmt: skip
    pixels = images(128, 4)
    mask = torch.ones(4, 128, 128, dtype=torch.long)
    mask[:, :, 112:] = 0
    return Case(transformers.DetrModel(config), {"pixel_values": pixels, "pixel_mask": mask})


@transformers_model("Perceiver", "reads the largest position")
def perceiver() -> Case:
    import transformers

    config = transformers.PerceiverConfig(
        num_latents=32, d_latents=128, d_model=96, num_blocks=1, num_self_attends_per_block=3,
        num_self_attention_heads=4, num_cross_attention_heads=4, vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH, qk_channels=64, v_channels=128,
    )  # fmt: skip
    text = ids()
    inputs = {"inputs": text, "attention_mask": torch.ones_like(text), "labels": text.clone()}
    return Case(transformers.PerceiverForMaskedLM(config), inputs)


# --- Models of images ---------------------------------------------------------------------------


def images(size: int, batch: int = BATCH) -> torch.Tensor:
    return torch.randn(batch, 3, size, size)


def classes(batch: int = BATCH) -> torch.Tensor:
    return torch.randint(0, 10, (batch,))


class Classifier(nn.Module):
    """A model of images with the usual loss behind it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(x), y)


def timm_model(name: str, size: int, batch: int, shows: str = "", **options: Any) -> None:
    def make() -> Case:
        import timm

        model = timm.create_model(name, pretrained=False, num_classes=10, **options)
        return Case(Classifier(model), [images(size, batch), classes(batch)])

    MODELS[name] = Model("timm", make, shows)


def torchvision_model(name: str, size: int, batch: int, shows: str = "", **options: Any) -> None:
    def make() -> Case:
        import torchvision

        model = getattr(torchvision.models, name)(weights=None, num_classes=10, **options)
        return Case(Classifier(model), [images(size, batch), classes(batch)])

    MODELS[name] = Model("torchvision", make, shows)


timm_model("convnext_atto", 64, 8)
timm_model("efficientnet_b0", 64, 8, "stochastic depth", drop_path_rate=0.1)
timm_model("nf_resnet26", 64, 8, "weights made anew in each step")
timm_model("dla34", 64, 8)
timm_model("resnest14d", 64, 8)
timm_model("xcit_nano_12_p16_224", 64, 8, img_size=64)
timm_model("cait_xxs24_224", 64, 16, img_size=64, depth=6)
timm_model("levit_128s", 64, 32, img_size=64)
timm_model("mobilenetv4_conv_small", 96, 8)
torchvision_model("resnet18", 64, 8)
torchvision_model("mobilenet_v3_small", 96, 16)
torchvision_model("densenet121", 64, 4)
torchvision_model("swin_t", 64, 2, "stochastic depth")
torchvision_model("regnet_y_400mf", 64, 8)
