"""Division of a model's decoder layers over several GPUs, by the sizes of their weights.

The sizes are read from the headers of the safetensors files, so a dry run shows the plan without
torch. Everything before the decoder layers goes to the first GPU; the last norm and the head go to
the last. A head that shares the embedding's weights goes where the embedding is.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rcdiag.engines.checkpoint import check_checkpoint, read_config, text_config
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError

VALUE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes of a weight, by policy dtype
# A tensor of a numbered layer; the first number is the layer's, a later one an expert's.
LAYER = re.compile(r"(?P<list>.+?)\.(?P<number>\d+)\.")
HEADS = ("lm_head", "embed_out")
LARGEST_HEADER = 100 << 20  # bytes: the limit of the safetensors library
HINT = "leave gpus= out, or score it with vllm and tensor_parallel_size="


@dataclass(frozen=True)
class Share:
    """The decoder layers of one GPU, and the bytes of all weights on it."""

    layers: range  # decoder layers
    weights: int  # bytes, including weights outside of the decoder layers


@dataclass(frozen=True)
class WeightSizes:
    """Bytes of a checkpoint's weights in a policy's dtype."""

    before: int  # embedding and all else outside of the decoder layers, but for `after`
    layers: list[int]
    after: int  # last norm, and the head if it is not tied


def shares(spec: PolicySpec) -> list[Share]:
    """Cut a policy's decoder layers into one run for each GPU, balanced by bytes of weights."""
    gpus = int(spec.options["gpus"])
    sizes = weight_sizes(spec)
    count = len(sizes.layers)
    if not 1 <= gpus <= count:
        raise RcdiagError(
            f"policy `{spec.name}`: gpus={gpus}: {spec.model} has {count} decoder layers",
            hint=f"a GPU holds whole layers: give {count} at most",
        )
    up_to = sizes.before + np.concatenate([[0], np.cumsum(sizes.layers)])  # bytes before a layer
    wanted = (up_to[-1] + sizes.after) * np.arange(1, gpus) / gpus
    cuts = np.abs(up_to - wanted[:, None]).argmin(axis=1)
    runs = [range(first, end) for first, end in pairwise([0, *cuts.tolist(), count])]
    held = [sum(sizes.layers[run.start : run.stop]) for run in runs]
    held[0] += sizes.before
    held[-1] += sizes.after
    return [Share(run, weights) for run, weights in zip(runs, held, strict=True)]


def layout(spec: PolicySpec) -> str:
    """Describe the weights on each GPU for a dry run; "" if one GPU holds the whole model."""
    if spec.options.get("gpus", 1) == 1:
        return ""
    held = []
    for gpu, share in enumerate(shares(spec)):
        run = share.layers
        layers = f"layers {run[0]} to {run[-1]}" if len(run) > 1 else f"layer {run[0]}"
        size, unit = share.weights / 2**20, "MiB"
        if size >= 1024:
            size, unit = size / 1024, "GiB"
        held.append(f"GPU {gpu}: {layers if run else 'no layer'}, {size:,.1f} {unit}")
    return f"weights by GPU: {'; '.join(held)}"


def device_map(model: Any, runs: Sequence[range], devices: Sequence[Any]) -> dict[str, Any]:
    """Return the device of every module, in the form of `from_pretrained(device_map=)`.

    `model` may be on torch's meta device; `runs` are the decoder layers of each device.
    """
    count = sum(len(run) for run in runs)
    layers = _decoder_layers(model, count)
    parts = layers.split(".")
    around = {".".join(parts[:depth]) for depth in range(len(parts))}  # ancestors of the layer list
    config = model.config.get_text_config()
    tied = bool(getattr(config, "tie_word_embeddings", False))
    placed = {
        name: devices[-1] if _comes_after(name, layers, tied=tied) else devices[0]
        for name, _ in model.named_modules()
        if name not in {*around, layers} and name.rpartition(".")[0] in around
    }
    for run, device in zip(runs, devices, strict=True):
        placed |= {f"{layers}.{layer}": device for layer in run}
    return placed


def _decoder_layers(model: Any, count: int) -> str:
    """Return the name of the list of decoder layers: the largest list of `count` modules."""
    from torch.nn import ModuleList

    lists: dict[str, int] = {
        name: sum(weight.numel() for weight in module.parameters())
        for name, module in model.named_modules()
        if isinstance(module, ModuleList) and len(module) == count
    }
    if not lists:
        raise RcdiagError(f"gpus=: {type(model).__name__} has no list of {count} layers", HINT)
    return max(lists, key=lambda name: lists[name])


def _comes_after(name: str, layers: str, *, tied: bool) -> bool:
    """Tell whether a module or tensor outside of the decoder layers is used after them.

    `layers` is the name of the layer list, such as `model.layers`; the last norm is its sibling
    `model.norm`.
    """
    beside = rf"{re.escape(layers.rpartition('.')[0])}\.(\w*norm\w*|ln_f)(\.weight|\.bias)?"
    return bool(re.fullmatch(beside, name)) or (name.startswith(HEADS) and not tied)


def weight_sizes(spec: PolicySpec) -> WeightSizes:
    """Add up the weights of a policy's checkpoint by decoder layer; refuse one without layers."""
    folder = check_checkpoint(spec.model)
    count = int(text_config(folder).get("num_hidden_layers", 0))
    tied = bool(read_config(folder).get("tie_word_embeddings", False))
    outside: dict[str, int] = {}
    lists: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for name, values in _tensors(folder):
        size = values * VALUE_BYTES[spec.dtype]
        if (layer := LAYER.match(name)) is not None:
            lists[layer["list"]][int(layer["number"])] += size
        elif not (tied and name.startswith(HEADS)):  # a tied head is loaded only once
            outside[name] = size
    # Image-text models have a second list of layers. Layers beyond `count` serve multi-token
    # prediction, and transformers does not load them.
    whole = [name for name, sizes in lists.items() if count and set(range(count)) <= set(sizes)]
    if not whole:
        raise RcdiagError(
            f"policy `{spec.name}`: gpus={spec.options['gpus']}: the weights of {spec.model} have "
            f"no {count} numbered layers",
            HINT,
        )
    decoder = max(whole, key=lambda name: sum(lists[name].values()))
    others = sum(sum(sizes.values()) for name, sizes in lists.items() if name != decoder)
    after = sum(size for name, size in outside.items() if _comes_after(name, decoder, tied=tied))
    return WeightSizes(
        before=others + sum(outside.values()) - after,
        layers=[lists[decoder][number] for number in range(count)],
        after=after,
    )


def _tensors(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield name and number of values of each tensor of a checkpoint, from its files' headers.

    A safetensors file begins with the length of its header in 8 bytes, followed by the header as
    JSON (https://huggingface.co/docs/safetensors).
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise RcdiagError(
            f"model {folder}: gpus= reads the sizes of layers off *.safetensors files, and there "
            "are none",
            hint="load the model and save it again with save_pretrained",
        )
    for file in files:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            content = stream.read(min(length, LARGEST_HEADER))
        try:
            header = json.loads(content)
            header.pop("__metadata__", None)
            yield from [(name, math.prod(tensor["shape"])) for name, tensor in header.items()]
        except (ValueError, AttributeError, KeyError, TypeError) as error:
            raise RcdiagError(f"{file}: no header of safetensors", "copy it again") from error
