"""Sketches of per-sequence gradients: random projections that keep inner products on average.

`Probes` defines the projection. `Taps` computes the sketches of all rows of a batch in one backward
pass. `OneRow` goes row by row, for models with kinds of layers that `Taps` does not know. Both also
add up the full gradients of the other members of a family of vectors, whose coefficients are those
of the backward pass times a factor for each row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray
from torch import Tensor, nn

from rcdiag.learning.training_settings import SketchSettings


class Probes:
    """Random signs for each parameter, the same for the same seed and model.

    The sketch of a matrix G [out, in] is s_j = u_j' G v_j / sqrt(p), j = 1..p; of a vector g it is
    s_j = u_j' g / sqrt(p); a tensor of more axes counts as a matrix [all but the last, last]. The
    signs u and v are independent. Then E[s(A).s(B)] = <A, B>, and the variance is at most that of
    Gaussian probes,
    (|A|^2 |B|^2 + <A,B>^2 + 2|A'B|^2 + 2|AB'|^2 + 2 tr(AB'AB')) / p <= 8 |A|^2 |B|^2 / p.
    Signs of different parameters are independent: sharing entries of the sketch adds noise, but no
    bias.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], settings: SketchSettings) -> None:
        self.parameters = parameters
        self.settings = settings
        # `id` of each trained parameter -> its place among them
        self.numbers = {id(p): index for index, p in enumerate(parameters.values())}
        self._signs: dict[int, tuple[Tensor, ...]] = {}

    def slots(self, parameter: Tensor) -> NDArray[np.int64]:
        """Return the entries of the sketch that a parameter adds to, [probes]."""
        first = self.numbers[id(parameter)] * self.settings.probes
        return (first + np.arange(self.settings.probes)) % self.settings.dims

    def signs(self, parameter: Tensor) -> tuple[Tensor, ...]:
        """Return a parameter's signs: [size, probes] float32 for each axis of its matrix.

        The signs of the first axis are divided by sqrt(probes).
        """
        number = self.numbers[id(parameter)]
        if number not in self._signs:
            random = np.random.default_rng([self.settings.seed, number])
            shape = _as_matrix(parameter).shape
            bits = [random.integers(0, 2, (size, self.settings.probes), np.int8) for size in shape]
            sides = [torch.from_numpy(2 * side - 1).float() for side in bits]
            sides[0] /= self.settings.probes**0.5
            self._signs[number] = tuple(side.to(parameter.device) for side in sides)
        return self._signs[number]

    def of(self, values: Mapping[str, Tensor]) -> NDArray[np.float64]:
        """Sketch a full gradient, [dims]; parameters may be missing."""
        sketch = np.zeros(self.settings.dims)
        for name, value in values.items():
            parameter = self.parameters[name]
            left, *right = (side.double() for side in self.signs(parameter))
            matrix = _as_matrix(value).double()
            product = (matrix @ right[0]) * left if right else matrix[:, None] * left
            sketch[self.slots(parameter)] += product.sum(dim=0).cpu().numpy()
        return sketch


def _as_matrix(values: Tensor) -> Tensor:
    """View a tensor of more than two axes as a matrix: fused experts are [experts x out, in]."""
    return values.flatten(0, -2) if values.ndim > 2 else values


class RowsMixed(Exception):
    """A layer merges rows and tokens into one axis, so its taps cannot separate the rows."""


Collect = Callable[[Tensor, Tensor], None]  # inputs and d loss / d outputs of one call of a layer


class Member(Struct, frozen=True):
    """A coefficient vector, given as the backward pass's vector times a factor for each row."""

    factors: Tensor  # [rows of the micro-batch] float32
    sums: Callable[[Tensor], Tensor]  # parameter -> running sum of its gradient, float32


