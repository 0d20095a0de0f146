"""The checks of public functions: annotations become error messages, and only outer calls are checked."""

import math
import threading
from collections.abc import Callable
from typing import Literal

import pytest
import torch
from jaxtyping import Bool, Float, Int
from models import drawn
from torch import Tensor

from companion import AttentionConfig, FeedForwardConfig, ModelConfig, Transformer, WindowConfig, attend
from companion.ground import annotations
from companion.ground.annotations import checked
from companion.layers.feedforward import activation


def config(layers=2, **changes):
    fields = {"attention": AttentionConfig(3, d_head=4), "feed_forward": FeedForwardConfig(8)}
    return ModelConfig(17, 12, layers, 64, **(fields | changes))


def even(given):
    if given["x"].shape[1] % 2:
        raise ValueError(f"x has token={given['x'].shape[1]}: expected an even number")


@checked(fits=even, hints={"kind": "there is no other"})
def some(
    x: Float[Tensor, "batch token 3"],
    y: Float[Tensor, "batch token+1"] | None = None,
    *,
    where: Int[Tensor, "*batch token"] | None = None,
    seen: Bool[Tensor, "#batch #token"] | Callable[[int], bool] | None = None,
    kind: Literal["one", "two"] = "one",
    many: int = 1,
    share: float = 0.5,
    quiet: bool = False,
    owner: threading.Thread | None = None,
) -> int:
    return 7


X = torch.zeros(5, 4, 3)
SENTENCES = {
    "an axis of a fixed size": (
        lambda: some(X[..., :2]),
        r"x has shape \(5, 4, 2\): expected \(batch, token, 3\), \(5, 4, 3\)$",
    ),
    "too few axes": (
        lambda: some(X[0]),
        r"x has shape \(4, 3\): expected three axes, .*; x\[None\] is a batch",
    ),
    "an axis and one": (lambda: some(X, X[..., 0]), r"y has token\+1=4: expected 5, as in x"),
    "two axes at once": (
        lambda: some(X, X[:2, :, 0]),
        r"y has batch=2, token\+1=4: expected batch=5, token\+1=5, as in x",
    ),
    "another dtype": (lambda: some(X.long()), r"x is int64 of shape \(5, 4, 3\): expected a floating tensor, \(batch,"),
    "any axes and one": (lambda: some(X, where=torch.zeros(2, 9, dtype=torch.int32)), "where has token=9: expected 4"),
    "no axis": (lambda: some(X, where=torch.tensor(3)), r"where has shape \(\): expected at least one axes"),
    "an axis that broadcasts": (
        lambda: some(X, seen=torch.ones(1, 3) > 0),
        r"seen has shape \(1, 3\): expected \(batch, token\), \(5, 4\), or 1 in any axis",
    ),
    "no tensor and nothing else": (
        lambda: some(X, seen="x"),
        "seen='x': expected a tensor of True and False",
    ),
    "another word": (lambda: some(X, kind="three"), "kind='three': expected 'one' or 'two'; there is no other"),
    "half of a whole number": (lambda: some(X, many=2.5), "many=2.5: expected a whole number"),
    "truth for a number": (lambda: some(X, many=True), "many=True: expected a whole number"),
    "no number": (lambda: some(X, share=math.nan), "share=nan: expected a finite number"),
    "a number for truth": (lambda: some(X, quiet=1), "quiet=1: expected True or False"),
    "another class": (lambda: some(X, owner=3), "owner=3: expected a Thread or None"),
    "what annotations do not say": (lambda: some(X[:, :3]), "x has token=3: expected an even number"),
    "an activation": (lambda: activation("geglue"), "kind='geglue': expected 'relu', .* or 'swiglu_clamped'"),
}


@pytest.mark.parametrize(("call", "sentence"), SENTENCES.values(), ids=SENTENCES)
def test_an_annotation_is_a_sentence_each_time(call, sentence):
    for _ in range(2):
        with pytest.raises(ValueError, match=sentence):
            call()


def test_what_fits_goes_in_and_what_only_looks_alike_does_not():
    rows = torch.ones(1, 4) > 0
    assert some(X, many=1) == some(X, X.new_zeros(5, 5), seen=rows, where=torch.arange(4), share=1) == 7
    assert some(X, seen=lambda key: True, owner=threading.current_thread()) == 7
    with pytest.raises(ValueError, match="many=True"):
        some(X, many=True)  # equal to 1, but not a number
    with pytest.raises(TypeError, match="positional"):
        some(X, None, None)
    with pytest.raises(TypeError, match="colour"):
        some(X, colour=3)


