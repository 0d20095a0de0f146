"""Products by oneDNN: those of `F.linear` up to rounding, the same run stopped or not, and away where they do not
belong."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from companion.commands import doctor
from companion.config.model import AttentionConfig, FeedForwardConfig, ModelConfig, MoEConfig
from companion.training import products
from companion.training.products import ByOneDNN
from companion.training.trainer import Trainer, TrainingConfig
from companion.transformer import Transformer

ROUNDING = torch.finfo(torch.float32).eps
BY_ONEDNN = "_LinearBackward"
CPU = torch.device("cpu")


@pytest.fixture
def any_size(monkeypatch):
    monkeypatch.setattr(products, "PRODUCT", 1)


@pytest.fixture
def pays(monkeypatch, any_size):
    """As on a machine where it pays, for the smallest of models."""
    monkeypatch.setattr(products, "onednn_pays", lambda: True)
    monkeypatch.setattr(products, "LARGE", 1)


def _near(found, factors, exact) -> None:
    """Sums of n products, added in any order, are off by at most n roundings of the sum of their sizes."""
    a, b = (factor.detach().abs().double() for factor in factors)
    bound = a.shape[1] * ROUNDING * (a @ b.t())
    assert found.dtype == torch.float32
    assert ((found.detach().double() - exact.detach()).abs().view_as(bound) <= bound + 1e-30).all()


@pytest.mark.parametrize("axes", [(1,), (37,), (3, 5), (2, 3, 7)])
@pytest.mark.parametrize("out", [1, 11, 29])
@pytest.mark.parametrize("biased", [True, False])
def test_values_and_gradients_are_those_of_a_linear_layer(any_size, axes, out, biased) -> None:
    """Of a plain input, of one whose axes lie in another order, and of a gradient that is one number, expanded."""
    torch.manual_seed(0)
    layer = nn.Linear(19, out, bias=biased)
    exactly = nn.Linear(19, out, bias=biased, dtype=torch.float64)
    exactly.load_state_dict(layer.state_dict())
    turned = torch.randn(*axes[:-1], 19, axes[-1]).transpose(-2, -1)
    for x in (torch.randn(*axes, 19), turned):
        x = x.requires_grad_()
        with ByOneDNN():
            y = layer(x)
            assert torch.equal(y, F.linear(x, weight=layer.weight, bias=layer.bias))
        assert y.grad_fn.name() == BY_ONEDNN and y.shape == (*axes, out)
        truth = x.detach().double().requires_grad_()
        expected = exactly(truth)
        rows = torch.cat((x.flatten(0, -2), torch.ones(x.numel() // 19, 1)), 1)
        weight = torch.cat((layer.weight, torch.zeros(out, 1) if layer.bias is None else layer.bias[:, None]), 1)
        _near(y, (rows, weight), expected)
        for upstream in (torch.randn(*axes, out), torch.ones(()).expand(*axes, out)):
            found = torch.autograd.grad(y, [x, *layer.parameters()], upstream, retain_graph=True)
            right = torch.autograd.grad(expected, [truth, *exactly.parameters()], upstream.double(), retain_graph=True)
            assert [gradient.stride() for gradient in found[1:]] == [p.stride() for p in layer.parameters()]
            above = upstream.reshape(-1, out)
            _near(found[0], (above, layer.weight.t()), right[0])
            _near(found[1], (above.t(), rows[:, :-1].t()), right[1])
            if biased:
                _near(found[2][:, None], (above.t(), torch.ones(1, len(above))), right[2][:, None])


def test_a_gradient_can_be_differentiated_again(any_size) -> None:
    torch.manual_seed(1)
    found = []
    for within in (True, False):
        layer, x = nn.Linear(5, 3), torch.linspace(-1, 1, 20).view(4, 5).requires_grad_()
        with torch.no_grad():
            layer.weight.copy_(torch.linspace(-2, 1, 15).view(3, 5))
            layer.bias.fill_(0.3)
        with ByOneDNN() if within else torch.enable_grad():
            y = layer(x)
            (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            found.append(torch.autograd.grad(slope.square().sum(), [x, layer.weight, layer.bias]))
        assert (y.grad_fn.name() == BY_ONEDNN) == within
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_it_leaves_alone_what_is_not_its_own(any_size, monkeypatch) -> None:
    """Double precision, half of it, autocast, vectorised and compiled code, subclasses, weights laid out otherwise,
    and small products are PyTorch's, bit for bit."""
    x, weight = torch.randn(6, 5), torch.randn(4, 5, requires_grad=True)

    class Other(torch.Tensor):
        pass

    def compute():
        yield F.linear(x.double(), weight.double())
        yield F.linear(x.bfloat16(), weight.bfloat16())
        with torch.autocast("cpu", torch.bfloat16):
            yield F.linear(x, weight)
        yield torch.vmap(lambda row: F.linear(row, weight))(x[:, None])
        yield torch.func.grad(lambda w: F.linear(x, w).sum())(weight.detach())
        yield F.linear(x.as_subclass(Other), weight).as_subclass(torch.Tensor)
        yield F.linear(x, torch.randn(5, 4, generator=torch.Generator().manual_seed(2)).t())
        yield F.linear(x[0], weight)
        yield torch.compile(lambda x, w: F.linear(x, w), backend="aot_eager")(x, weight)
        products.PRODUCT = 6 * 5 * 4 + 1
        yield F.linear(x, weight)

    plain = list(compute())
    products.PRODUCT = 1
    with ByOneDNN():
        found = list(compute())
    assert len(found) == 10
    for ours, theirs in zip(found, plain, strict=True):
        assert ours.grad_fn is None or ours.grad_fn.name() != BY_ONEDNN
        assert torch.equal(ours, theirs)
    with ByOneDNN(), pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        F.linear(x, weight[:, :3])


