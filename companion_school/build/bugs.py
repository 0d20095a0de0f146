"""Common bugs, inserted into the reference one at a time to test that each is located at the right line.

They also help to diagnose learners' code: if a learner's tensor equals the tensor that a bug produces, the message says
how to fix that bug.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property

from companion_school.build.origin import Origin
from companion_school.build.parts import patched, references
from companion_school.build.stages import STAGES
from companion_school.build.stubs import reference


@dataclass(frozen=True)
class Bug:
    """A common bug, as a patch to the reference.

    Attributes:
        stage: The stage whose check exposes the bug.
        file: The stage whose file contains it.
        name: A short description.
        mend: The fix, worded as the end of the sentence "it is right once ...".
        pieces: Pieces of the reference's source text, each paired with its replacement.
        tensors: Keys (without block names) of the nodes that may be reported as the first difference.
        function: Qualified name of the function that contains the bug.
        training: Prefix of the key of the first node that differs in a whole training run; empty if the bug is not
            tested in such a run.
    """

    stage: int
    file: int
    name: str
    mend: str
    pieces: tuple[tuple[str, str], ...]
    tensors: tuple[str, ...]
    function: str
    training: str = ""

    @cached_property
    def sources(self) -> dict[str, str]:
        """Source text of the reference files that the stage needs, with the bug inserted, keyed by module name."""
        return references(STAGES[self.stage]) | {STAGES[self.file].module: patched(self.file, self.pieces)}

    @cached_property
    def lines(self) -> list[int]:
        """The line numbers of the bug in the patched file."""
        old, new = reference(self.file).splitlines(), patched(self.file, self.pieces).splitlines()
        found: list[int] = []
        for what, _, _, start, end in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if what == "delete":
                found += [start, start + 1]  # the lines around the missing code
            elif what != "equal":
                opens = new[end - 1].endswith(":")  # a wrong condition becomes visible in the first line of its block
                found += range(start + 1, end + 1 + opens)
        return found

    def is_placed(self, origin: Origin | None) -> bool:
        """Return True if `origin` is on one of the bug's lines or, if the bug deletes code, in the bug's function."""
        if origin is None or origin.place.file != STAGES[self.file].file:
            return False
        missing = any(not new.strip() for _, new in self.pieces)
        return any(origin.holds(origin.place.file, at) for at in self.lines) or (
            missing and origin.place.function == self.function
        )


def _bug(stage: int, file: int, name: str, mend: str, old: str, new: str, tensors: str, function: str,
         *more: str, training: str = "") -> Bug:  # fmt: skip
    pieces = ((old, new), *zip(more[::2], more[1::2], strict=True))
    return Bug(stage, file, name, mend, pieces, tuple(tensors.split("|")), function, training)


BUGS = (
    _bug(2, 2, "scale missing", "the scores are divided by the square root of d_head", " / math.sqrt(q.shape[-1])", "",
         "scores", "attend"),
    _bug(5, 2, "divided by sqrt(d_model)", "the scores are divided by the square root of d_head, not of d_model",
         "math.sqrt(q.shape[-1])", "math.sqrt(q.shape[-1] * q.shape[1])", "scores", "attend"),
    _bug(2, 2, "softmax over the queries", "the softmax runs over the keys, the last axis", ".softmax(-1)",
         ".softmax(-2)", "weights", "attend"),
    _bug(2, 2, "mask inverted", "True in the mask means that a query may look", "~mask", "mask", "weights", "attend"),
    _bug(5, 2, "mask off by one", "a query may look at its own position, too", "tril(keys - queries)",
         "tril(keys - queries - 1)", "causal|mask handed", "causal"),
    _bug(7, 2, "causal mask aligned at the top left", "the last query is at the position of the last key",
         "tril(keys - queries)", "tril()", "causal|mask handed", "causal"),
    _bug(5, 2, "heads split along the wrong axis", "the heads are split off the last axis and moved before tokens",
         "x.unflatten(-1, (heads, -1)).transpose(1, 2)",
         "x.reshape(x.shape[0], heads, x.shape[1], -1)", "queries in heads|keys in heads|values in heads", "split"),
    _bug(2, 2, "heads merged without swapping the axes",
         "the token axis comes before the head axis when heads are merged",
         "x.transpose(1, 2).flatten(2)", "x.reshape(x.shape[0], x.shape[2], -1)", "merged", "merge"),
    _bug(5, 2, "repeat instead of repeat_interleave", "neighbouring query heads share a key: repeat_interleave",
         "y.repeat_interleave(self.heads // self.kv_heads, dim=1)",
         "y.repeat(1, self.heads // self.kv_heads, 1, 1)", "keys shared|values shared", "Attention.forward"),
    _bug(5, 2, "queries turned, keys not", "keys are rotated like queries", "q, k = turn(q), turn(k)",
         "q = turn(q)", "keys turned", "Attention.forward"),
    _bug(5, 2, "values turned too", "values are not rotated", "q, k = turn(q), turn(k)",
         "q, k, v = turn(q), turn(k), turn(v)", "values shared", "Attention.forward"),
    _bug(2, 2, "mask not handed on", "attend is given the mask", "attend(q, k, v, mask)))", "attend(q, k, v)))",
         "mask", "Attention.forward"),
    _bug(8, 2, "values computed from x, not the source", "keys and values are both computed from the source",
         "self.value(source)", "self.value(x)", "values", "Attention.forward"),
    _bug(3, 3, "frequencies for half the width", "the exponent is divided by width, not by half of it",
         "dtype=torch.float64) / width)", "dtype=torch.float64) / (width // 2))", "frequencies", "frequencies"),
    _bug(5, 3, "frequencies of d_model", "the frequencies are computed from d_head",
         "frequencies(x.shape[-1], base)",
         "frequencies(x.shape[-1] * x.shape[1], base)[: x.shape[-1] // 2]", "width",
         "rotate"),
    _bug(3, 3, "base not passed on by rotate", "the base is passed to frequencies",
         "frequencies(x.shape[-1], base)", "frequencies(x.shape[-1])", "base", "rotate"),
    _bug(3, 3, "base not passed on by waves", "the base is passed to frequencies",
         "frequencies(d_model, base)", "frequencies(d_model)", "base", "waves"),
    _bug(3, 3, "pairs interleaved", "components i and i + d_head / 2 form a pair", "a, b = x.chunk(2, dim=-1)",
         "a, b = x[..., 0::2], x[..., 1::2]", "turned|queries turned", "rotate"),
    _bug(5, 3, "turned the other way", "the first half is a cos - b sin",
         "[a * cos - b * sin, a * sin + b * cos]", "[a * cos + b * sin, b * cos - a * sin]",
         "turned|queries turned", "rotate"),
    _bug(3, 3, "sines and cosines in halves", "sines and cosines of the waves alternate",
         "torch.stack([angles.sin(), angles.cos()], dim=-1)", "torch.stack([angles.sin(), angles.cos()], dim=1)",
         "waves", "waves"),
    _bug(4, 4, "eps outside the root", "eps is added under the square root",
         "(x.square().mean(-1, keepdim=True) + self.eps).rsqrt()",
         "(1 / (x.square().mean(-1, keepdim=True).sqrt() + self.eps))", "norm", "RMSNorm.forward"),
    _bug(5, 4, "mean subtracted in the norm", "RMSNorm subtracts no mean", "x * (x.square().mean(-1, keepdim=True)",
         "(x - x.mean(-1, keepdim=True)) * (x.square().mean(-1, keepdim=True)",
         "attention_norm|norm", "RMSNorm.forward"),
    _bug(4, 4, "norm over the tokens", "the norm takes the mean over the last axis", "mean(-1, keepdim=True)",
         "mean(-2, keepdim=True)", "norm", "RMSNorm.forward"),
    _bug(5, 4, "gate and inner swapped", "silu is applied to the gate", "F.silu(self.gate(x)) * self.inner(x)",
         "F.silu(self.inner(x)) * self.gate(x)", "hidden", "FeedForward.forward"),
    _bug(5, 4, "norm after instead of before", "the norm comes before attention and does not change the stream",
         "x = x + self.attention(self.attention_norm(x), mask=mask, turn=turn, cache=cache)",
         "x = self.attention_norm(x + self.attention(x, mask=mask, turn=turn, cache=cache))",
         "into attention|into attention_norm", "Block.forward"),
    _bug(5, 4, "residual missing", "the output of attention is added to the stream",
         "x = x + self.attention(", "x = self.attention(", "stream before the network", "Block.forward"),
    _bug(4, 4, "network reads the stream before attention", "the network's norm reads the stream after attention",
         "x = x + self.attention(", "y = x + self.attention(", "stream before the network", "Block.forward",
         "return x + self.feed_forward(self.feed_forward_norm(x))",
         "return y + self.feed_forward(self.feed_forward_norm(x))"),
    _bug(4, 4, "output matrices initialized too large", "output and outer get a smaller variance",
         'variance / writes if "out" in name else variance', "variance",
         "attention.output.weight|feed_forward.outer.weight", "initialise"),
    _bug(3, 3, "waves begin at place 1", "positions begin at 0", "angles = places[:, None] * frequencies(d_model",
         "angles = (places[:, None] + 1) * frequencies(d_model", "waves", "waves"),
    _bug(7, 5, "positions off by one after a cache", "the first new token comes right after the cache's last token",
         "torch.arange(seen, seen + new, device=ids.device)",
         "torch.arange(seen + bool(seen), seen + bool(seen) + new, device=ids.device)", "positions",
         "Transformer.forward"),
    _bug(5, 5, "head tied without a transpose", "the head is the transposed embedding",
         "x @ self.embedding.weight.T", "x @ self.embedding.weight.reshape(x.shape[-1], -1)", "logits",
         "Transformer.forward"),
    _bug(5, 5, "embedding scaled by sqrt(d_model)", "the embedding's vectors are not scaled",
         "self.decoder(self.embedding(ids), caches", "self.decoder(self.embedding(ids) * ids.shape[1] ** 0.5, caches",
         "stream at first", "Transformer.forward"),
    _bug(5, 5, "last norm forgotten", "the last norm comes before the logits", "return self.norm(x)", "return x",
         "decoder|norm|into norm", "Stack.forward"),
    _bug(5, 5, "base not handed on", "rotate is given the configuration's base", ", base=self.config.base)", ")",
         "base", "Transformer.forward"),
    _bug(7, 5, "cache position stuck at 0", "positions continue after the tokens in the cache",
         "torch.arange(seen, seen + new, device=ids.device)", "torch.arange(new, device=ids.device)", "positions",
         "Transformer.forward"),
    _bug(6, 6, "loss over filler", "ignored targets are not counted", "/ scored.sum()", "/ scored.numel()", "loss",
         "loss_of"),
    _bug(6, 6, "targets not shifted", "the targets are the ids shifted by one position",
         "return window[:, :-1], window[:, 1:]", "return window[:, :-1], window[:, :-1]",
         "targets", "windows"),
    _bug(6, 6, "gradients not cleared", "the step clears the gradients", "                weight.grad = None\n", "",
         "left|gradients before batch 2", "AdamW.step", training="gradients before batch 2"),
    _bug(6, 6, "decay on the embedding", "the embedding does not decay", 'weight.ndim > 1 and "embedding" not in name',
         "weight.ndim > 1", "weights, embedding|update 1, embedding", "AdamW.step",
         training="update 1: weights, embedding"),
    _bug(6, 6, "bias correction missing", "both moments are divided by 1 - b^t",
         "(m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + self.eps)", "m / (v.sqrt() + self.eps)",
         "update 1, embedding", "AdamW.step", training="update 1: weights, embedding"),
    _bug(6, 6, "second moment of g, not of its square", "the second moment averages g * g", "(g * g - v)", "(g - v)",
         "second", "AdamW.step"),
    _bug(6, 6, "each gradient clipped by itself", "all gradients are scaled by the same factor",
         "g *= min(1.0, most / (length + 1e-6))", "g *= min(1.0, most / (g.norm() + 1e-6))", "clipped, embedding",
         "clip", training="update 1: clipped, "),
    _bug(6, 6, "accumulated losses not divided", "each batch's loss is divided by the number of batches in an update",
         "loss = loss_at(n) / accumulate", "loss = loss_at(n)", "update 1: gradients, embedding", "train",
         training="update 1: gradients, embedding"),
    _bug(6, 6, "warm-up begins a step late", "the first update already has a rate", "min(1, update / max(1, warmup))",
         "min(1, (update - 1) / max(1, warmup))", "while it rises", "rate_at", training="update 1: rate"),
    _bug(7, 7, "cache drops the old keys", "new keys come after the cached ones",
         "torch.cat([self.keys, k], dim=2)", "k", "keys 2", "Cache.extend"),
    _bug(7, 7, "new keys put before the old ones", "new keys come after the cached ones",
         "torch.cat([self.keys, k], dim=2)", "torch.cat([k, self.keys], dim=2)", "keys 2", "Cache.extend"),
    _bug(7, 7, "softmax before top-k not renormalised", "after top_k the probabilities add up to 1 again",
         "    p = p / p.sum()\n", "", "p", "probabilities"),
    _bug(7, 7, "temperature multiplied", "logits are divided by the temperature", "(logits / temperature)",
         "(logits * temperature)", "p", "probabilities"),
    _bug(7, 7, "cached text is read again", "with caches the model reads only the new tokens",
         "unread, text = token[None].to(device), torch.cat([text, token[None].to(device)], dim=1)",
         "unread = text = torch.cat([text, token[None].to(device)], dim=1)", "read 1|read 3", "generate"),
    _bug(8, 8, "cross-attention's mask forgotten", "cross-attention is given the mask of the source's real tokens",
         "self.cross(self.cross_norm(x), source, seen)", "self.cross(self.cross_norm(x), source)", "mask handed",
         "CrossBlock.forward"),
    _bug(8, 8, "encoder masked causally", "in the encoder every token sees all real tokens",
         "mask=real[:, None, None], turn=self.turn(source)",
         "mask=causal(source.shape[1], source.shape[1]), turn=self.turn(source)", "mask handed", "Translator.encode"),
    _bug(8, 8, "shift lost", "the decoder reads the start token and all target tokens but the last",
         "torch.cat([torch.full_like(target[:, :1], start), target[:, :-1]], dim=1)", "target", "forced", "forced"),
    _bug(8, 8, "shift doubled", "the targets are shifted once",
         "torch.full_like(target[:, :1], start), target[:, :-1]",
         "torch.full_like(target[:, :2], start), target[:, :-2]", "forced", "forced"),
    _bug(8, 8, "cross-attention's residual missing", "the output of cross-attention is added to the stream",
         "x = x + self.cross(", "x = self.cross(", "stream before the network", "CrossBlock.forward"),
    _bug(9, 9, "softmax before top-k, not renormalised", "the softmax runs over the chosen experts only",
         "best, chosen = logits.topk(top_k, dim=-1)", "best, chosen = logits.softmax(-1).topk(top_k, dim=-1)",
         "weights", "route", "best.softmax(-1), chosen", "best, chosen"),
    _bug(9, 9, "capacity counted by tokens", "an expert has ceil(capacity * choices / experts) slots",
         "math.ceil(capacity * len(visits) / experts)", "math.ceil(capacity * len(chosen) / experts)", "kept",
         "within"),
    _bug(9, 9, "experts' answers not weighted", "each expert's output is multiplied by its weight",
         "weights[token, place, None] * ((F.silu(gate) * inner) @ self.outer[expert])",
         "(F.silu(gate) * inner) @ self.outer[expert]", "network", "Experts.forward"),
    _bug(9, 9, "capacity not used", "choices without a slot have no weight",
         "weights = weights * within(chosen, len(self.gate), self.capacity)",
         "within(chosen, len(self.gate), self.capacity)", "network", "Experts.forward"),
    _bug(9, 9, "shares of the choices not normalized", "the shares of the choices add up to 1", ".mean(0) / top_k",
         ".mean(0)", "balance", "balance"),
    _bug(12, 12, "absorbed scores scaled by the cached width", "they are divided by sqrt(d_k + d_rope) here, too",
         "asks = asks * math.sqrt(asks.shape[-1] / q.shape[-1])", "asks = asks * 1.0", "scores", "absorbed"),
    _bug(12, 12, "rotated part missing from the keys", "the rotated key comes after every head's own key",
         "k.expand(-1, len(U_k), -1, -1)], dim=-1)", "0 * k.expand(-1, len(U_k), -1, -1)], dim=-1)",
         "every head's keys", "expanded"),
    _bug(12, 12, "whole query turned", "only the last d_rope components of a query are rotated",
         "q = torch.cat([q[..., : self.d_head], turn(q[..., self.d_head :])], dim=-1)", "q = turn(q)", "queries turned",
         "LatentAttention.forward"),
    _bug(12, 12, "latent not normed", "the latent goes through latent_norm", "c = self.latent_norm(c)", "c = c + 0",
         "latents asked", "LatentAttention.forward"),
    _bug(12, 12, "rotated after caching", "keys are rotated before they are cached",
         "            k = turn(k)\n        if cache is not None:\n            c, k = cache.extend(c, k)",
         "        if cache is not None:\n            c, k = cache.extend(c, k)\n        if turn is not None:\n"
         "            k = turn(k)", "keys put", "LatentAttention.forward"),
    _bug(12, 12, "U_k and U_v not separated by head", "up holds, for each head, U_k and then U_v",
         "unflatten(0, (self.heads, -1)).chunk(2, dim=1)", "unflatten(0, (2, self.heads, -1))", "U_k",
         "LatentAttention.forward"),
    _bug(12, 12, "bytes of one layer", "every layer has a cache", "return config.layers * tokens", "return tokens",
         "keys and values", "bytes_kept"),
    _bug(10, 10, "untied head left out", "a model with a separate head uses this head and not its embedding",
         "(self.embedding if self.head is None else self.head).weight.T", "self.embedding.weight.T", "logits",
         "Published.forward"),
    _bug(13, 13, "learned positions not added", "the learned positions are added to the embedding",
         "self.embedding(ids) + self.positions(", "self.embedding(ids) + 0 * self.positions(", "stream at first",
         "GPT2.forward"),
    _bug(14, 14, "nothing taken off", "what the key already reads is subtracted", "missing = value - key @ state",
         "missing = value + 0 * (key @ state)", "read", "delta_rule"),
    _bug(15, 15, "corrected from p", "the correction is drawn from the part of p that exceeds q",
         "rest = (p - q).clamp(min=0)", "rest = 1.0 * p", "correction", "correction"),
    _bug(16, 16, "levels cut off", "levels are rounded to the nearest integer",
         ".round().to(torch.int8)", ".to(torch.int8)", "levels", "quantize"),
    _bug(17, 17, "scale lost", "the change is multiplied by alpha / rank", "+ self.scale * self.up(self.down(x))",
         "+ self.up(self.down(x))", "sum", "LoRA.forward"),
    _bug(18, 18, "lens without the norm", "the stream goes through the last norm", "model.decoder.norm(stream) @",
         "stream @", "lens", "lens"),
)  # fmt: skip


def is_named(bug: Bug, key: str) -> bool:
    """Return True if the bug may make this node the first wrong tensor."""
    return any(key == tensor or key.endswith((f": {tensor}", f", {tensor}")) for tensor in bug.tensors)
