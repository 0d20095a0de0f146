"""The whole transformer on one page: everything that the lessons derive, using only PyTorch and safetensors.

Each part names the stage of *Your own transformer* that writes it and the lessons that derive it. Weights have the same
names as in the package, and tests show that both agree. The package has more: other norms, windows, kernels.
"""
import json
import math
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


# --- stage 2, attention.py: lessons 02 and 03 ------------------------------------------------------------------------
def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(d_head)) v for q (batch, head, query, d_head), k (batch, head, key, d_head), v (batch, head,
    key, d_v). Returns (batch, head, query, d_v). `mask` broadcasts to (batch, head, query, key); True: visible."""
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1) @ v

def causal(queries: int, keys: int) -> Tensor:
    """Causal mask, (query, key): True for keys up to the query's position. The last query aligns with the last key."""
    return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)

def split(x: Tensor, heads: int) -> Tensor:
    """(batch, token, heads * d_head) -> (batch, head, token, d_head)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)

def merge(x: Tensor) -> Tensor:
    """The inverse of `split`: (batch, head, token, d_head) -> (batch, token, heads * d_head)."""
    return x.transpose(1, 2).flatten(2)

class Attention(nn.Module):
    """Groups of `heads / kv_heads` heads share keys and values. `query`, `key`, `value`, `output`: linear, no bias."""
    def __init__(self, d_model: int, heads: int, kv_heads: int):
        super().__init__()
        self.heads, self.kv_heads, d_head = heads, kv_heads, d_model // heads
        self.query = nn.Linear(d_model, heads * d_head, bias=False)
        self.key, self.value = (nn.Linear(d_model, kv_heads * d_head, bias=False) for _ in range(2))
        self.output = nn.Linear(heads * d_head, d_model, bias=False)
    def forward(self, x: Tensor, source: Tensor | None = None, mask=None, turn=None, cache=None) -> Tensor:
        """(batch, token, d_model) -> the same. Keys and values come from `source`, (batch, key, d_model), or `x`.
        turn:  from stage 3: a function that rotates queries or keys, (batch, head, token, d_head), to their positions.
        cache: from stage 7: `cache.extend(k, v)` stores these keys and values and returns all that it has stored."""
        source = x if source is None else source
        q, k = split(self.query(x), self.heads), split(self.key(source), self.kv_heads)
        v = split(self.value(source), self.kv_heads)
        if turn is not None:
            q, k = turn(q), turn(k)
        if cache is not None:
            k, v = cache.extend(k, v)
        k, v = (y.repeat_interleave(self.heads // self.kv_heads, dim=1) for y in (k, v))
        return self.output(merge(attend(q, k, v, mask)))

# --- stage 3, positions.py: lessons 04 and 05 ------------------------------------------------------------------------
def frequencies(width: int, base: float = 10000.0) -> Tensor:
    """base^(-2 i / width) for i = 0 ... width / 2 - 1, in float64: the angle per position. `width` is even."""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)

def waves(places: Tensor, d_model: int, base: float = 10000.0) -> Tensor:
    """Sinusoidal positions, (token) -> (token, d_model): component 2 i is a sine, component 2 i + 1 its cosine."""
    angles = places[:, None] * frequencies(d_model, base).to(places.device)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).to(torch.get_default_dtype())

def rotate(x: Tensor, places: Tensor, base: float = 10000.0) -> Tensor:
    """Rotary positions: (batch, head, token, d_head) -> the same. Components i and i + d_head / 2 form a pair, which is
    rotated by its frequency times the token's position; `places`, (token), contains the positions."""
    angles = places[:, None] * frequencies(x.shape[-1], base).to(places.device)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

# --- stage 4, layers.py: lesson 06 -----------------------------------------------------------------------------------
class RMSNorm(nn.Module):
    """x / sqrt(mean of x^2 + eps) * weight over the last axis; `weight`, (d_model), is initialised to one."""
    def __init__(self, d_model: int, eps: float = 1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(d_model))
    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight

class FeedForward(nn.Module):
    """outer(silu(gate(x)) * inner(x)) for each token: three linear layers without bias, `d_ff` wide inside."""
    def __init__(self, d_model: int, d_ff: int):
        super().__init__()
        self.gate, self.inner = (nn.Linear(d_model, d_ff, bias=False) for _ in range(2))
        self.outer = nn.Linear(d_ff, d_model, bias=False)
    def forward(self, x: Tensor) -> Tensor:
        return self.outer(F.silu(self.gate(x)) * self.inner(x))

