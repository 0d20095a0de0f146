"""Invalid numbers are rejected by name where they are passed, instead of causing a NaN in the result."""

import math

import pytest
import torch
from torch import nn

from companion import (
    Attention,
    AttentionConfig,
    LatentAttention,
    LatentConfig,
    LayerNorm,
    LowRank,
    RMSNorm,
    policy_loss,
    preference_loss,
    rms_norm,
    rotary_angles,
    sinusoidal,
    sliding_window_attention,
)

X, Q = torch.randn(2, 3, 8), torch.randn(1, 2, 3, 8)
L, SCORED = torch.full((2, 3), -1.0), torch.ones(2, 3, dtype=torch.bool)
PLACES = torch.arange(5)
LATENT = AttentionConfig(2, latent=LatentConfig(4, 2))

GIVEN = {
    "attention dropout": ("dropout", lambda x: Attention(8, AttentionConfig(2), dropout=x)),
    "latent dropout": ("dropout", lambda x: LatentAttention(8, LATENT, dropout=x)),
    "window dropout": ("dropout", lambda x: sliding_window_attention(Q, Q, Q, 2, dropout=x)),
    "layer norm": ("eps", lambda x: LayerNorm(8, eps=x)),
    "rms norm": ("eps", lambda x: RMSNorm(8, eps=x)),
    "rms norm, function": ("eps", lambda x: rms_norm(X, torch.ones(8), x)),
    "rotary": ("base", lambda x: rotary_angles(PLACES, 8, base=x)),
    "sinusoidal": ("base", lambda x: sinusoidal(PLACES, 8, base=x)),
    "low rank": ("alpha", lambda x: LowRank(nn.Linear(4, 6), 2, x)),
    "preference": ("beta", lambda x: preference_loss(L[:, :2], L[:, :2], beta=x)),
    "policy clip": ("clip", lambda x: policy_loss(L, L, L, torch.ones(2), SCORED, clip=x)),
    "policy beta": ("beta", lambda x: policy_loss(L, L, L, torch.ones(2), SCORED, beta=x)),
}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -1.0])
@pytest.mark.parametrize("kind", GIVEN)
def test_a_number_that_means_nothing_is_refused_by_its_name(kind, number):
    name, use = GIVEN[kind]
    with pytest.raises(ValueError, match=rf"^{name}=?.*{number}"):
        use(number)
    use(0.5)
