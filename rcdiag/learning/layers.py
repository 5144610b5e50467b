"""Which part of the model a parameter belongs to."""

from __future__ import annotations

import re

from rcdiag.learning.load import Policy

LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")


def layer_groups(policy: Policy) -> dict[str, str]:
    """For each trained parameter: embedding, layer N, norm or head.

    `norm` is what stands after the layers. A head that shares the embedding's weight is counted
    under `embedding`: one parameter, one gradient.
    """
    modules = {id(m): name for name, m in policy.model.named_modules()}
    embedding = modules[id(policy.model.get_input_embeddings())]
    head = modules[id(policy.head)]

    def group(name: str) -> str:
        if name.startswith(embedding + "."):
            return "embedding"
        if name.startswith(head + "."):
            return "head"
        layer = LAYER.search(name)
        return "norm" if layer is None else f"layer {layer[1]}"

    return {name: group(name) for name in policy.parameters}
