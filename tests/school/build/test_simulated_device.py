"""The simulated device rejects what a GPU rejects, and the references run on it and on a GPU."""

import pytest
import torch

from companion_school.build.isolated_modules import World
from companion_school.build.parts import references
from companion_school.build.simulated_device import DEVICE, SimulatedDevice, on_simulated_device
from companion_school.build.stages import STAGES


def test_what_is_computed_there_is_what_is_computed_here():
    x, weight = torch.randn(3, 5), torch.randn(5, 2, requires_grad=True)
    here = (x @ weight).tanh().sum()
    with SimulatedDevice() as device:
        far = weight.detach().to(device).requires_grad_()
        there = (x.to(device) @ far).tanh().sum()
        there.backward()
        assert there.device == far.grad.device == torch.arange(3, device=device).device == DEVICE
        torch.testing.assert_close(there.detach().cpu(), here.detach())
        torch.testing.assert_close(far.grad.cpu(), torch.autograd.grad(here, weight)[0])
        assert torch.tensor([[1, 2], [3, 4]], device=device)[1].tolist() == [3, 4]
        assert x.to(device)[torch.tensor([2, 0])].cpu().equal(x[[2, 0]]) and (x.to(device) + torch.tensor(1.0)).is_meta
    assert torch.Generator().device.type == "cpu" and not torch.zeros(1).is_meta


@pytest.mark.parametrize(
    "mixed",
    [
        lambda x, y: x + y,
        lambda x, y: torch.cat([x, y]),
        lambda x, y: x.masked_fill(y > 0, 0.0),
        lambda x, y: y[x > 0],
        lambda x, y: torch.rand(2, device=x.device, generator=torch.Generator()),
        lambda x, y: torch.multinomial(x.softmax(-1), 1, generator=torch.Generator()),
        lambda x, y: torch.rand(2, generator=torch.Generator(x.device)),
    ],
)
def test_two_devices_do_not_meet(mixed):
    y = torch.randn(4, 4)
    assert str(on_simulated_device(lambda device: mixed(y.to(device), y))).startswith(
        "it does not run on a GPU: Expected"
    )


def trained_and_written(device):
    sources = {module: text for number in range(1, 8) for module, text in references(STAGES[number]).items()}
    code = World(sources, "generation")
    training, files = code["training"], code["model"]
    torch.manual_seed(1)
    model = files.Transformer(files.Config(vocab=30, d_model=16, layers=2, d_ff=24)).to(device)
    ids = (torch.arange(200) % 7 + 1).to(device)

    def loss_at(n):
        inputs, targets = training.windows(ids, 12, 4, torch.Generator().manual_seed(n))
        return training.loss_of(model(inputs), targets)

    losses = list(training.train(model, loss_at, 30, peak=1e-2, warmup=5))
    return losses[-1], list(code.generate(model, [1, 2], 10, temperature=0))


def test_the_stages_train_and_write_there_as_on_the_cpu():
    loss, text = trained_and_written("cpu")
    far = on_simulated_device(trained_and_written)
    assert far[0] == pytest.approx(loss, rel=1e-4) and far[1] == text == [(2 + n) % 7 + 1 for n in range(10)]


@pytest.mark.gpu
def test_the_stages_train_and_write_on_a_gpu_as_on_the_cpu():
    loss, text = trained_and_written("cpu")
    there = trained_and_written("cuda")
    assert there[0] == pytest.approx(loss, rel=1e-2) and there[1] == text


def test_a_generator_of_here_is_not_mistaken_for_one_of_there_that_is_gone():
    """A new object may get the address of one that was deleted."""
    with SimulatedDevice() as device:
        for _ in range(20):
            assert torch.rand(2, device=device, generator=torch.Generator(device)).device == DEVICE
            assert torch.rand(2, generator=torch.Generator()).device.type == "cpu"