class Block(nn.Module):
    """x <- x + attention(attention_norm(x)), x <- x + feed_forward(feed_forward_norm(x)); the rest is for attention."""
    def __init__(self, d_model: int, heads: int, kv_heads: int, d_ff: int):
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(d_model), Attention(d_model, heads, kv_heads)
        self.feed_forward_norm, self.feed_forward = RMSNorm(d_model), FeedForward(d_model, d_ff)
    def forward(self, x: Tensor, mask: Tensor | None = None, turn=None, cache=None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), mask=mask, turn=turn, cache=cache)
        return x + self.feed_forward(self.feed_forward_norm(x))

def initialise(model: nn.Module, d_model: int, writes: int):
    """Draw every weight with two or more axes: the embedding with variance 1 / d_model, the others with 2 / (5
    d_model). `output` and `outer` write to the stream: their variance is divided by `writes`, the number of writes."""
    for name, weight in model.named_parameters():
        if weight.ndim > 1:
            variance = 1 / d_model if "embedding" in name else 2 / (5 * d_model)
            nn.init.normal_(weight, std=math.sqrt(variance / writes if "out" in name else variance))

# --- stage 5, model.py: lessons 01 and 08 ----------------------------------------------------------------------------
@dataclass(frozen=True)
class Config:  # given
    """The sizes of a model, and the base of its rotary positions."""
    vocab: int
    d_model: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    d_ff: int = 176
    base: float = 10000.0

class Stack(nn.Module):
    """`blocks` of the class `block`, one after the other, and a final `norm`."""
    def __init__(self, config: Config, block: type = Block):
        super().__init__()
        sizes = config.d_model, config.heads, config.kv_heads, config.d_ff
        self.blocks = nn.ModuleList(block(*sizes) for _ in range(config.layers))
        self.norm = RMSNorm(config.d_model)
    def forward(self, x: Tensor, caches=None, **inputs) -> Tensor:
        """(batch, token, d_model) -> the same. Each block gets one of the `caches`, and all get the other `inputs`."""
        for number, block in enumerate(self.blocks):
            x = block(x, cache=caches[number] if caches else None, **inputs)
        return self.norm(x)

class Transformer(nn.Module):
    """A decoder from ids to next-token logits: `embedding`, which is also the head, and the stack `decoder`."""
    def __init__(self, config: Config):
        super().__init__()
        self.config, self.embedding, self.decoder = config, nn.Embedding(config.vocab, config.d_model), Stack(config)
        initialise(self, config.d_model, writes=2 * config.layers)
    def forward(self, ids: Tensor, caches=None) -> Tensor:
        """(batch, token) -> (batch, token, vocab). With one cache per block, `ids` continue the text in the caches."""
        seen, new = len(caches[0]) if caches else 0, ids.shape[1]
        turn = partial(rotate, places=torch.arange(seen, seen + new, device=ids.device), base=self.config.base)
        x = self.decoder(self.embedding(ids), caches, mask=causal(new, seen + new).to(ids.device), turn=turn)
        return x @ self.embedding.weight.T

def count(config: Config) -> int:
    """The number of parameters of a `Transformer`, computed without creating one."""
    d_model, d_head = config.d_model, config.d_model // config.heads
    block = 2 * d_model * d_head * (config.heads + config.kv_heads) + 3 * d_model * config.d_ff + 2 * d_model
    return config.vocab * d_model + config.layers * block + d_model

