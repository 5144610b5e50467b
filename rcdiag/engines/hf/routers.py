"""The routers of a mixture of experts: record the experts they choose, or give them experts.

A router computes a logit for each expert from a token's state, chooses the `top_k` largest and
weights the experts' outputs by gates. With experts given, as another engine recorded them, the
gates are still computed from the model's own logits at those experts, normalised as in the model.
This is rollout routing replay, R3 (arXiv 2510.11370).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rcdiag.errors import RcdiagError
from rcdiag.table.trajectories import Ragged

# In place of an expert's number: not recorded, so the model's router chooses.
OWN = -1


class Routers:
    """The routers of a loaded model in the order of its layers, with hooks that record experts.

    A model without routers, or with gates that rcdiag does not know, is refused.
    """

    def __init__(self, model: Any) -> None:
        routers = routers_of(model)
        self.layers = list(routers)  # numbers of the layers with a router
        self._routers = list(routers.values())
        config = model.config.get_text_config()
        self.layers_in_model = int(config.num_hidden_layers)
        if not self._routers:
            raise _unknown(config.model_type, "has no router that rcdiag knows")
        self.top_k = int(self._routers[0].top_k)
        self.experts = int(self._routers[0].weight.shape[0])
        self.given: Tensor | None = None  # [layers with a router, tokens, top_k], or OWN
        self.chosen: list[Tensor] = [torch.empty(0)] * len(self._routers)  # [tokens, top_k] each
        self._check_gates(model, config.model_type)
        for index, router in enumerate(self._routers):
            router.register_forward_hook(self._hook(index))

    def _hook(self, index: int) -> Any:
        def hook(router: Any, inputs: Any, made: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            logits, gates, experts = made
            if self.given is not None:
                given = self.given[index].to(logits.device)
                known = given[:, :1] != OWN
                experts = torch.where(known, given, experts)
                forced = gates_of(router, logits, experts).to(gates.dtype)
                gates = torch.where(known, forced, gates)
            self.chosen[index] = experts
            return logits, gates, experts

        return hook

    @torch.inference_mode()
    def _check_gates(self, model: Any, kind: str) -> None:
        """Refuse a model whose routers compute other gates than `gates_of` for the same experts."""
        made: list[tuple[Any, tuple[Tensor, ...]]] = []
        hooks = [
            router.register_forward_hook(lambda one, inputs, output: made.append((one, output)))
            for router in self._routers
        ]
        ids = torch.arange(8, device=model.device)[None] % model.config.get_text_config().vocab_size
        model.base_model(input_ids=ids, use_cache=False)
        for hook in hooks:
            hook.remove()
        for router, (logits, gates, experts) in made:
            ours = gates_of(router, logits, experts).to(gates.dtype).float()
            if not torch.allclose(ours, gates.float(), rtol=1e-2, atol=1e-6):
                raise _unknown(kind, "weights its experts in a way that rcdiag does not know")

    def recorded(self, lists: Ragged, place: Callable[[int], str]) -> NDArray[np.int64]:
        """Return recorded experts as an array, [tokens, layers with a router, top_k].

        `lists` has for each token the experts of all layers in order, `top_k` each, or only those
        of layers with a router; an empty list becomes `OWN`. Lists of another length, and experts
        that this model's routers cannot choose, are refused; `place` names a token's row and column
        for the error.
        """
        sizes = lists.lengths
        widths = (len(self.layers) * self.top_k, self.layers_in_model * self.top_k)
        wrong = (sizes != 0) & ~np.isin(sizes, widths)
        if wrong.any():
            token = int(np.argmax(wrong))
            both = " or ".join(str(width) for width in dict.fromkeys(widths))
            raise RcdiagError(
                f"{place(token)} has {sizes[token]} experts, and the model has {both} "
                f"({len(self.layers)} layers with a router, {self.top_k} experts each)",
                hint="is it the model that sampled? The column holds, for each token, the experts "
                "of the first layer, then those of the second, and so on",
            )
        made = np.full((len(sizes), len(self.layers), self.top_k), OWN)
        for width, layers in zip(widths, (range(len(self.layers)), self.layers), strict=True):
            own = np.flatnonzero(sizes == width)
            places = lists.offsets[own][:, None] + np.arange(width)
            made[own] = lists.values[places].reshape(len(own), width // self.top_k, self.top_k)[
                :, list(layers)
            ]
        self._check_experts(made, sizes > 0, place)
        return made

    def _check_experts(
        self, made: NDArray[np.int64], known: NDArray[np.bool_], place: Callable[[int], str]
    ) -> None:
        """Refuse expert numbers that the model lacks, and repeated experts of a token and layer."""
        twice = (np.diff(np.sort(made, axis=2), axis=2) == 0).any(2)
        wrong = ((made < 0) | (made >= self.experts)).any(2) | twice  # [response tokens, layers]
        wrong &= known[:, None]
        if wrong.any():
            token = int(np.argmax(wrong.any(1)))
            layer = int(np.argmax(wrong[token]))
            raise RcdiagError(
                f"{place(token)} has the experts {made[token, layer].tolist()} in layer "
                f"{self.layers[layer]}; a router chooses {self.top_k} different ones of "
                f"{self.experts}",
                hint="write an empty list where the experts of a token were not recorded",
            )

    def give(self, experts: NDArray[np.int64] | None) -> None:
        """Use these experts in the following forward passes, [rows, width, layers, top_k]."""
        if experts is None:
            self.given = None
            return
        flat = experts.reshape(-1, len(self.layers), self.top_k)
        device = self._routers[0].weight.device
        self.given = torch.from_numpy(flat).permute(1, 0, 2).contiguous().to(device)

    def last_chosen(self, places: Tensor) -> NDArray[np.uint16]:
        """Return the experts of the last forward pass, [places, layers * top_k].

        `places` index its tokens, counted row after row. Experts of a layer are in the router's
        order; a layer without a router has 0, as in vLLM and SGLang.
        """
        made = np.zeros((len(places), self.layers_in_model, self.top_k), np.uint16)
        for layer, experts in zip(self.layers, self.chosen, strict=True):
            made[:, layer] = experts[places.to(experts.device)].cpu().numpy()
        return made.reshape(len(places), -1)


def routers_of(model: Any) -> dict[int, Any]:
    """Return a model's routers by layer; empty if it has none of a known kind."""
    return {
        int(name.split("layers.")[1].split(".")[0]): module
        for name, module in model.named_modules()
        if type(module).__name__.lower().endswith("topkrouter")
    }


def gates_of(router: Any, logits: Tensor, experts: Tensor) -> Tensor:
    """Return the gates of experts from a router's logits, [tokens, top_k].

    Mixtral, Qwen2-MoE to Qwen3.5-MoE, OLMoE and gpt-oss take a softmax over all experts, divided
    by its sum over the chosen ones unless `norm_topk_prob` is off. DeepSeek-V3 and GLM-4.5 take a
    sigmoid for each expert and a scale; the bias that they choose experts with is not in the gates.
    """
    if hasattr(router, "e_score_correction_bias"):
        gates = logits.sigmoid().gather(1, experts)
    else:
        gates = torch.softmax(logits, dim=-1, dtype=torch.float).gather(1, experts)
    if getattr(router, "norm_topk_prob", True):
        gates = gates / gates.sum(dim=-1, keepdim=True)
    return gates * float(getattr(router, "routed_scaling_factor", 1.0))


def _unknown(kind: str, why: str) -> RcdiagError:
    return RcdiagError(
        f"architecture `{kind}` {why}: its experts can be neither given nor recorded",
        hint="leave `experts` and `record_experts` out of the policy",
    )
