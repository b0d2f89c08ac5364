"""From the losses of tokens to the one number that is minimised."""

from __future__ import annotations

import torch
from torch import Tensor

LOSS_AGG_MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def aggregate(
    loss_matrix: Tensor,
    response_mask: Tensor,
    *,
    loss_agg_mode: str,
    batch_tokens: float,
    batch_responses: float,
    loss_scale_factor: float | None = None,
) -> Tensor:
    """One micro-batch's share of the mini-batch's loss. loss_matrix, response_mask: [B, R]; returns a scalar.

    The divisors belong to the WHOLE mini-batch (one optimizer step), so shares simply add up, and the sum depends
    neither on how the mini-batch was cut nor on padding:
        token-mean               all tokens / batch_tokens (verl's default, DAPO)
        token-sum                all tokens
        seq-mean-token-sum       all tokens / batch_responses
        seq-mean-token-mean      each response's own mean, summed / batch_responses (GRPO, arXiv 2402.03300, eq. 3)
        seq-mean-token-sum-norm  all tokens / batch_responses / loss_scale_factor (DrGRPO, arXiv 2503.20783)

    batch_tokens:      trained tokens of the mini-batch
    batch_responses:   responses of the mini-batch
    loss_scale_factor: only for seq-mean-token-sum-norm, and due there. verl takes the padded width where none is set;
                       here the caller says it: the response width of the mini-batch. The width of a micro-batch would
                       make the gradient depend on the cut.
    Same numbers as verl's `agg_loss` with batch_num_tokens, global_batch_size and loss_scale_factor given, dp_size 1.
    Raises ValueError for an unknown mode or a missing loss_scale_factor.
    """
    assert min(batch_tokens, batch_responses) > 0, f"empty mini-batch: {batch_tokens=}, {batch_responses=}"
    mask = response_mask.bool()
    tokens = torch.where(mask, loss_matrix, 0.0)  # not a product: NaN in the padding must stay there
    if loss_agg_mode == "token-mean":
        return tokens.sum() / batch_tokens
    if loss_agg_mode == "token-sum":
        return tokens.sum()
    if loss_agg_mode == "seq-mean-token-sum":
        return tokens.sum() / batch_responses
    if loss_agg_mode == "seq-mean-token-mean":
        return (tokens.sum(-1) / mask.sum(-1).clamp(min=1)).sum() / batch_responses
    if loss_agg_mode == "seq-mean-token-sum-norm":
        if loss_scale_factor is None:
            raise ValueError("seq-mean-token-sum-norm needs loss_scale_factor: pass the mini-batch's response width")
        return tokens.sum() / batch_responses / loss_scale_factor
    raise ValueError(f"unknown loss_agg_mode {loss_agg_mode!r}; one of {', '.join(LOSS_AGG_MODES)}")