# --- stage 6, training.py: lesson 09 ---------------------------------------------------------------------------------
def windows(ids: Tensor, context: int, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Inputs and targets, both (batch, context), from random positions in the ids of a text, (token)."""
    window = ids[torch.randint(len(ids) - context, (batch, 1), generator=generator) + torch.arange(context + 1)]
    return window[:, :-1], window[:, 1:]

def loss_of(logits: Tensor, targets: Tensor, ignore: int = -100) -> Tensor:
    """Mean of -ln p(target), (batch, token, vocab) and (batch, token), over the targets that are not `ignore`."""
    scored = targets != ignore
    logs = logits.log_softmax(-1).gather(-1, targets.where(scored, 0)[..., None]).squeeze(-1)
    return -logs.where(scored, 0).sum() / scored.sum()

class AdamW:
    """AdamW (Loshchilov and Hutter 2019). Weight decay is for matrices only, not for gains or the embedding."""
    def __init__(self, model: nn.Module, betas=(0.9, 0.95), eps: float = 1e-8, decay: float = 0.1):
        self.betas, self.eps, self.decay, self.updates = betas, eps, decay, 0
        self.state = [(n, p, torch.zeros_like(p), torch.zeros_like(p)) for n, p in model.named_parameters()]
    @torch.no_grad()
    def step(self, rate: float):
        """Update each weight that has a gradient, then clear the gradients."""
        self.updates += 1
        (b1, b2), t = self.betas, self.updates
        for name, weight, m, v in self.state:
            if (g := weight.grad) is not None:
                m += (1 - b1) * (g - m)
                v += (1 - b2) * (g * g - v)
                if weight.ndim > 1 and "embedding" not in name:
                    weight.sub_(rate * self.decay * weight)
                weight.sub_(rate * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + self.eps))
                weight.grad = None

@torch.no_grad()
def clip(model: nn.Module, most: float) -> float:
    """Scale all gradients together to a norm of at most `most`, and return the norm that they had."""
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    length = torch.stack([g.norm() for g in gradients]).norm().item()
    for g in gradients:
        g *= min(1.0, most / (length + 1e-6))
    return length

def rate_at(update: int, updates: int, peak: float, warmup: int) -> float:
    """Rate of update 1, 2, ...: linear to `peak` at `warmup` (at most `updates` / 5), then a cosine to peak / 20."""
    warmup = min(warmup, updates // 5)
    fall = max(0.0, (update - warmup) / (updates - warmup))
    return peak * min(1, update / max(1, warmup)) * (0.525 + 0.475 * math.cos(math.pi * fall))

def train(model: nn.Module, loss_at, updates: int, peak=3e-3, warmup=50, accumulate=1, most=1.0):
    """Yields each update's loss. `loss_at(n)`: the loss of micro-batch n = 0, 1, ...; an update has `accumulate`."""
    adam = AdamW(model)
    for update in range(1, updates + 1):
        total = 0.0
        for n in range((update - 1) * accumulate, update * accumulate):
            loss = loss_at(n) / accumulate
            loss.backward()
            total += loss.item()
        clip(model, most)
        adam.step(rate_at(update, updates, peak, warmup))
        yield total

@torch.no_grad()
def bits_per_byte(model: nn.Module, ids: Tensor, context: int, size: int) -> float:
    """Bits per byte on a text of `size` bytes with these `ids`, (token), read in windows; the first is not scored."""
    nats = 0.0
    for start in range(0, len(ids) - 1, context):
        window = ids[None, start : start + context + 1]
        nats += loss_of(model(window[:, :-1]), window[:, 1:]).item() * (window.shape[1] - 1)
    return nats / math.log(2) / size

# LLaMA's names for parts of a model and fields of its configuration, and the fields that all models here share.
NAMES = (
    ("embedding.", "model.embed_tokens."), ("decoder.norm.", "model.norm."), ("decoder.blocks.", "model.layers."),
    (".attention_norm.", ".input_layernorm."), (".feed_forward_norm.", ".post_attention_layernorm."),
    (".attention.query.", ".self_attn.q_proj."), (".attention.key.", ".self_attn.k_proj."),
    (".attention.value.", ".self_attn.v_proj."), (".attention.output.", ".self_attn.o_proj."),
    (".feed_forward.gate.", ".mlp.gate_proj."), (".feed_forward.inner.", ".mlp.up_proj."),
    (".feed_forward.outer.", ".mlp.down_proj."),
)
FIELDS = {"vocab": "vocab_size", "d_model": "hidden_size", "layers": "num_hidden_layers",
          "heads": "num_attention_heads", "kv_heads": "num_key_value_heads", "d_ff": "intermediate_size",
          "base": "rope_theta"}
ALIKE = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "rms_norm_eps": 1e-6,
         "tie_word_embeddings": True, "eos_token_id": 0}

def renamed(tensors: dict[str, Tensor], pairs) -> dict[str, Tensor]:
    """The same tensors, with `old` replaced by `new` in all names that contain it, for each (old, new) in `pairs`."""
    made = {}
    for name, tensor in tensors.items():
        for old, new in pairs:
            name = name.replace(old, new)
        made[name] = tensor
    return made