@pytest.mark.parametrize("layers", [1, 3])
def test_a_model_looks_at_its_arguments_once_however_many_layers_it_has(monkeypatch, layers):
    model = drawn(config(layers))
    looked, at = [], annotations._Looks.at
    monkeypatch.setattr(annotations._Looks, "at", lambda self, given: looked.append(sorted(given)) or at(self, given))
    model(
        torch.zeros(2, 5, dtype=torch.long),
        attention_mask=torch.ones(2, 5),
        mask=torch.ones(1, 1, 5, 5, dtype=torch.long),
    )
    assert looked == [["attention_mask", "mask", "self", "tokens"]]
    model.decoder.blocks[0](torch.zeros(2, 5, 12))
    assert len(looked) == 2


def test_a_mask_is_made_once_for_all_layers(monkeypatch):
    from companion.layers.masks import AttentionMask

    made, of = [], AttentionMask.of
    monkeypatch.setattr(
        AttentionMask,
        "of",
        lambda mask, *given, **how: (isinstance(mask, AttentionMask) or made.append(1), of(mask, *given, **how))[1],
    )
    tokens, mask = torch.zeros(2, 5, dtype=torch.long), torch.rand(1, 1, 5, 5) > 0.3
    for window, kinds in ((None, 1), (WindowConfig(3, (True, False)), 2)):
        made.clear()
        model = drawn(config(6, attention=AttentionConfig(3, d_head=4, window=window)))
        model(tokens, mask=mask)
        assert len(made) == kinds


def test_after_an_error_inside_the_door_is_a_door_again():
    @checked()
    def broken(x: Float[Tensor, "row"]) -> None:
        attend(x, x, x)  # inside, nothing is checked
        raise AssertionError

    with pytest.raises(Exception, match="(?s)^(?!q has)"):
        broken(torch.ones(3))
    with pytest.raises(ValueError, match="q has shape"):
        attend(torch.ones(3), torch.ones(3), torch.ones(3))


def test_who_is_inside_opens_no_door_for_another_thread():
    inside, said = threading.Event(), []

    @checked()
    def long(x: Float[Tensor, "row"], done: threading.Event) -> None:
        inside.set()
        assert done.wait(20)

    done = threading.Event()
    other = threading.Thread(target=long, args=(torch.ones(2), done))
    other.start()
    try:
        assert inside.wait(20)
        with pytest.raises(ValueError, match="q has shape") as caught:
            attend(torch.ones(3), torch.ones(3), torch.ones(3))
        said.append(caught.value)
    finally:
        done.set()
        other.join()
    assert said


@pytest.mark.parametrize("window", [None, WindowConfig(3, (True, False))], ids=["global", "local"])
def test_a_compiler_follows_the_model_through_the_door(unchecked, window):
    model = drawn(config(2 if window else 1, attention=AttentionConfig(3, d_head=4, window=window))).eval()
    tokens = torch.randint(17, (2, 20), generator=torch.Generator().manual_seed(0))
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for length in (7, 9, 1, 12):  # at the second length, the compiler makes this size symbolic
        torch.testing.assert_close(compiled(tokens[:, :length]).logits, model(tokens[:, :length]).logits)
    ones = torch.ones(1, 1, 9, 9, dtype=torch.long)
    torch.testing.assert_close(compiled(tokens[:, :9], mask=ones).logits, model(tokens[:, :9]).logits)
    with pytest.raises(ValueError, match="tokens is float32"):
        torch.compile(model, backend="eager")(tokens.float())


def test_a_model_is_called_with_keywords_alone_and_positions_first():
    model: Transformer = drawn(config())
    tokens = torch.zeros(2, 5, dtype=torch.long)
    assert torch.equal(model(tokens=tokens).logits, model(tokens).logits)


def test_a_source_and_the_target_have_keys_of_their_own():
    net = drawn(config(stack="encoder_decoder"))
    tokens, source = torch.zeros(2, 5, dtype=torch.long), torch.ones(2, 7, dtype=torch.long)
    attention_mask, mask = torch.ones(2, 5, dtype=torch.long), torch.ones(1, 1, 5, 5, dtype=torch.long)
    torch.testing.assert_close(
        net(tokens, source=source, attention_mask=attention_mask, mask=mask).logits, net(tokens, source=source).logits
    )
    block, x = net.decoder.blocks[0], torch.rand(2, 5, 12)
    both = {"mask": mask, "source_mask": torch.ones(2, 1, 1, 7, dtype=torch.long)}
    outs = [block(x, source=torch.ones(2, 7, 12), **given)[0] for given in ({}, both)]
    torch.testing.assert_close(*outs)
    with pytest.raises(
        ValueError, match=r"source_mask has shape .*: expected \(batch, head, query, source\), .* 7\), or"
    ):
        block(x, source=torch.ones(2, 7, 12), source_mask=torch.ones(2, 1, 1, 5) > 0)
