"""What a user can choose of a replayed update: its loss, and the training of a real model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from rcdiag.engines.spec import parse_policy
from rcdiag.errors import RcdiagError, one_of
from rcdiag.learning.learner import Training
from rcdiag.learning.settings import LoraSettings, OptimizerSettings, SketchSettings
from rcdiag.losses.settings import Denominator
from rcdiag.trainers.trainer import Trainer
from rcdiag.usecases.replay.batch import advantage_source
from rcdiag.usecases.replay.preset import Update
from rcdiag.usecases.replay.rewards import load_reward

if TYPE_CHECKING:  # both load transformers, which an update without a model does not need
    from rcdiag.usecases.replay.fresh_samples import Reward
    from rcdiag.usecases.replay.with_model import Model

OPTIMIZERS = ("sgd", "adamw")
REFERENCES = ("seq_is", "fresh", "none")
# {"tau_pos": 2} or ["tau_pos=2"]
LossSettingValues = Mapping[str, Any] | Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class LossOptions:
    """How per-token losses are made and become one number; None is the trainer's own choice."""

    loss: str | None = None
    loss_settings: LossSettingValues = ()
    aggregation: str | None = None
    denominator: str | None = None
    constant: float | None = None
    loss_scale_factor: float | None = None
    advantage: str | None = None
    rebaseline: bool = False
    clip_low: float = 0.2
    clip_high: float = 0.2
    clip_c: float | None = None
    dro_beta: float | None = None

    def update(self, trainer: Trainer, columns: Sequence[str]) -> Update:
        """The update of a trainer generation on a table with these columns."""
        rules = trainer.update
        name = self.loss or next(iter(rules.losses))
        loss = rules.loss(name, whose=trainer.name)
        own: dict[str, Any] = {"clip_low": self.clip_low, "clip_high": self.clip_high}
        optional = {"clip_c": self.clip_c, "dro_beta": self.dro_beta}
        own |= {option: value for option, value in optional.items() if value is not None}
        own |= loss.parsed(self._loss_setting_texts())
        settings = rules.defaults.changed(
            **own,
            aggregation=self.aggregation or rules.defaults.aggregation,
            denominator=self._denominator(),
            constant=self.constant,
            scale_factor=self.loss_scale_factor,
        )
        aggregation = rules.aggregation("", settings)
        if self.loss_scale_factor is not None and aggregation.horizon == "none":
            raise RcdiagError(
                f"--loss-scale-factor: {aggregation.name} has none",
                hint="--aggregation seq-mean-token-sum-norm",
            )
        return Update(
            loss=name,
            settings=settings,
            advantage=advantage_source(self.advantage, columns),
            rebaseline=self.rebaseline,
        )

    def _loss_setting_texts(self) -> list[str]:
        """The settings as NAME=VALUE, which the loss reads and checks."""
        if isinstance(self.loss_settings, Mapping):
            return [f"{name}={value}" for name, value in self.loss_settings.items()]
        return list(self.loss_settings)

    def _denominator(self) -> Denominator | None:
        """A number goes with the denominator `constant`, and with no other."""
        if self.denominator is not None:
            one_of("--denominator", self.denominator, get_args(Denominator))
        if (self.denominator == "constant") != (self.constant is not None):
            raise RcdiagError(
                "--denominator constant and --constant N go together",
                hint="what a step is divided by, for example --denominator constant "
                "--constant 1024",
            )
        return cast(Denominator | None, self.denominator)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingOptions:
    """How a real model takes the step; only of use with a model."""

    precision: str = "float32"
    reference: str = "seq_is"
    optimizer: str = "adamw"
    lr: float = 1e-6
    weight_decay: float = 0.0
    momentum: float = 0.0
    max_grad_norm: float = 1.0
    epochs: int = 1
    minibatches: int = 1
    steps: int = 1
    split: int | None = None
    lora: int | None = None
    checkpointing: bool = False
    batch_tokens: int | None = None
    reward: str | Reward | None = None
    evaluate: int | None = None
    save: Path | None = None

    def refuse_without_model(self) -> None:
        """Refuse every option that would do nothing because no model is given."""
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                raise RcdiagError(
                    f"--{field.name.replace('_', '-')} needs a model", hint="--model CHECKPOINT"
                )

    def model(self, checkpoint: str, *, presets: int, seed: int) -> Model:
        """The model of `checkpoint` and its training, for an update of so many presets."""
        from rcdiag.usecases.replay.with_model import Model

        if self.save is not None and presets != 1:
            raise RcdiagError(
                f"--save with {presets} presets", hint="choose the one to save with --preset NAME"
            )
        if self.evaluate and self.reward is None:
            raise RcdiagError("--evaluate needs --reward", hint="--reward FILE.py:FUNCTION")
        self._check_numbers()
        return Model(
            spec=parse_policy(f"model=hf:{self.precision}", checkpoint),
            training=self._training(seed),
            lora=None if self.lora is None else LoraSettings(rank=self.lora),
            checkpointing=self.checkpointing,
            batch_tokens=self.batch_tokens,
            reward=load_reward(self.reward) if isinstance(self.reward, str) else self.reward,
            steps=self.steps,
            save=self.save,
        )

    def _check_numbers(self) -> None:
        """Counts are at least 1; a split has at least two parts."""
        least = {"split": 2}
        for name in ("epochs", "minibatches", "steps", "split", "lora", "batch_tokens", "evaluate"):
            value: Any = getattr(self, name)
            if value is not None and value < least.get(name, 1):
                raise RcdiagError(
                    f"--{name.replace('_', '-')} {value}: too small",
                    hint=f"at least {least.get(name, 1)}",
                )

    def _training(self, seed: int) -> Training:
        one_of("--reference", self.reference, REFERENCES)
        optimizer = OptimizerSettings(
            name=one_of("--optimizer", self.optimizer, OPTIMIZERS),
            learning_rate=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            max_grad_norm=self.max_grad_norm or None,
        )
        return Training(
            optimizer=optimizer,
            learning_rate=self.lr,
            sketch=SketchSettings(seed=seed),
            reference=cast(Literal["seq_is", "fresh", "none"], self.reference),
            epochs=self.epochs,
            minibatches=self.minibatches,
            split=self.split,
            evaluate=self.evaluate,
            seed=seed,
            about={
                "optimizer": optimizer.name,
                "learning_rate": optimizer.learning_rate,
                "max_grad_norm": optimizer.max_grad_norm,
                "weight_decay": optimizer.weight_decay,
            },
        )
