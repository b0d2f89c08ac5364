"""Log-probs and entropies out of hidden states: the same numbers and gradients as from all logits at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from grpo.embedded.chunked import Head, chosen_log_probs

N, D, V = 7, 12, 50  # rows, width, vocabulary
ROWS = torch.tensor([0, 0, 0, 1, 2, 3, 4, 5, 6])  # three responses begin after the first row
TOKENS = torch.tensor([4, 9, 4, 0, 49, 7, 7, 3, 12])


def _layer(bias: bool = False) -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Linear(D, V, bias=bias)


class _Adapted(torch.nn.Linear):
    """Frozen weights and a trained change of rank 2, as a layer under LoRA is."""

    def __init__(self) -> None:
        super().__init__(D, V, bias=False)
        torch.manual_seed(1)
        self.weight.requires_grad_(False)
        self.down, self.up = (torch.nn.Parameter(torch.randn(shape)) for shape in ((2, D), (V, 2)))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + input @ self.down.T @ self.up.T


def _by_hand(hidden, head: Head, temperature: float, entropy):
    logits = head.layer(hidden) / head.divisor
    if head.softcap:
        logits = head.softcap * torch.tanh(logits / head.softcap)
    log_p = (logits.float() / temperature).log_softmax(-1)
    h = -(log_p.exp() * log_p).sum(-1)
    return log_p[ROWS, TOKENS], None if entropy is None else h


def _gradients(how, hidden, head: Head, entropy, **more) -> tuple[Any, Any, dict[str, Any]]:
    hidden = hidden.clone().requires_grad_()
    head.layer.zero_grad()
    log_probs, h = how(hidden, head, entropy=entropy, **more)
    loss = (log_probs * torch.linspace(-1, 2, len(TOKENS))).sum()
    if entropy == "loss":
        loss = loss + (h * torch.linspace(0.5, 1, N)).sum()
    loss.backward()
    own = {name: weight.grad for name, weight in head.layer.named_parameters() if weight.requires_grad}
    return log_probs.detach(), None if h is None else h.detach(), {"hidden": hidden.grad} | own


def _ours(hidden, head, *, entropy, temperature, **more):
    return chosen_log_probs(hidden, head, TOKENS, ROWS, temperature=temperature, entropy=entropy, **more)


def _plain(hidden, head, *, entropy, temperature):
    return _by_hand(hidden, head, temperature, entropy)


WAYS = {
    "kept": {},
    "kept, in pieces": {"chunk": 3 * V},
    "again": {"kept": 0},
    "again, in pieces": {"kept": 0, "chunk": 2 * V},
    "row by row": {"kept": 0, "chunk": 1},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("entropy", [None, "metric", "loss"])
@pytest.mark.parametrize("kind", ["plain", "bias", "softcap and divisor", "frozen", "lora"])
def test_pieces_give_the_numbers_and_gradients_of_all_logits_at_once(kind, entropy, way):
    head = Head(_Adapted() if kind == "lora" else _layer(kind == "bias"))
    if kind == "softcap and divisor":
        head = Head(head.layer, divisor=0.25, softcap=3.0)
    if kind == "frozen":
        head.layer.requires_grad_(False)
    hidden = 2 * torch.randn(N, D, generator=torch.Generator().manual_seed(3))
    want = _gradients(_plain, hidden, head, entropy, temperature=0.7)
    have = _gradients(_ours, hidden, head, entropy, temperature=0.7, **WAYS[way])
    assert_close(have[0], want[0], atol=2e-6, rtol=1e-6)
    if entropy is not None:
        assert_close(have[1], want[1], atol=2e-6, rtol=1e-6)
    assert have[2].keys() == want[2].keys()
    for name, grad in want[2].items():
        assert_close(have[2][name], grad, atol=1e-5 * float(grad.abs().max()), rtol=0, msg=name)


def test_what_is_kept_for_the_way_back_is_the_probabilities_once_or_nothing_of_the_vocabularys_size():
    hidden = torch.randn(N, D, requires_grad=True)
    for kept, frozen, most in ((N * V, False, N * V), (0, False, 0), (N * V, True, 0)):
        layer = _layer().requires_grad_(not frozen)
        log_probs, _ = chosen_log_probs(hidden, Head(layer), TOKENS, ROWS, temperature=1.0, kept=kept)
        node: Any = log_probs.grad_fn
        saved = [t for t in node.saved_tensors if t is not None and t is not layer.weight]
        assert max(t.numel() for t in saved) <= N * D
        assert sum(p.numel() for p in node.kept or ()) == most


def test_one_row_worked_by_hand():
    # logits 0 and log 3: probabilities 1/4 and 3/4
    layer = torch.nn.Linear(1, 2, bias=False)
    layer.weight.data = torch.tensor([[1.0], [3.0]]).log()
    hidden = torch.ones(1, 1, requires_grad=True)
    tokens, rows = torch.tensor([1]), torch.tensor([0])
    log_probs, entropy = chosen_log_probs(hidden, Head(layer), tokens, rows, temperature=1.0, entropy="metric")
    assert_close(log_probs, torch.tensor([0.75]).log())
    assert_close(entropy, torch.tensor([0.5623351]))  # 1/4 log 4 + 3/4 log 4/3
    log_probs.backward()
    assert_close(layer.weight.grad, torch.tensor([[-0.25], [0.25]]))
    assert_close(hidden.grad, torch.tensor([[0.25 * 1.0986123]]))


def test_under_autocast_the_sums_stay_float32_and_the_gradient_is_close():
    hidden, head = torch.randn(N, D, generator=torch.Generator().manual_seed(3)), Head(_layer())
    exact = _gradients(_ours, hidden, head, "metric", temperature=1.0)
    for more in WAYS.values():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rough = _gradients(_ours, hidden, head, "metric", temperature=1.0, **more)
        assert rough[0].dtype == rough[2]["weight"].dtype == torch.float32
        assert_close(rough[0], exact[0], atol=0.03, rtol=0)
        for name, grad in exact[2].items():
            assert_close(rough[2][name], grad, atol=0.03 * float(grad.abs().max()), rtol=0, msg=name)


def test_without_gradients_nothing_is_kept():
    with torch.no_grad():
        log_probs, _ = chosen_log_probs(torch.randn(N, D), Head(_layer()), TOKENS, ROWS, temperature=1.0)
    assert log_probs.grad_fn is None
