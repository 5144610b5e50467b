"""Policy losses of `rcdiag replay`. Sources: reference/verl.md 3, reference/frameworks.md 1.4.

No torch is loaded to explain them: numbers are written down here, and computed by the tests. To
add a loss: one entry here.
"""

from __future__ import annotations

from dataclasses import replace

from rcdiag.glossary.entry import Entry, Kind, first_clause, said
from rcdiag.glossary.generations import SLIME, VERL, label
from rcdiag.glossary.worked import UPDATE

TITLE = "policy loss"
_D = "d = log_ratio = current - old, r = e^d, A the advantage"
_20 = "d within +-20 nats"
_CLIP = "[1 - clip_low, 1 + clip_high], 0.2 and 0.2"
_BY_MODE = "actor.policy_loss.loss_mode: {}"
_SEQ = "seq-mean-token-mean whatever is configured"
_ESTIMATOR = "--advantage-estimator {}; rejected tokens stay in its means and denominators"


def _since(first: str) -> tuple[str, ...]:
    return VERL[VERL.index(first) :]


def _modes(name: str, first: str = VERL[0], **others: str) -> dict[str, str]:
    """`loss_mode` in verl from a generation on."""
    return {label(_since(first)): _BY_MODE.format(name), **others}


LOSSES: dict[str, Entry] = {
    "vanilla": said(
        what="PPO with dual clip, on the ratio of each token. Results call it ppo_clip. Weights "
        "multiply what is already clipped.",
        formula=f"M = max(-A r, -A clip(r)); where A < 0 min(M, -A c); clip to {_CLIP}; c = clip_c "
        f"= 3; {_D}, {_20}",
        direction="minimised; in bypass mode old is the rollout's",
        generations=_modes("vanilla")
        | {label(SLIME): "all estimators but gspo and cispo; d not bounded, dual clip off"},
        example="loss -0.322 in verl-0.6.0 to verl-0.9; -0.135 in slime",
        see=("ppo_clip", "clip_low", "clip_c", "actor/pg_clipfrac"),
    ),
    "gspo": said(
        what="PPO on one ratio for the whole sequence, the geometric mean over its kept tokens, "
        "without dual clip (arXiv 2507.18071).",
        formula=f"max(-A s, -A clip(s)), s = exp(mean d), log s at most 10; clip to {_CLIP}; {_D}",
        generations={
            label(VERL[:-1]): f"{_BY_MODE.format('gspo')}; {_SEQ}",
            VERL[-1]: f"{_BY_MODE.format('gspo')}; aggregated as configured (0.9.0 as before)",
            label(SLIME): _ESTIMATOR.format("gspo"),
        },
        example="loss -0.2 in verl-0.6.0 to verl-0.8.0, slime; -0.4 in verl-0.9",
        see=("vanilla", "geo_mean", "seq-mean-token-mean"),
    ),
    "geo_mean": said(
        what="GMPO: of each row the geometric mean of its ratios, each held within the clip range "
        "in nats (arXiv 2507.20673). Always a plain mean over all rows.",
        formula=f"-mean(A) exp(mean x), x = d held above by clip_high where A > 0, below by "
        f"-clip_low where A < 0, both 0.2 nats; {_D}",
        generations=_modes("geo_mean"),
        example="loss -0.1251 in verl-0.6.0 to verl-0.9",
        see=("gspo", "clip_low"),
    ),
    "gpg": said(
        what="Plain policy gradient: no ratio, no clip, no metrics.",
        formula="-A log p_current",
        generations=_modes("gpg"),
        example="loss -0.38 in verl-0.6.0 to verl-0.9",
        see=("loss.reinforce",),
    ),
    "kl_cov": said(
        what="No clip, and a penalty on the few tokens whose advantage and log-prob go together "
        "most (arXiv 2505.22617). Its ppo_kl is a mean of sizes. verl picks in each micro-batch "
        "(verl #7829), rcdiag in the batch.",
        formula="-A r, and + ppo_kl_coef |d| on the largest kl_cov_ratio of (A - mean A)(log p - "
        f"mean log p), one token at least; 0.1 and 2e-4; {_D}",
        generations=_modes("kl_cov"),
        example="loss -1.107 in verl-0.6.0 to verl-0.9",
        see=("kl_cov_ratio", "ppo_kl_coef", "clip_cov"),
    ),
    "clip_cov": said(
        what="PPO that leaves a random choice of tokens of high covariance out (arXiv 2505.22617). "
        "rcdiag refuses it: without the trainer's random generator it cannot be repeated. Its "
        "pg_clipfrac in verl is the share left out.",
        formula=f"max(-A r, -A clip(r)), 0 for those drawn; {_D}",
        generations=_modes("clip_cov"),
        example="rcdiag replay rollouts.parquet --loss clip_cov: refused",
        see=("kl_cov",),
    ),
    "loss.reinforce": said(
        what="Policy gradient times the weights, without a clip: the loss of bypass mode with "
        "loss_type reinforce.",
        formula="-A w log p_current, w the weight, a constant of the gradient",
        generations={
            label(("verl-0.6.1", "verl-20251203")): "loss_mode: rollout_correction; veto alone was "
            "ignored in 0.6.1",
            label(_since("verl-0.7.0")): "loss_mode: bypass_mode with loss_type: reinforce",
        },
        example="loss -0.38 in verl-0.6.1 to verl-0.9",
        see=("reinforce", "gpg", "bypass"),
    ),
    "sapo": said(
        what=f"A soft gate on the ratio in place of the clip (arXiv 2511.20347); {_SEQ}.",
        formula="-A sigmoid(tau (r - 1)) 4 / tau, tau = tau_pos = 1 where A > 0, else tau_neg = "
        f"1.05; {_D}, {_20}",
        generations=_modes("sapo", "verl-0.7.0"),
        example="loss -0.627 in verl-0.7.0 to verl-0.9",
        see=("tau_pos", "tau_neg", "seq-mean-token-mean"),
    ),
    "cispo": said(
        what="The clipped ratio as a constant weight on the policy gradient: clipped tokens keep "
        "pulling (arXiv 2506.13585).",
        formula=f"-sg(clip(r)) A log p_current, sg a constant of the gradient; clip to {_CLIP}; "
        f"{_D}, {_20}",
        generations=_modes("cispo", "verl-0.7.0")
        | {label(SLIME): f"{_ESTIMATOR.format('cispo')}; d not bounded; 1.0 and 4.0 suggested"},
        example="loss -0.1965 in verl-0.7.0 to verl-0.9; -0.4237 in slime",
        see=("clip_low", "actor/pg_clipfrac"),
    ),
    "dppo_tv": said(
        what="Tokens whose probability moved too far the advantage's way leave the gradient (arXiv "
        "2602.04879).",
        formula="-A sg(min(r, c)) log p_current where p - q <= clip_high (A > 0) or p - q >= "
        f"-clip_low, else 0; p current, q old, c = clip_c = 3, 0.2 and 0.2; {_D}, {_20}",
        generations=_modes("dppo_tv", "verl-0.7.1"),
        example="loss 0.0649 in verl-0.7.1 to verl-0.9",
        see=("dppo_kl", "clip_c"),
    ),
    "dppo_kl": said(
        what="The same by the KL of two coins, the token against all others (arXiv 2602.04879).",
        formula="as dppo_tv, where KL(q || p) <= clip_high (A > 0) or clip_low, or p on the safe "
        f"side of q; 0.2 and 0.2 nats, c = clip_c = 3; {_D}, {_20}",
        generations=_modes("dppo_kl", "verl-0.7.1"),
        example="loss 0.0649 in verl-0.7.1 to verl-0.9",
        see=("dppo_tv", "clip_c"),
    ),
    "dro": said(
        what="Policy gradient with a quadratic pull back to the old policy. verl stops without "
        "dro_beta.",
        formula=f"-A log p_current + beta / 2 d^2, beta = dro_beta > 0; {_D}",
        generations=_modes("dro", "verl-0.9"),
        example="dro_beta 0.1: loss -0.3404 in verl-0.9",
        see=("dro_beta", "gpg"),
    ),
}


def entry(name: str) -> Entry:
    found = replace(LOSSES[name], name=name, kind=TITLE)
    if found.direction is None:
        found = replace(found, direction="minimised")
    if name == "clip_cov":
        return found
    return replace(found, units="loss", example=f"{UPDATE}: {found.example}")


KIND: Kind = Kind(
    title=TITLE,
    plural="Policy losses of `rcdiag replay`",
    lines=lambda: {name: first_clause(found.what) for name, found in LOSSES.items()},
    entry=entry,
)
