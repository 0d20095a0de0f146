"""Look inside a small published model in a lesson, if it is in the local cache or the reader agrees to download it.

    real = opened("smollm2-135m", fetch_it=False)
    if real is not None:
        real.show("The cat sat on the mat. The cat sat on the")

Nothing is downloaded unless `fetch_it` is true. If the model is not available, the output says so, and the lesson
continues without it.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from companion.costs import account
from companion.data.published_tokenizers import PublishedTokenizer, load_tokenizer
from companion.families.pretrained import load_pretrained
from companion.files.published.fetching import at_hand, get
from companion.generation.generate import complete
from companion.generation.sampling import Sampling
from companion.ground.fields import require
from companion.layers.attention import Attention, attention_weights
from companion.layers.cache import KVCache
from companion.transformer import Transformer
from companion_school.study import figures

MODELS = {
    "gpt2": ("openai-community/gpt2", 550),
    "smollm2-135m": ("HuggingFaceTB/SmolLM2-135M", 270),
    "qwen3-0.6b": ("Qwen/Qwen3-0.6B-Base", 1200),
}
"""For each model, its name on the hub and the approximate size of the one-time download in megabytes."""
WIDTH = 78


@dataclass(frozen=True)
class Reading:
    """The results of a forward pass over a text.

    Attributes:
        tokens: Text of each token.
        logits: Logits for the next token at each position (token, vocab).
        attention: Attention weights of each layer (head, query, key).
        cache: KV cache with the keys and values of all tokens.
    """

    tokens: list[str]
    logits: Tensor
    attention: list[Tensor]
    cache: KVCache


@dataclass(frozen=True)
class Published:
    """A published decoder and its tokenizer."""

    name: str
    model: Transformer
    tokenizer: PublishedTokenizer

    @torch.no_grad()
    def read(self, text: str) -> Reading:
        """Run one forward pass over a text, and record the attention weights."""
        ids = self.tokenizer.encode(text)
        assert self.model.decoder is not None
        seen: list[Tensor] = []

        def note(layer: nn.Module, given: tuple[Tensor], named: dict[str, Tensor]) -> None:
            assert isinstance(layer, Attention)
            q, k, _ = layer.project(given[0], named["positions"])
            width, cap = layer.score_width, layer.softcap
            weights = attention_weights(q, k, causal=True, window=layer.window, score_width=width, softcap=cap)
            seen.append(weights[0])

        layers = [block.attention for block in self.model.decoder.blocks]
        hooks = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in layers]  # type: ignore[union-attr]
        try:
            out = self.model(torch.tensor([ids]), cache=KVCache.create(self.model.config, 1, len(ids)))
        finally:
            for hook in hooks:
                hook.remove()
        assert out.cache is not None
        return Reading([self.tokenizer.spell([i]) for i in ids], out.logits[0].float(), seen, out.cache)

    def write(self, prompt: str, tokens: int = 24) -> str:
        """Return the greedy continuation of a prompt, with at most `tokens` tokens."""
        ids = self.tokenizer.encode(prompt)
        return self.tokenizer.decode(complete(self.model, [ids], max_new_tokens=tokens, sampling=Sampling(0))[0])

    def show(self, prompt: str, tokens: int = 24) -> None:
        """Print the model's continuation, the most probable next tokens and the cache size, and draw two heads."""
        config, reading = self.model.config, self.read(prompt)
        print(f"{self.name}: {account.parameters(config).total:,} parameters, {config.layers} layers")
        print(textwrap.fill(f"writes: {prompt}|{self.write(prompt, tokens)}", WIDTH))
        chances = reading.logits[-1].softmax(-1)
        print("token            logit  chance")
        for token in chances.topk(min(5, len(chances))).indices.tolist():
            word = repr(self.tokenizer.spell([token]))
            print(f"{word:14}{reading.logits[-1, token]:8.2f}{chances[token]:8.4f}")
        needed = (Sampling(top_p=0.9).probabilities(reading.logits) > 0).sum(-1).sort().values
        print(f"tokens to a chance of 0.9: {needed[0]} to {needed[-1]}, mostly at most {needed[len(needed) // 2]}")
        size = account.cache_bytes(config, 1, dtype=torch.bfloat16)
        print(f"KV cache: {size:,} bytes a token in bf16, {size * config.context / 2**20:,.0f} MiB at full context")
        draw_heads(reading, self.name)


def opened(name: str, *, fetch_it: bool = False) -> Published | None:
    """Open a published model from the hub's cache on this machine, or download it. If that fails, print why.

    Args:
        name: A key of `MODELS`.
        fetch_it: Download the model if it is not in the cache.

    Returns:
        The model, or `None` if it is not in the cache or cannot be opened.

    Raises:
        ValueError: The name is not in `MODELS`.
    """
    require(name in MODELS, "name", name, f"one of {', '.join(MODELS)}")
    hub, megabytes = MODELS[name]
    try:
        found = at_hand(hub) or (get(hub) if fetch_it else None)
        if found is None:
            print(f"{hub} is not on this machine; the lesson continues.")
            print(f"To see it: fetch_it=True (about {megabytes:,} MB, once), and run this cell again.")
            return None
        return Published(hub, load_pretrained(found.folder, dtype=torch.float32).eval(), load_tokenizer(found.folder))
    except ValueError as error:
        print(textwrap.fill(f"{error}", WIDTH))
        print("The lesson continues without it.")
        return None


def previous_and_induction(reading: Reading) -> list[tuple[str, int, int, float]]:
    """Find the strongest previous-token head and the strongest induction head of the model (lesson 03).

    The first head puts the largest mean weight on the previous token. The second head puts it on the token that
    followed the last occurrence of the current token, so it can be found only in a text with repetitions.

    Returns:
        A tuple for each head that was found: a description of its target, the layer, the head's index, and the mean
        weight.
    """
    count = len(reading.tokens)
    last: dict[str, int] = {}
    follows = []
    for at, token in enumerate(reading.tokens):
        if token in last and last[token] + 1 < at:
            follows.append((at, last[token] + 1))
        last[token] = at
    wanted = {"the token before": [(at, at - 1) for at in range(1, count)], "what followed last time": follows}
    found = []
    for what, pairs in wanted.items():
        if pairs:
            query, key = torch.tensor(pairs).T
            means = torch.stack([weights[:, query, key].mean(-1) for weights in reading.attention])
            layer, head = divmod(int(means.argmax()), means.shape[1])
            found.append((what, layer, head, float(means[layer, head])))
    return found


def draw_heads(reading: Reading, name: str) -> None:
    """Draw the attention weights of the heads that `previous_and_induction` finds."""
    found = previous_and_induction(reading)
    words = [token.strip() or "␣" for token in reading.tokens]
    fig, axes = figures.subplots(1, len(found), width=10.0 if len(found) > 1 else 5.4, height=5.0)
    for ax, (what, layer, head, mean) in zip([axes] if len(found) == 1 else axes, found, strict=True):
        title = f"layer {layer}, head {head}: {what} ({mean:.2f})"
        weights = reading.attention[layer][head]
        figures.attention_map(ax, weights, queries=words, keys=words, title=title, values=False)
    figures.show(fig, alt=f"Attention weights of {len(found)} heads of {name}, queries down and keys across.")
