"""Stages 10 and 13: loading a checkpoint folder into the learner's model, and the model's logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from companion_school.build.compared_runs import Node
from companion_school.build.isolated_modules import PlainCache, World, checkpoint
from companion_school.build.scenes.model import LAYERS, NEW, PREFIX, some_ids
from companion_school.build.scenes.parts import (
    D_FF,
    D_HEAD,
    D_MODEL,
    HEADS,
    KV_HEADS,
    TOKENS,
    VOCAB,
    decoder_nodes,
    draw,
    gave,
    given,
    marked,
    module,
)
from companion_school.build.scenes.scene import Scene, scene
from companion_school.build.trace import Recorder

_BLOCK = ("attention_norm", "attention.query", "attention.key", "attention.value", "attention.output",
          "feed_forward_norm", "feed_forward.gate", "feed_forward.inner", "feed_forward.outer")  # fmt: skip


def _drawn(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    made = {}
    for name, shape in shapes.items():
        values = draw(name, *shape, scale=1.6 / shape[-1] ** 0.5)
        made[name] = values if len(shape) > 1 else 1 + 0.2 * values
    return made


def _llama(kind: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    fields = {"model_type": kind, "vocab_size": VOCAB, "hidden_size": D_MODEL, "num_hidden_layers": LAYERS,
              "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "intermediate_size": D_FF,
              "rms_norm_eps": 1e-6, "rope_theta": 500.0, "tie_word_embeddings": False}  # fmt: skip
    kv = KV_HEADS * D_HEAD
    one = {"input_layernorm": (D_MODEL,), "self_attn.q_proj": (D_MODEL, D_MODEL), "self_attn.k_proj": (kv, D_MODEL),
           "self_attn.v_proj": (kv, D_MODEL), "self_attn.o_proj": (D_MODEL, D_MODEL),
           "post_attention_layernorm": (D_MODEL,), "mlp.gate_proj": (D_FF, D_MODEL), "mlp.up_proj": (D_FF, D_MODEL),
           "mlp.down_proj": (D_MODEL, D_FF)}  # fmt: skip
    one |= {"self_attn.q_norm": (D_HEAD,), "self_attn.k_norm": (D_HEAD,)} if kind == "qwen3" else {}
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, D_MODEL),
        "model.norm.weight": (D_MODEL,),
    }
    shapes |= {"lm_head.weight": (VOCAB, D_MODEL)}
    shapes |= {f"model.layers.{n}.{name}.weight": shape for n in range(LAYERS) for name, shape in one.items()}
    return fields, _drawn(shapes)


def _gpt2() -> tuple[dict[str, Any], dict[str, Tensor]]:
    fields = {"model_type": "gpt2", "vocab_size": VOCAB, "n_embd": D_MODEL, "n_head": HEADS, "n_layer": LAYERS,
              "n_positions": TOKENS + 2, "n_inner": D_FF, "layer_norm_epsilon": 1e-5,
              "activation_function": "gelu_new"}  # fmt: skip
    one = {"ln_1": (D_MODEL,), "attn.c_attn": (D_MODEL, 3 * D_MODEL), "attn.c_proj": (D_MODEL, D_MODEL),
           "ln_2": (D_MODEL,), "mlp.c_fc": (D_MODEL, D_FF), "mlp.c_proj": (D_FF, D_MODEL)}  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (VOCAB, D_MODEL), "wpe.weight": (TOKENS + 2, D_MODEL)}
    whole = {"ln_f": (D_MODEL,)} | {f"h.{n}.{name}": shape for n in range(LAYERS) for name, shape in one.items()}
    for name, shape in whole.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[-1:]}
    return fields, _drawn(shapes)


def _load(world: World, log: Recorder, kind: tuple[dict[str, Any], dict[str, Tensor]]) -> Any:
    """Load a checkpoint into the learner's model, mark its weights by name, and start recording its module calls."""
    with checkpoint(*kind) as folder:
        model = world["published"].load(folder)
    with log.unseen():
        weights = {name: weight.detach().double() for name, weight in model.state_dict().items()}
        log.watch(model)
        log.forget(model)
    for name, weight in weights.items():
        log.mark(name, weight)
    return model


def _at_home(nodes: list[Node]) -> list[Node]:
    """Adapt the nodes of stage 5's decoder to stage 10, where different functions compute some of them."""
    wider = {"Transformer.forward": ("Published.forward", "Transformer.forward")}
    made = []
    for node in nodes:
        normed = ("Normed.forward",) * node.key.endswith((": queries", ": keys"))
        home = (*normed, *(one for name in node.home for one in wider.get(name, (name,))))
        made.append(replace(node, home=home))
    return made


def _weights(names: list[str], *home: str) -> list[Node]:
    return [marked(name, f"the weights {name}", *home) for name in names]


