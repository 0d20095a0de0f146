"""Values sent between processes arrive unchanged, and untrusted bytes do no harm."""

import math
import pickle

import pytest
import torch
from safetensors.torch import load

from companion_school.checking import codec
from companion_school.checking.call import Outcome, Result
from companion_school.checking.codec import pack, pack_outcome, unpack, unpack_outcome
from companion_school.checking.compare import difference


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -3,
        0.1,
        "é",
        [1, (2.5, None)],
        {"a": {"b": (torch.arange(3), "c")}, "d": []},
        torch.randn(2, 0, 3),
        torch.tensor([math.nan, -math.inf]),
        torch.tensor(1.5, dtype=torch.float16),
        torch.arange(6).view(2, 3).bfloat16().T,
        torch.tensor([[True], [False]]),
        (),
    ],
)
def test_a_value_arrives_as_it_was_sent(value):
    arrived = unpack(pack(value))
    assert type(arrived) is type(value)
    assert difference(arrived, value, 0.0) is None


def test_floats_cross_to_the_last_bit():
    for value in (0.1 + 0.2, math.inf, -0.0, 5e-324):
        assert math.copysign(1, unpack(pack(value))) == math.copysign(1, value) and unpack(pack(value)) == value
    assert math.isnan(unpack(pack(math.nan)))


def test_two_tensors_that_share_memory_arrive_apart():
    x = torch.arange(4.0)
    one, other = unpack(pack((x, x[1:])))
    one[1] = 9.0
    assert other[0] == 1.0


@pytest.mark.parametrize("data", [b"", b"x" * 8, b"x" * 200, pickle.dumps([1]), pack(1)[:-1], pack({"a": 1})[:20]])
def test_other_bytes_are_refused(data):
    with pytest.raises(ValueError, match="expected a packed"):
        unpack(data)
    with pytest.raises(ValueError, match="expected a packed"):
        unpack_outcome(data)


def test_what_is_no_value_does_not_cross():
    with pytest.raises(TypeError, match="function"):
        pack(lambda: None)
    assert unpack_outcome(pack_outcome(Outcome(value=object()))).error == ("TypeError", "the result is a object")


def test_an_outcome_arrives_as_it_was_sent():
    sent = Outcome((torch.ones(2), 1.5), None, (torch.zeros(2), None), (0, 2), None)
    arrived = unpack_outcome(pack_outcome(sent))
    assert difference(arrived.value, sent.value) is None and arrived.changed == (0, 2)
    assert torch.equal(arrived.gradients[0], sent.gradients[0]) and arrived.gradients[1] is None
    assert unpack_outcome(pack_outcome(Outcome(error=("ValueError", "no")))).error == ("ValueError", "no")
    assert unpack_outcome(pack_outcome(Outcome(result=Result.MISSING))).result is Result.MISSING


def test_an_outcome_cannot_claim_to_be_right():
    with pytest.raises(ValueError, match="result of a call cannot be 'right'"):
        unpack_outcome(pack_outcome(Outcome(result=Result.RIGHT)))


@pytest.mark.parametrize("key", [2**61 - 1, (1.5, 2), ((1, 2), 3), (-1,) * 9])
def test_a_dict_has_no_keys_of_which_many_share_a_hash(key):
    """A dict of such keys, within the limits on a message, would take minutes to build."""
    with pytest.raises(ValueError, match="key"):
        unpack(pack({key: 0}))


def test_tensors_are_written_in_the_format_of_safetensors():
    made = {str(at): torch.zeros(2, at, 3).to(dtype) for at, dtype in enumerate(codec._DTYPES)}
    read = load(codec._saved(made))
    assert all(read[name].dtype == one.dtype and read[name].shape == one.shape for name, one in made.items())
    with pytest.raises(TypeError, match="complex128"):
        pack(torch.zeros(2, dtype=torch.complex128))