def test_only_a_large_model_on_the_right_machine_gets_it(monkeypatch) -> None:
    """One condition is taken away at a time; and the environment's choice of kernels is respected."""

    def gets(parameters=2**20, device=CPU, precision="fp32", plain=True) -> bool:
        return isinstance(products.products(parameters, device, precision, plain=plain), ByOneDNN)

    for name in products.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(products, "maker", lambda: "AuthenticAMD")
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr("torch.backends.mkl.is_available", lambda: True)
    assert gets()
    assert not gets(parameters=2**20 - 1) and not gets(device=torch.device("cuda")) and not gets(precision="bf16")
    assert not gets(plain=False)
    for name, value in (
        ("companion.training.products.maker", lambda: "GenuineIntel"),
        ("torch.backends.cpu.get_cpu_capability", lambda: "AVX2"),
        ("torch.backends.mkl.is_available", lambda: False),
        ("torch.backends.mkldnn.is_available", lambda: False),
    ):
        with monkeypatch.context() as changed:
            changed.setattr(name, value)
            assert not gets(), name
    for name in products.SETTINGS:
        with monkeypatch.context() as changed:
            changed.setenv(name, "AVX2")
            assert not gets(), name
    with torch.backends.mkldnn.flags(enabled=False):
        assert not gets()


def test_the_receipt_says_which_library_multiplies(monkeypatch) -> None:
    for pays in (True, False):
        monkeypatch.setattr(products, "onednn_pays", lambda pays=pays: pays)
        said = " ".join(" ".join(doctor.hardware()).split())
        assert ("oneDNN multiplies in training" in said) == pays


MODEL = ModelConfig(
    29, 24, 2, context=17, attention=AttentionConfig(4, 2), feed_forward=FeedForwardConfig(40), dropout=0.1
)
MODELS = {"dense": MODEL, "experts": MODEL.with_(moe=MoEConfig(3, 2))}


def _trainer(config: ModelConfig, **options) -> Trainer:
    torch.manual_seed(3)
    return Trainer(
        Transformer(config),
        lambda number: tuple(torch.arange(3 * 17).view(3, 17).mul(7).add(number + i) % 29 for i in range(2)),
        TrainingConfig(updates=12, accumulate=2, warmup=2, balance_loss=0.0 if config.moe is None else 0.01),
        **options,
    )


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_a_run_by_it_is_the_run_without_it_up_to_rounding(config, pays, monkeypatch) -> None:
    """Losses of twelve updates. AdamW divides by sizes of gradients, which makes more of a rounding than it was."""
    used = []
    apply = products._Linear.apply
    monkeypatch.setattr(products._Linear, "apply", lambda *given: used.append(1) or apply(*given))
    ours = _trainer(config)
    losses = [ours.update().loss for _ in range(12)]
    assert len(used) >= 12 * 2 * (4 * config.layers + 1)  # attention's products and the head, in each micro-batch
    used.clear()
    monkeypatch.setattr(products, "onednn_pays", lambda: False)
    plain = _trainer(config)
    assert [plain.update().loss for _ in range(12)] == pytest.approx(losses, rel=1e-4)
    assert not used and losses[-1] < 0.9 * losses[0]
    assert list(ours.weights()) == list(plain.weights()) == list(Transformer(config).state_dict())


@pytest.mark.parametrize("again", [False, True])
def test_a_run_that_is_stopped_and_goes_on_is_the_same_bit_for_bit(pays, again) -> None:
    """And so is one whose blocks run again in the backward pass: they calculate there with the same kernels."""
    whole = _trainer(MODEL)
    updates = [whole.update() for _ in range(8)]
    first = _trainer(MODEL, recompute=again)
    found = [first.update() for _ in range(3)]
    second = _trainer(MODEL, recompute=again)
    second.load(*({k: v.clone() for k, v in kept.items()} for kept in (first.weights(), first.state())), first.done)
    found += [second.update() for _ in range(5)]
    assert second.optimizer.defaults["fused"] and found == updates
    for (name, ours), theirs in zip(whole.weights().items(), second.weights().values(), strict=True):
        assert torch.equal(ours, theirs), name


def test_outside_of_an_update_the_model_calculates_as_ever(pays) -> None:
    trainer = _trainer(MODEL)
    trainer.update()
    tokens, seen = torch.arange(34).view(2, 17) % 29, []
    logits = trainer.model.eval()(tokens).logits
    todo = [logits.grad_fn]
    while todo:
        node = todo.pop()
        seen.append(node.name())
        todo += [before for before, _ in node.next_functions if before is not None]
    assert BY_ONEDNN not in seen and len(seen) > 20