_LLAMA_WEIGHTS = ["embedding.weight", "decoder.norm.weight", "head.weight"]
_LLAMA_WEIGHTS += [f"decoder.blocks.{n}.{name}.weight" for n in range(LAYERS) for name in _BLOCK]
_NORMS = [f"decoder.blocks.{n}.attention.{name}.norm.weight" for n in range(LAYERS) for name in ("query", "key")]
_FIRST: dict[str, Any] = {"queries": PREFIX, "new_keys": PREFIX, "keys": PREFIX}
_NEXT: dict[str, Any] = {"turn": 1, "queries": NEW, "new_keys": NEW, "keys": PREFIX + NEW}


@scene("for a LLaMA", _weights(_LLAMA_WEIGHTS, "llama", "load"), _at_home(decoder_nodes(LAYERS)))
def llama(world: World, log: Recorder) -> None:
    _load(world, log, _llama("llama"))(some_ids())


@scene(
    "for a Qwen 3 with caches",
    _weights([*_LLAMA_WEIGHTS, *_NORMS], "llama", "load"),
    _at_home(decoder_nodes(LAYERS, tag="first pass, ", cached=True, **_FIRST)),
    _at_home(decoder_nodes(LAYERS, tag="next pass, ", cached=True, **_NEXT)),
)
def qwen3(world: World, log: Recorder) -> None:
    model, text = _load(world, log, _llama("qwen3")), some_ids(PREFIX + NEW)
    caches = [PlainCache() for _ in range(LAYERS)]
    model(text[:, :PREFIX], caches)
    model(text[:, PREFIX:], caches)


def _gpt2_nodes() -> list[Node]:
    forward, network = "GPT2.forward", "PlainFeedForward.forward"
    nodes = [
        Node("embedding", "the output of the embedding", gave(module("embedding")), (), (forward,)),
        Node("positions", "the learned positions that are added", gave(module("positions")), (), (forward,)),
    ]
    before = "stream at first"
    find = given(module("decoder.blocks.0"))
    nodes.append(Node(before, "the stream that enters block 0", find, ("embedding", "positions"), (forward,)))
    for n in range(LAYERS):
        path, place = f"decoder.blocks.{n}", f"block {n}"
        norms = (f"{place}: attention_norm", f"{place}: feed_forward_norm")
        attention, inner, hidden = (f"{place}: {name}" for name in ("attention", "inner", "hidden"))
        stream, after, gives = (f"{place}: {name}" for name in ("stream before the network", "stream", "network"))

        def add(key: str, says: str, find: Any, parents: tuple[str, ...], *home: str, place: str = place) -> None:
            nodes.append(Node(key, says, find, parents, home, place))

        add(
            norms[0],
            "the output of attention_norm",
            gave(module(f"{path}.attention_norm")),
            (before,),
            "LayerNorm.forward",
        )
        add(
            attention,
            "the output of attention",
            gave(module(f"{path}.attention")),
            (norms[0],),
            forward,
            "Attention.forward",
        )
        add(
            stream,
            "the stream before the network",
            given(module(f"{path}.feed_forward_norm")),
            (before, attention),
            "Block.forward",
        )
        add(
            norms[1],
            "the output of feed_forward_norm",
            gave(module(f"{path}.feed_forward_norm")),
            (stream,),
            "LayerNorm.forward",
        )
        add(inner, "the inner layer", gave(module(f"{path}.feed_forward.inner")), (norms[1],), network)
        add(
            hidden,
            "the input of the outer layer",
            given(module(f"{path}.feed_forward.outer")),
            (inner,),
            "gelu",
            network,
        )
        add(gives, "the output of the network", gave(module(f"{path}.feed_forward")), (hidden,), network)
        add(after, "the stream after the block", gave(module(path)), (stream, gives), "Block.forward")
        before = after
    norm = gave(module("decoder.norm"))
    nodes.append(Node("norm", "the output of the last norm", norm, (before,), ("LayerNorm.forward",)))
    return [*nodes, Node("logits", "the logits", gave(module("")), ("norm",), (forward,))]


_KINDS = ("weight", "bias")
_GPT2_WEIGHTS = ["embedding.weight", "positions.weight", *(f"decoder.norm.{kind}" for kind in _KINDS)]
_GPT2_WEIGHTS += [f"decoder.blocks.{n}.{name}.{kind}" for n in range(LAYERS) for name in _BLOCK
                  if name != "feed_forward.gate" for kind in _KINDS]  # fmt: skip


@scene("for the activation", [marked("gelu", "the output of gelu", "gelu")])
def gelu(world: World, log: Recorder) -> None:
    log.mark("gelu", world["gpt2"].gelu(draw("x of a gelu", 2, 9, scale=2.0)))


@scene("for a GPT-2", _weights(_GPT2_WEIGHTS, "gpt2"), _gpt2_nodes())
def gpt2(world: World, log: Recorder) -> None:
    world["gpt2"]  # this executes the file, which registers GPT-2 with `load`
    _load(world, log, _gpt2())(some_ids())


LLAMA_SCENES: tuple[Scene, ...] = (llama, qwen3)
GPT2_SCENES: tuple[Scene, ...] = (gelu, gpt2)
