"""The policy: its tokenizer, its model and the 16-bit storage rule."""

import random
from pathlib import Path

import torch
from problems import EOS, PAD, SPECIAL, draw_problem
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY = 1024


def make_tokenizer(seed: int, modes: dict[str, float]) -> PreTrainedTokenizerFast:
    """Train the byte-level BPE tokenizer; digits never merge, so that sums can be learned."""
    rng = random.Random(seed)
    problems = [draw_problem(rng, modes) for _ in range(4000)]
    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Digits(individual_digits=True)
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pieces])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    # Special tokens are left out of the text: the trainer would learn pieces of them.
    text = " ".join(p.prompt + " " + p.solution for p in problems)
    for token in SPECIAL:
        text = text.replace(token, " ")
    tokenizer.train_from_iterator(text.split("."), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS,
        pad_token=PAD,
        model_max_length=1024,
        additional_special_tokens=SPECIAL[2:],
        clean_up_tokenization_spaces=False,
    )


def shared_settings(tokenizer: PreTrainedTokenizerFast) -> dict:
    """Return what the configurations of the policy and of the mixture of experts share."""
    return {
        "vocab_size": len(tokenizer),
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "attn_implementation": "sdpa",
    }


def make_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """Make the untrained policy in float32."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        **shared_settings(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=5,
        num_attention_heads=6,
    )
    return Qwen3ForCausalLM(config).float()


def weights(model: PreTrainedModel) -> list[tuple[str, torch.Tensor]]:
    """List the named weights in bfloat16 as a checkpoint holds them (the tied head once)."""
    return [(name, p.detach().to(torch.bfloat16)) for name, p in model.named_parameters()]


def round_to_bf16(parameters, masters=None) -> None:
    """Set the parameters to their masters (or themselves) rounded to bfloat16 values.

    They stay stored and computed in float32: a 16-bit checkpoint then loses nothing.
    """
    parameters = list(parameters)
    with torch.no_grad():
        for parameter, master in zip(parameters, masters or parameters, strict=True):
            parameter.copy_(master.to(torch.bfloat16))


def save_policy(model: PreTrainedModel, tokenizer, folder: Path) -> None:
    """Write a complete bfloat16 model folder; the values must already be bfloat16 values."""
    state = dict(weights(model))
    config = type(model.config).from_dict(model.config.to_dict())
    twin = type(model)(config).to(torch.bfloat16)
    twin.load_state_dict(state, strict=False)
    twin.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    twin.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