def save(model: Transformer, folder: str | Path, context: int):
    """Write a `Transformer` in LLaMA's layout. `model.safetensors` has its tensors on the CPU, named by `NAMES`, and
    `config.json` has `ALIKE`, the configuration named by `FIELDS`, and `context` as `max_position_embeddings`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.cpu().contiguous() for name, weight in model.state_dict().items()}
    save_file(renamed(weights, NAMES), folder / "model.safetensors", {"format": "pt"})
    fields = {FIELDS[mine]: value for mine, value in asdict(model.config).items()}
    told = ALIKE | fields | {"max_position_embeddings": context}
    (folder / "config.json").write_text(json.dumps(told, indent=2), "utf-8")

def load(folder: str | Path) -> Transformer:
    """Return the `Transformer` that `save` wrote into a folder."""
    fields = json.loads((Path(folder) / "config.json").read_text("utf-8"))
    model = Transformer(Config(**{mine: fields[theirs] for mine, theirs in FIELDS.items()}))
    back = [(theirs, mine) for mine, theirs in NAMES]
    model.load_state_dict(renamed(load_file(Path(folder) / "model.safetensors"), back))
    return model

# --- stage 7, generation.py: lesson 10 -------------------------------------------------------------------------------
class Cache:
    """The keys and values of earlier tokens in one layer: `keys` and `values`, (batch, kv_head, token, d_head)."""
    def __init__(self):
        self.keys, self.values = None, None
    def __len__(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]
    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values to the stored ones, and return all of them."""
        self.keys = k if self.keys is None else torch.cat([self.keys, k], dim=2)
        self.values = v if self.values is None else torch.cat([self.values, v], dim=2)
        return self.keys, self.values

def probabilities(logits: Tensor, temperature=1.0, top_k: int | None = None, top_p=1.0, min_p=0.0) -> Tensor:
    """The distribution to sample from, (vocab) -> (vocab). After the temperature, keep the `top_k` most probable ids,
    of these the fewest that together reach `top_p`, of those all at least `min_p` times as probable as the best."""
    p, order = (logits / temperature).softmax(-1).sort(descending=True)
    p = p * (torch.arange(len(p)) < (top_k or len(p)))
    p = p / p.sum()
    p = p * (p.cumsum(-1) - p < top_p) * (p >= min_p * p[0])
    return torch.zeros_like(p).scatter(-1, order, p / p.sum())

@torch.no_grad()
def generate(model, ids: list[int], new: int, stop: int | None = None, seed=0, cached=True, temperature=1.0, **choice):
    """Yields at most `new` ids after `ids`, and ends before `stop`. Temperature 0 takes the most probable id; `choice`
    goes to `probabilities`. With caches, each pass reads only the new ids; without them, the whole text again."""
    generator, device = torch.Generator().manual_seed(seed), model.embedding.weight.device
    text = unread = torch.tensor([ids], device=device)
    caches = [Cache() for _ in model.decoder.blocks] if cached else None
    for _ in range(new):
        logits = model(unread if cached else text, caches)[0, -1].cpu()
        p = probabilities(logits, temperature or 1.0, **choice)
        token = torch.multinomial(p, 1, generator=generator) if temperature else logits.argmax(-1, keepdim=True)
        if token.item() == stop:
            return
        yield token.item()
        unread, text = token[None].to(device), torch.cat([text, token[None].to(device)], dim=1)

# --- stage 8, translation.py: lessons 07, 08 and 09 ------------------------------------------------------------------
class CrossBlock(Block):
    """A block with x + cross(cross_norm(x)) before its network; `source` is (batch, key, d_model), `seen` its mask."""
    def __init__(self, d_model: int, heads: int, kv_heads: int, d_ff: int):
        super().__init__(d_model, heads, kv_heads, d_ff)
        self.cross_norm, self.cross = RMSNorm(d_model), Attention(d_model, heads, kv_heads)
    def forward(self, x: Tensor, mask=None, turn=None, cache=None, source=None, seen=None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), mask=mask, turn=turn, cache=cache)
        x = x + self.cross(self.cross_norm(x), source, seen)
        return x + self.feed_forward(self.feed_forward_norm(x))

class Translator(nn.Module):
    """An `encoder` reads, a `decoder` writes; they share an `embedding`. Decoder layers write to the stream 3 times."""
    def __init__(self, config: Config):
        super().__init__()
        self.config, self.embedding = config, nn.Embedding(config.vocab, config.d_model)
        self.encoder, self.decoder = Stack(config), Stack(config, CrossBlock)
        initialise(self, config.d_model, writes=3 * config.layers)
    def turn(self, ids: Tensor):
        """The function that rotates queries or keys to the positions 0, 1, ... of these ids, for `Attention`."""
        return partial(rotate, places=torch.arange(ids.shape[1], device=ids.device), base=self.config.base)
    def encode(self, source: Tensor, real: Tensor) -> Tensor:
        """Ids and `real` (False for padding), (batch, key) -> (batch, key, d_model). All tokens see the real ones."""
        return self.encoder(self.embedding(source), mask=real[:, None, None], turn=self.turn(source))
    def forward(self, source: Tensor, real: Tensor, target: Tensor, memory: Tensor | None = None) -> Tensor:
        """The logits after each position of `target`, (batch, token). `memory` is the result of `encode`."""
        memory = self.encode(source, real) if memory is None else memory
        seen, mask = real[:, None, None], causal(target.shape[1], target.shape[1]).to(target.device)
        x = self.decoder(self.embedding(target), mask=mask, turn=self.turn(target), source=memory, seen=seen)
        return x @ self.embedding.weight.T

