"""Per-sequence sketches out of the batched backward: what flows through each layer, projected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rcdiag.learning.probes import Probes


class RowsMixed(Exception):
    """A layer flattens rows and tokens into one axis, so that its taps do not know the rows."""


Collect = Callable[[Tensor, Tensor], None]  # inputs and d loss / d outputs of one call of a layer


class Tap(torch.autograd.Function):
    """Hands a layer's inputs and output gradient to `collect` in the backward; changes nothing.

    The inputs are saved as autograd saves them, so that checkpointing drops them too.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, inputs: Tensor, collect: Collect) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(inputs)
        ctx.collect = collect
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        ctx.collect(ctx.saved_tensors[0], gradient)
        return gradient, None, None


class Taps:
    """Adds up the sketches of the rows of a micro-batch while a backward runs.

    A layer's gradient is a sum over tokens, G_i = sum_t d_t x_t' for a product, so its sketch is
    sum_t (u.d_t)(v.x_t): p (in + out) multiplications per token instead of in x out. At padding
    d_t = 0, since no token that counts sees it.
    """

    def __init__(self, body: nn.Module, probes: Probes) -> None:
        self.body = body
        self.probes = probes
        self.sums = torch.zeros(0)
        self._layers = [m for m in body.modules() if self._own(m)]

    def unknown(self) -> nn.Module | None:
        """A layer that there is no tap for."""
        return next((each for each in self._layers if self._kind(each) is None), None)

    def _own(self, layer: nn.Module) -> list[nn.Parameter]:
        return [p for p in layer.parameters(recurse=False) if id(p) in self.probes.known]

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Forwards within leave their taps in the graph."""
        hooks = [layer.register_forward_hook(self._hook) for layer in self._layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def start(self, rows: int, device: torch.device) -> None:
        """Forget the last backward; the next one has this many rows."""
        self.sums = torch.zeros(rows, self.probes.settings.dims, dtype=torch.float64, device=device)

    def whole(self, gradient: Mapping[str, Tensor]) -> None:
        """The gradient of the whole micro-batch adds nothing: its rows are there already."""

    def _hook(self, layer: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        collect = self._kind(layer)
        assert collect is not None
        return Tap.apply(output, arguments[0].detach(), lambda x, d: collect(layer, x, d))

    def _kind(self, layer: nn.Module) -> Callable[[Any, Tensor, Tensor], None] | None:
        if type(layer) is nn.Linear:
            return self._linear
        if type(layer) is nn.Embedding:
            return self._embedding
        if all(p.ndim == 1 for p in self._own(layer)):
            return self._vectors
        return None

    def _add(self, parameter: Tensor, products: Tensor) -> None:
        """Products [rows, ..., probes] of one parameter."""
        if len(products) != len(self.sums):
            raise RowsMixed("a layer of this model mixes the rows of a batch")
        by_row = products.flatten(1, -2).sum(dim=1, dtype=torch.float64)
        self.sums[:, self.probes.slots(parameter)] += by_row

    def _linear(self, layer: nn.Linear, inputs: Tensor, gradient: Tensor) -> None:
        if layer.weight.requires_grad:
            left, right = self.probes.signs(layer.weight)
            # Under autocast the product takes its inputs rounded to its own precision.
            rounded = inputs.to(gradient.dtype).float()
            self._add(layer.weight, (gradient.float() @ left) * (rounded @ right))
        if layer.bias is not None and layer.bias.requires_grad:
            self._add(layer.bias, gradient.float() @ self.probes.signs(layer.bias)[0])

    def _embedding(self, layer: nn.Embedding, ids: Tensor, gradient: Tensor) -> None:
        left, right = self.probes.signs(layer.weight)
        products = left[ids] * (gradient.float() @ right)
        if layer.padding_idx is not None:  # torch gives this row of the table no gradient
            products = products * (ids != layer.padding_idx)[..., None]
        self._add(layer.weight, products)

    def _vectors(self, layer: nn.Module, inputs: Tensor, gradient: Tensor) -> None:
        """A norm or the like: its few parameters allow exact gradients of each row."""
        own = {name: p.detach() for name, p in layer.named_parameters(recurse=False)}

        def of_row(x: Tensor, d: Tensor) -> dict[str, Tensor]:
            pull = torch.func.vjp(lambda values: _forward(layer, values, x), own)[1]
            return pull(d)[0]

        for name, values in torch.func.vmap(of_row)(inputs, gradient).items():
            parameter = getattr(layer, name)
            if parameter.requires_grad:
                signs = self.probes.signs(parameter)[0]
                self._add(parameter, (values.float() @ signs)[:, None])


def _forward(layer: nn.Module, values: dict[str, Tensor], inputs: Tensor) -> Tensor:
    """The layer's own forward with other parameters, past its hooks."""
    return torch.func.functional_call(
        _Bare(layer), {f"layer.{k}": v for k, v in values.items()}, inputs
    )


class _Bare(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer.forward(inputs)
