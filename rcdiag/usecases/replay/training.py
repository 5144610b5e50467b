"""The user's choices for the update of a real model, checked, as settings of `learning`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct, field
from msgspec.structs import replace

from rcdiag.engines.notation import parse_policy
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError, one_of, setting
from rcdiag.learning.training_settings import LoraSettings, OptimizerSettings, SketchSettings

if TYPE_CHECKING:  # this import loads transformers, which a replay without a model does not need
    from rcdiag.usecases.replay.fresh_samples import Reward

OPTIMIZERS = ("sgd", "adamw")
REFERENCES = ("seq_is", "fresh", "none")
LEAST = {"split": 2}  # smallest value of a count; 1 for all others
COUNTS = ("epochs", "minibatches", "steps", "split", "lora", "batch_tokens", "evaluate")


class Training(Struct, frozen=True, kw_only=True):
    """The model that is updated, how it is updated, and what its gradient is compared with."""

    model: str | None  # checkpoint folder
    seed: int = 0
    precision: str = "float32"
    reference: str = "seq_is"
    optimizer: str = "adamw"
    lr: float = 1e-6
    weight_decay: float = 0.0
    momentum: float = 0.0
    max_grad_norm: float = 1.0  # 0: gradients are not clipped
    epochs: int = 1
    minibatches: int = 1
    steps: int = 1
    split: int | None = None
    lora: int | None = None  # rank
    checkpointing: bool = False
    batch_tokens: int | None = None
    reward: str | Reward | None = None
    evaluate: int | None = None  # number of fresh samples before and after the step
    save: Path | None = None
    sketch: SketchSettings = field(default_factory=SketchSettings)

    @property
    def spec(self) -> PolicySpec:
        """Return the model as a policy that an engine loads."""
        return parse_policy(f"model=hf:{self.precision}", self.model)

    @property
    def optimizer_settings(self) -> OptimizerSettings:
        """Return the settings of the optimizer."""
        return OptimizerSettings(
            name=self.optimizer,
            learning_rate=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            max_grad_norm=self.max_grad_norm or None,
        )

    @property
    def lora_settings(self) -> LoraSettings | None:
        """Return the settings of the adapters that are trained instead of the weights, or None."""
        return None if self.lora is None else LoraSettings(rank=self.lora)

    def checked(self, presets: int) -> Training | None:
        """Check the settings for `presets` presets, and load the reward function.

        None without a model; then the settings have no effect, and giving one is refused.
        """
        if self.model is None:
            defaults = Training(model=None)
            for name in self.__struct_fields__:
                if name in ("seed", "sketch"):  # the seed has other uses; sketch is no option
                    continue
                if getattr(self, name) != getattr(defaults, name):
                    raise RcdiagError(
                        f"{setting(name)} needs a model", hint=setting("model", "CHECKPOINT")
                    )
            return None
        if self.save is not None and presets != 1:
            raise RcdiagError(
                f"{setting('save')} with {presets} presets",
                hint=f"choose the one to save: {setting('presets', 'NAME', '--preset')}",
            )
        if self.evaluate and self.reward is None:
            raise RcdiagError(
                f"{setting('evaluate')} needs {setting('reward')}",
                hint=setting("reward", "FILE.py:FUNCTION"),
            )
        for name in COUNTS:
            value, least = getattr(self, name), LEAST.get(name, 1)
            if value is not None and value < least:
                raise RcdiagError(f"{setting(name, value)}: too small", hint=f"at least {least}")
        one_of("reference", self.reference, REFERENCES)
        one_of("optimizer", self.optimizer, OPTIMIZERS)
        if isinstance(self.reward, str):
            return replace(self, reward=load_reward(self.reward))
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as the result document holds them."""
        return {
            "checkpoint": self.spec.model,
            "dtype": self.spec.dtype,
            "options": self.spec.options,
            "lora_rank": self.lora,
            "checkpointing": self.checkpointing,
            "reference": self.reference,
            "epochs": self.epochs,
            "minibatches": self.minibatches,
            "optimizer": self.optimizer,
            "learning_rate": self.lr,
            "max_grad_norm": self.max_grad_norm or None,
            "weight_decay": self.weight_decay,
        }


def load_reward(text: str) -> Reward:
    """Load the function of FILE.py:FUNCTION; the file may import modules from its own folder."""
    path, _, name = text.rpartition(":")
    file = Path(path)
    if not name or not file.is_file():
        raise RcdiagError(
            f"{setting('reward', text)} is not FILE.py:FUNCTION",
            hint=f"for example {setting('reward', 'sample_data/reward.py:exact')}",
        )
    spec = importlib.util.spec_from_file_location("rcdiag_reward", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
        function = getattr(module, name)
        if not callable(function):
            raise TypeError(f"`{name}` is not a function")
        return cast("Reward", function)
    except Exception as error:
        raise RcdiagError(
            f"{setting('reward', text)}: cannot be loaded ({type(error).__name__}: {error})",
            hint="the file must run by itself and define the function",
        ) from error
    finally:
        sys.path.pop(0)