def forced(target: Tensor, start: int) -> Tensor:
    """The decoder's input for teacher forcing: `start`, then `target`, (batch, token), without its last token."""
    return torch.cat([torch.full_like(target[:, :1], start), target[:, :-1]], dim=1)

@torch.no_grad()
def translate(model: Translator, source: Tensor, real: Tensor, start: int, stop: int, most: int) -> Tensor:
    """Greedy translation, (batch, key) -> (batch, most); a row that has ended is filled with `stop`."""
    memory, target = model.encode(source, real), torch.full_like(source[:, :1], start)
    for _ in range(most):
        following = model(source, real, target, memory)[:, -1:].argmax(-1)
        target = torch.cat([target, following.where(target[:, 1:].ne(stop).all(1, True), stop)], dim=1)
    return target[:, 1:]

# --- stage 9, experts.py: lesson 11 ----------------------------------------------------------------------------------
def route(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """(token, expert) -> weights and indices of the `top_k` best experts, (token, top_k): a softmax over only these."""
    best, chosen = logits.topk(top_k, dim=-1)
    return best.softmax(-1), chosen

def within(chosen: Tensor, experts: int, capacity: float) -> Tensor:
    """Which choices, (token, top_k), fit: an expert takes its first ceil(capacity * choices / experts) visits."""
    visits = F.one_hot(chosen.flatten(), experts)
    before = (visits.cumsum(0) - visits)[torch.arange(len(visits)), chosen.flatten()]
    return (before < math.ceil(capacity * len(visits) / experts)).view_as(chosen)

def balance(logits: Tensor, top_k: int) -> Tensor:
    """The Switch loss: experts * sum over experts of (share of choices) * (mean probability). It is 1 if balanced."""
    share = F.one_hot(route(logits, top_k)[1], logits.shape[-1]).sum(1).to(logits.dtype).mean(0) / top_k
    return logits.shape[-1] * (share * logits.softmax(-1).mean(0)).sum()

class Experts(nn.Module):
    """A mixture of experts: each token visits `top_k` networks. `router` is linear without bias, `gate` and `inner` are
    (expert, d_model, d_ff), `outer` is (expert, d_ff, d_model). `logits`, (token, expert): the last scores."""
    def __init__(self, d_model: int, d_ff: int, experts: int, top_k: int = 2, capacity: float | None = None):
        super().__init__()
        self.top_k, self.capacity, self.router = top_k, capacity, nn.Linear(d_model, experts, bias=False)
        self.gate, self.inner = (nn.Parameter(torch.empty(experts, d_model, d_ff)) for _ in range(2))
        self.outer = nn.Parameter(torch.empty(experts, d_ff, d_model))
    def forward(self, x: Tensor) -> Tensor:
        """(batch, token, d_model) -> the same: the weighted sum of the outputs of each token's experts."""
        tokens = x.flatten(0, 1)
        self.logits = self.router(tokens)  # of this call, for `balance` and for monitoring the load
        weights, chosen = route(self.logits, self.top_k)
        if self.capacity is not None:
            weights = weights * within(chosen, len(self.gate), self.capacity)
        out = torch.zeros_like(tokens)
        for expert in range(len(self.gate)):
            token, place = (chosen == expert).nonzero(as_tuple=True)
            gate, inner = tokens[token] @ self.gate[expert], tokens[token] @ self.inner[expert]
            out = out.index_add(0, token, weights[token, place, None] * ((F.silu(gate) * inner) @ self.outer[expert]))
        return out.view_as(x)

def put_experts(model: Transformer, experts: int, top_k: int = 2, capacity: float | None = None) -> Transformer:
    """Replace every feed-forward network of the model by a mixture; all weights are drawn again. Returns the model."""
    for block in model.decoder.blocks:
        block.feed_forward = Experts(model.config.d_model, model.config.d_ff, experts, top_k, capacity)
    initialise(model, model.config.d_model, writes=2 * model.config.layers)
    return model
