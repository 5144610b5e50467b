"""Hugging Face transformers as an engine that scores in the precision of a trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rcdiag.engines.backend import Backend, LadderRung, Option, OtherBatches, is_low_precision
from rcdiag.engines.kept_sets import OWN, SUPPORT, check_support, kept_sets_from
from rcdiag.engines.spec import PolicySpec
from rcdiag.errors import RcdiagError

if TYPE_CHECKING:
    from pathlib import Path

    from rcdiag.engines.hf.engine import HfEngine


def _load(spec: PolicySpec, max_length: int, log: Path) -> HfEngine:
    from rcdiag.engines.hf.engine import HfEngine

    return HfEngine(spec)


def _gpus(options: Mapping[str, Any]) -> int:
    """Return the number of GPUs that one model is divided over."""
    return int(options.get("gpus", 1))


def _layout(spec: PolicySpec) -> str:
    from rcdiag.engines.hf.layers import layout  # imports numpy, which --help avoids

    return layout(spec)


def _check(spec: PolicySpec) -> None:
    """Refuse options that exclude each other, and GPUs that the model cannot be divided over."""
    check_support(spec)
    gpus = _gpus(spec.options)
    if gpus < 1 or (gpus > 1 and spec.options.get("device", "cuda") != "cuda"):
        device = f",device={spec.options['device']}" if "device" in spec.options else ""
        raise RcdiagError(
            f"policy `{spec.name}`: gpus={gpus}{device}: wanted 1 or more GPUs of this machine",
            hint="gpus=2 spreads the layers of one model over two",
        )
    _layout(spec)  # refuses more GPUs than layers
    watched = "experts" in spec.options or spec.options.get("record_experts")
    if watched and spec.options.get("compile"):  # it bypasses the routers' hooks
        raise RcdiagError(
            f"policy `{spec.name}`: compile=true compiles routers too, whose experts can then be "
            "neither given nor recorded",
            hint="leave compile=true out",
        )


def _own_place(about: Mapping[str, Any]) -> LadderRung | None:
    options = about.get("options") or {}
    if about.get("dtype") == "float16":
        return LadderRung.TRAINER_HALF
    if is_low_precision(about):
        return LadderRung.TRAINER_LOW_WIDE_HEAD if options.get("lm_head") == "float32" else None
    return LadderRung.TRAINER_AUTOCAST if "autocast" in options else None


def _reads(spec: PolicySpec) -> list[str]:
    experts = spec.options.get("experts")
    return [*kept_sets_from(spec), *([] if experts is None else [f"{experts}_routed_experts"])]


HF = Backend(
    name="hf",
    says="Hugging Face transformers: the model's own forward pass in the precision of a trainer, "
    "dropout off, TF32 off.",
    role="trainer",
    dtypes=("float32", "bfloat16", "float16"),
    default_dtype="float32",
    default_policy="old",
    load=_load,
    options={
        "autocast": Option(
            says="the dtype of torch.autocast around the forward pass, as in plain AMP and DDP "
            "(FSDP2's mixed precision is hf:bfloat16)",
            takes=("bfloat16", "float16"),
            shown="autocast {}",
        ),
        "attention": Option(
            says="sdpa, eager or another name that transformers knows; the default for float32 on "
            "a GPU is sdpa_repeated_kv, which is sdpa without the memory for whole score matrices"
        ),
        "division": Option(
            says="the dtype in which logits are divided by the temperature: float32, or that of "
            "the logits, with the temperature rounded to it too, as in verl",
            takes=("float32", "logits"),
            shown="{} division",
        ),
        SUPPORT: Option(
            says="the kept sets over which the softmax is normalised: rollout, or another policy, "
            f"for those in rollout_kept_ids; {OWN} for the tokens that the row's top_p, top_k and "
            "min_p leave of this model's distribution",
            shown="over {} kept sets",
        ),
        "device": Option(says="cpu or cuda; the default is a GPU if there is one"),
        "gpus": Option(
            says="the number of GPUs to divide one model over, layer by layer; --dry-run shows how",
            takes=int,
            shown="on {} GPUs",
        ),
        "batch_tokens": Option(says="tokens of one forward, padding included", takes=int),
        "compile": Option(says="run the model through torch.compile", takes=bool),
        "experts": Option(
            says="the policy whose recorded experts a mixture of experts uses for response tokens, "
            "with gates of its own (routing replay): experts=rollout reads rollout_routed_experts",
            shown="experts of {}",
        ),
        "record_experts": Option(
            says="also record the experts of each response token, as NAME_routed_experts",
            takes=bool,
            shown="",
        ),
        "trust_remote_code": Option(
            says="run the checkpoint's own model code", takes=bool, runs_code=True
        ),
    },
    packages={"torch": "2.8", "transformers": "4.57", "accelerate": "1.4"},
    other_batches=OtherBatches(option="batch_tokens", size=1021, smaller=509),
    gpus=_gpus,
    layout=_layout,
    check=_check,
    own_place=_own_place,
    reads=_reads,
)
