"""PyTorch's features for modules, with each of our kinds of model: tests of the table in the README.

DDP and FSDP are tested in tests/training/test_distributed.py, AOTInductor in tests/generation/test_compiled_steps.py.
"""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close

from companion.config.model import (
    AttentionConfig,
    FeedForwardConfig,
    LatentConfig,
    LinearConfig,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
    WindowConfig,
)
from companion.transformer import Transformer

VOCAB, CONTEXT, WINDOW = 29, 40, 5
KINDS = {
    "decoder": {},
    "experts": {"moe": MoEConfig(experts=5, top_k=2)},
    "encoder": {"stack": "encoder"},
    "encoder-decoder": {"stack": "encoder_decoder"},
    "local layers": {"attention": AttentionConfig(4, 2, window=WindowConfig(WINDOW, (True, False)))},
    "latents": {"attention": AttentionConfig(4, d_v=10, latent=LatentConfig(7, 4, q_lora_rank=9))},
    "linear layers": {"attention": AttentionConfig(4, 2, linear=LinearConfig((True, False), d_v=7))},
    "learned positions": {"positions": PositionConfig("learned"), "norm": NormConfig("layer")},
}


class Scores(nn.Module):
    """A module that returns only the logits, with one argument; for an encoder-decoder, four tokens are the source."""

    def __init__(self, kind, layers=2):
        super().__init__()
        torch.manual_seed(3)
        config = {
            "vocab": VOCAB,
            "d_model": 24,
            "layers": layers,
            "context": CONTEXT,
            "attention": AttentionConfig(4, 2),
            "feed_forward": FeedForwardConfig(40),
        }
        self.model = Transformer(ModelConfig(**config | KINDS[kind])).eval()

    def forward(self, tokens):
        source = {"source": tokens[:, :4]} if self.model.encoder is not None and self.model.decoder is not None else {}
        return self.model(tokens, **source).logits


def ids(tokens, batch=3):
    return torch.randint(VOCAB, (batch, tokens), generator=torch.Generator().manual_seed(tokens))


@pytest.fixture(params=list(KINDS))
def model(request):
    return Scores(request.param)


@pytest.fixture(params=list(KINDS))
def followed(request):
    """Make a model just deep enough for two kinds of layers, or for two that read the same source.

    A compiler traces each layer separately, which takes long.
    """
    return Scores(request.param, 2 if request.param in ("local layers", "linear layers", "encoder-decoder") else 1)


@pytest.fixture(autouse=True)
def nothing_compiled_before():
    torch._dynamo.reset()


def energy(model, parameters, tokens):
    return functional_call(model, parameters, (tokens,)).square().mean()


def test_compile_follows_other_lengths_without_a_break(followed, unchecked):
    # Lengths are symbolic from the first call on; tests/ground/test_annotations.py tests how they become symbolic.
    compiled = torch.compile(followed, fullgraph=True, dynamic=True, backend="eager")
    for tokens in (7, 12, 5):
        assert_close(compiled(ids(tokens)), followed(ids(tokens)))


def test_export_follows_other_sizes(followed, unchecked):
    least = WINDOW + 1 if followed.model.config.attention.window else 5  # for a mask: longer than the window
    sizes = {0: torch.export.Dim("batch", min=2, max=CONTEXT), 1: torch.export.Dim("token", min=least, max=CONTEXT)}
    exported = torch.export.export(followed, (ids(7),), dynamic_shapes=(sizes,)).module()
    for tokens, batch in ((7, 3), (12, 3), (7, 4), (12, 5)):
        assert_close(exported(ids(tokens, batch)), followed(ids(tokens, batch)))


def test_functional_gradients_are_those_of_backward(model):
    parameters = dict(model.named_parameters())
    functional = grad(lambda p: energy(model, p, ids(6)))(parameters)
    energy(model, parameters, ids(6)).backward()
    for name, parameter in parameters.items():
        assert_close(functional[name], parameter.grad if parameter.grad is not None else torch.zeros_like(parameter))


def test_gradients_by_sample_are_those_of_each_sample(model):
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def of_one(parameters, row):
        return grad(lambda p: energy(model, p, row[None]))(parameters)

    together = vmap(of_one, in_dims=(None, 0))(parameters, ids(6))
    alone = of_one(parameters, ids(6)[1])
    assert {name for name in alone if alone[name].abs().max() > 0}
    for name in alone:
        assert_close(together[name][1], alone[name])


def test_forward_mode_needs_the_operator_that_has_it(model):
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    along = {name: torch.ones_like(value) for name, value in parameters.items()}
    with pytest.raises(NotImplementedError, match="forward AD"):
        jvp(lambda p: energy(model, p, ids(6)), (parameters,), (along,))
    with sdpa_kernel(SDPBackend.MATH):
        value, slope = jvp(lambda p: energy(model, p, ids(6)), (parameters,), (along,))
        gradients = grad(lambda p: energy(model, p, ids(6)))(parameters)
    assert_close(slope, sum(gradient.sum() for gradient in gradients.values()))
    assert_close(value, energy(model, parameters, ids(6)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shapes_and_gradients_on_the_device_meta(dtype, model):
    model = model.to("meta", dtype)
    logits = model(ids(6).to("meta"))
    logits.sum().backward()
    assert logits.shape == (3, 6, VOCAB) and all(p.grad is None or p.grad.is_meta for p in model.parameters())


def test_copies_and_what_was_stored_compute_the_same(model):
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    other = copy.deepcopy(model)
    nn.init.zeros_(other.model.embedding.weight)
    other.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    for same in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), other):
        assert torch.equal(same(ids(6)), model(ids(6)))


def test_autocast_gives_gradients_in_the_weights_dtype(model):
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids(6))
    logits.float().square().mean().backward()
    assert_close(logits.float(), model(ids(6)), rtol=0.1, atol=0.1)
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}


def test_a_hook_on_any_module_is_called(model):
    called = set()
    for name, module in model.named_modules():
        module.register_forward_hook(lambda *_, name=name: called.add(name))
    model(ids(6))
    assert {name for name, module in model.named_modules() if not isinstance(module, nn.ModuleList)} == called


def test_a_parametrization_is_followed(model):
    first = next(name for name, module in model.named_modules() if isinstance(module, nn.Linear))
    before = model(ids(6))
    layer = torch.nn.utils.parametrizations.weight_norm(model.get_submodule(first))
    assert_close(model(ids(6)), before)
    with torch.no_grad():
        layer.parametrizations.weight.original0.mul_(3)
    assert (model(ids(6)) - before).abs().max() > 1e-3


def test_tracing_is_not_offered(model):
    with pytest.raises((TypeError, IndexError)):
        torch.jit.trace(model, (ids(6),), check_trace=False)
