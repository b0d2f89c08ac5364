"""KL between the policy and the reference: its estimates from sampled tokens, and the weight that follows them."""

from __future__ import annotations

from torch import Tensor


def kl_penalty(log_prob: Tensor, ref_log_prob: Tensor, *, kind: str) -> Tensor:
    """Estimate of KL(policy || reference) from each sampled token. All [B, R]. With d = ref_log_prob - log_prob:

        kl, k1          -d                 unbiased, noisy, of either sign; as a loss its gradient ignores ref
        abs             |d|
        mse, k2         d^2 / 2            the estimator whose gradient is that of the KL
        low_var_kl, k3  exp(d) - d - 1     unbiased, never negative; GRPO's (arXiv 2402.03300, eq. 4)
        any with `+`    that value with the gradient of k2 (straight through)

    J. Schulman, "Approximating KL Divergence" (joschu.net/blog/kl-approx.html, 2020). Same numbers as verl's
    `kl_penalty`: in k3, d is held within +-20 and the result within +-10. Raises ValueError for an unknown kind.
    """
    d = ref_log_prob - log_prob
    if kind.endswith("+"):
        k2 = 0.5 * d.square()
        return k2 - k2.detach() + kl_penalty(log_prob, ref_log_prob, kind=kind[:-1]).detach()
    if kind in ("kl", "k1"):
        return -d
    if kind == "abs":
        return d.abs()
    if kind in ("mse", "k2"):
        return 0.5 * d.square()
    if kind in ("low_var_kl", "k3"):
        d = d.clamp(-20.0, 20.0)
        return (d.exp() - d - 1).clamp(-10.0, 10.0)
    raise ValueError(
        f"unknown KL estimate {kind!r}; one of kl, k1, abs, mse, k2, low_var_kl, k3, or one of these with +"
    )


def adapted_kl_coef(kl_coef: float, kl: float, *, target_kl: float, horizon: int, responses: int) -> float:
    """The weight of the KL in the reward for the next step: larger where `kl` was over its target, smaller below it.

    D. Ziegler et al. (arXiv 1909.08593): the error counts up to 20 percent, and a batch of `responses`
    moves the weight by its share of `horizon`. Same numbers as verl's `AdaptiveKLController`.
    """
    error = min(max(kl / target_kl - 1, -0.2), 0.2)
    return kl_coef * (1 + error * responses / horizon)