class Tap(torch.autograd.Function):
    """Passes a layer's inputs and output gradient to `collect` in the backward pass.

    Values are unchanged. Autograd saves the inputs, so that checkpointing drops them as well.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, inputs: Tensor, collect: Collect) -> Tensor:
        ctx.save_for_backward(inputs)
        ctx.collect = collect
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.collect(ctx.saved_tensors[0], gradient)
        return gradient, None, None


class Taps:
    """Adds up the sketches of the rows of a micro-batch during a backward pass.

    The gradient of a linear layer is a sum over tokens, G_i = sum_t d_t x_t', so its sketch is
    sum_t (u.d_t)(v.x_t): p (in + out) multiplications per token instead of in x out. At padding
    d_t = 0, since no unmasked token attends to it.
    """

    def __init__(self, body: nn.Module, probes: Probes) -> None:
        self.body = body
        self.probes = probes
        self.sums = torch.zeros(0)
        self.members: Sequence[Member] = ()
        self._layers = [m for m in body.modules() if self._own(m)]

    def unknown(self) -> nn.Module | None:
        """Return a trained layer of a kind without a tap; None if all layers have one."""
        return next((layer for layer in self._layers if self._kind(layer) is None), None)

    def _own(self, layer: nn.Module) -> list[nn.Parameter]:
        return [p for p in layer.parameters(recurse=False) if id(p) in self.probes.numbers]

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Put taps into the graph of every forward pass within the `with` block."""
        hooks = [layer.register_forward_hook(self._hook) for layer in self._layers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def start(self, rows: int, device: torch.device, members: Sequence[Member] = ()) -> None:
        """Reset the sums for a backward pass with this many rows and these members."""
        self.sums = torch.zeros(rows, self.probes.settings.dims, dtype=torch.float64, device=device)
        self.members = members

    def whole(self, gradient: Mapping[str, Tensor]) -> None:
        """Ignore the gradient of the whole micro-batch, since the taps collect it by row."""

    def _hook(self, layer: nn.Module, arguments: tuple[Any, ...], output: Tensor) -> Tensor:
        collect = self._kind(layer)
        assert collect is not None
        apply: Callable[..., Tensor] = Tap.apply
        return apply(output, arguments[0].detach(), lambda x, d: collect(layer, x, d))

    def _kind(self, layer: nn.Module) -> Callable[[Any, Tensor, Tensor], None] | None:
        if type(layer) is nn.Linear:
            return self._linear
        if type(layer) is nn.Embedding:
            return self._embedding
        if all(p.ndim == 1 for p in self._own(layer)):
            return self._vectors
        return None

    def _add(self, parameter: Tensor, products: Tensor) -> None:
        """Add the products [rows, ..., probes] of one parameter to the rows' sketches."""
        if len(products) != len(self.sums):
            raise RowsMixed("a layer of this model mixes the rows of a batch")
        by_row = products.flatten(1, -2).sum(dim=1, dtype=torch.float64)
        self.sums[:, self.probes.slots(parameter)] += by_row

    def _linear(self, layer: nn.Linear, inputs: Tensor, gradient: Tensor) -> None:
        if layer.weight.requires_grad:
            left, right = self.probes.signs(layer.weight)
            # Under autocast the product rounds its inputs to the lower precision.
            rounded = inputs.to(gradient.dtype).float()
            self._add(layer.weight, (gradient.float() @ left) * (rounded @ right))
            self._add_products(layer.weight, inputs.to(gradient.dtype), gradient)
        if layer.bias is not None and layer.bias.requires_grad:
            self._add(layer.bias, gradient.float() @ self.probes.signs(layer.bias)[0])
            for member, scaled in self._scaled(gradient):
                member.sums(layer.bias).add_(scaled.float().flatten(0, -2).sum(dim=0))

    def _add_products(self, weight: Tensor, inputs: Tensor, gradient: Tensor) -> None:
        """Add sum_t factor d_t x_t' to each member's gradient of a weight [out, in]."""
        # Scale whichever of the two has fewer values.
        of_inputs = inputs.shape[-1] < gradient.shape[-1]
        for member, scaled in self._scaled(inputs if of_inputs else gradient):
            x, d = (scaled, gradient) if of_inputs else (inputs, scaled)
            x, d, total = x.flatten(0, -2), d.flatten(0, -2).T, member.sums(weight)
            if d.dtype == total.dtype:
                total.addmm_(d, x)
            else:
                total.add_(d @ x)

    def _embedding(self, layer: nn.Embedding, ids: Tensor, gradient: Tensor) -> None:
        left, right = self.probes.signs(layer.weight)
        products = left[ids] * (gradient.float() @ right)
        if layer.padding_idx is not None:  # torch computes no gradient for this row of the table
            counts = (ids != layer.padding_idx)[..., None]
            products, gradient = products * counts, gradient * counts
        self._add(layer.weight, products)
        for member, scaled in self._scaled(gradient):
            total = member.sums(layer.weight)
            total.index_add_(0, ids.flatten(), scaled.float().flatten(0, -2))

    def _vectors(self, layer: nn.Module, inputs: Tensor, gradient: Tensor) -> None:
        """Sketch each row's exact gradient, which is cheap for the few parameters of a norm."""
        bare = _Bare(layer)
        own = {f"layer.{k}": p.detach() for k, p in layer.named_parameters(recurse=False)}

        def of_row(x: Tensor, d: Tensor) -> dict[str, Tensor]:
            run = partial(torch.func.functional_call, bare, args=(x,))
            gradient: dict[str, Tensor] = torch.func.vjp(run, own)[1](d)[0]
            return gradient

        for name, values in torch.func.vmap(of_row)(inputs, gradient).items():
            parameter = bare.get_parameter(name)
            if parameter.requires_grad:
                signs = self.probes.signs(parameter)[0]
                self._add(parameter, (values.float() @ signs)[:, None])
                for member in self.members:
                    member.sums(parameter).add_(member.factors @ values.float())

    def _scaled(self, values: Tensor) -> Iterator[tuple[Member, Tensor]]:
        """Yield each member with the values [rows, ...] times its factors."""
        for member in self.members:
            factors = member.factors.view(-1, *[1] * (values.ndim - 1))
            yield member, values * factors.to(values.dtype)


class _Bare(nn.Module):
    """A layer's own forward pass, without its hooks."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.layer.forward(inputs)
        return output


class Sketcher(Protocol):
    """Adds up the sketches of a micro-batch's rows: `Taps` or `OneRow`."""

    probes: Probes
    sums: Tensor  # [rows, dims] after a backward pass

    def attached(self) -> contextlib.AbstractContextManager[None]: ...
    def start(self, rows: int, device: torch.device, members: Sequence[Member] = ()) -> None: ...
    def whole(self, gradient: Mapping[str, Tensor]) -> None: ...


class OneRow:
    """Sketches of micro-batches of one row, whose gradient is the row's own.

    For models with layers that have no tap (Conv1D, fused experts); slower, since rows are not
    batched.
    """

    def __init__(self, probes: Probes) -> None:
        self.probes = probes
        self.sums = torch.zeros(0)
        self.members: Sequence[Member] = ()

    def attached(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def start(self, rows: int, device: torch.device, members: Sequence[Member] = ()) -> None:
        assert rows == 1
        self.sums = torch.zeros(1, self.probes.settings.dims, dtype=torch.float64, device=device)
        self.members = members

    def whole(self, gradient: Mapping[str, Tensor]) -> None:
        """Add the gradient of the decoder for the one row."""
        for member in self.members:
            for name, value in gradient.items():
                member.sums(self.probes.parameters[name]).add_(value * member.factors[0])
        self.sums[0] += torch.from_numpy(self.probes.of(gradient)).to(self.sums.device)


def sketcher(body: nn.Module, probes: Probes) -> Taps | OneRow:
    """Return taps, which batch rows, if every trained layer has one; otherwise `OneRow`."""
    taps = Taps(body, probes)
    return taps if taps.unknown() is None else OneRow(probes)
