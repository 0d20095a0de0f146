"""Examination questions on lessons 15 to 19."""

from __future__ import annotations

from random import Random

from companion_school.course.exam.exam_question import Asked, broken, number, reason

# --- 15, the shrinking cache


@number("15.latent")
def _(draw: Random) -> Asked:
    layers, heads = draw.choice([24, 32, 60]), draw.choice([32, 64, 128])
    rank, turned = 128 * draw.randint(2, 5), draw.choice([32, 64])
    text = (
        f"A decoder of {layers} layers caches for each token a latent of {rank} elements and a rotated key of "
        f"{turned}. From these, {heads} heads compute keys of 128 elements plus the rotated ones, and values of 128 "
        "elements. How many times as many elements would the same heads cache in full?"
    )
    full = heads * (128 + turned + 128)
    key = f"${heads} \\cdot (128 + {turned} + 128) / ({rank} + {turned})$; the layers cancel."
    return Asked(text, key, full / (rank + turned))


@number("15.local", points=2)
def _(draw: Random) -> Asked:
    groups, window = draw.choice([4, 6, 8]), 512 * draw.randint(1, 4)
    local, tokens = draw.choice([3, 5]), 16384 * draw.randint(2, 6)
    layers = groups * (local + 1)
    text = (
        f"Of {layers} layers, one in {local + 1} is global, and the others see a window of {window:,} tokens. How "
        f"many tokens do all layers together cache for a text of {tokens:,}?"
    )
    key = f"${groups} \\cdot {tokens} + {groups * local} \\cdot {window}$."
    return Asked(text, key, groups * tokens + groups * local * window)


reason(
    "15.rotary",
    "Latent attention computes no keys during generation. How is that possible, why do rotary positions prevent it, "
    "and what is done about that?",
    "The product q . (U c) is (U^T q) . c: the matrix is applied to the query once, which then attends to the "
    "latents directly. In the same way, the matrix for the values is applied once, to the average of the latents (2). "
    "With a rotation between query and matrix, the projected query is different for each distance, so nothing is "
    "saved (1). A small separate key, shared by all heads, is rotated and cached beside the latent, and its product "
    "is added to the score (1).",
)
broken(
    "15.sink",
    "This function returns attention weights with a learned sink. `scores` is (head, query, key), `sink` is (head).",
    """
def weights(scores, sink):
    powers = scores.exp()
    total = powers.sum(-1, keepdim=True) + sink[:, None, None]
    return powers / total
""",
    "total = powers.sum(-1, keepdim=True) + sink[:, None, None]",
    "total = powers.sum(-1, keepdim=True) + sink[:, None, None].exp()",
    "made = weights(torch.zeros(1, 1, 2), torch.zeros(1))\nassert torch.allclose(made, torch.full((1, 1, 2), 1 / 3))\n"
    "assert weights(torch.zeros(1, 1, 2), torch.tensor([-3.0])).sum() < 1",
    "The sink is a logit, so its exponential belongs in the denominator. As it is, a sink of 0 does nothing, and a "
    "negative one makes rows that sum to more than one, or to a negative number. (A maximum should be subtracted as "
    "well.)",
)

# --- 16, the block of today


@number("16.bound")
def _(draw: Random) -> Asked:
    width = draw.choice([64, 96, 128, 256])
    of_q, of_k = draw.randint(10, 25) / 10, draw.randint(10, 25) / 10
    text = (
        f"Queries and keys of {width} components go through RMS norms. No gain for the queries is above {of_q}, and "
        f"none for the keys is above {of_k}. What is the largest possible scaled score?"
    )
    key = (
        f"A normed row has a length of at most $\\sqrt{{{width}}}$ times the largest gain: ${of_q} \\cdot {of_k} "
        f"\\cdot \\sqrt{{{width}}}$."
    )
    return Asked(text, key, of_q * of_k * width**0.5)


@number("16.met", points=2)
def _(draw: Random) -> Asked:
    width, hidden = 512 * draw.randint(2, 8), 128 * draw.randint(4, 12)
    experts, visited, shared = draw.choice([32, 64, 128]), draw.randint(4, 8), draw.randint(1, 2)
    text = (
        f"A layer of width {width:,} has {experts} routed experts and {shared} shared ones, each a SwiGLU network "
        f"with {hidden:,} hidden units, and a router without a bias that chooses {visited}. How many parameters of "
        "its networks and router does one token use?"
    )
    key = f"$({visited} + {shared}) \\cdot 3 \\cdot {width} \\cdot {hidden} + {width} \\cdot {experts}$."
    return Asked(text, key, (visited + shared) * 3 * width * hidden + width * experts)


reason(
    "16.gate",
    "A head does not find what it looks for. What must it do in a plain layer, what does an output gate allow "
    "instead, and why does a softmax alone not allow it?",
    "The weights of a row add up to one, so some value is always taken: a head with nothing to add puts its weight "
    "on a token whose value is small, often the first one, a sink (2). A gate multiplies the head's output by a "
    "sigmoid of the layer's input, which can be near zero for this token, whatever the weights are (2).",
)
broken(
    "16.bias",
    "This function chooses `k` experts by `scores` (token, expert) plus the `bias` that balances loads, and returns "
    "the chosen experts and their shares.",
    """
def shares(scores, bias, k):
    best = (scores + bias).topk(k, dim=-1)
    chosen = best.values
    return best.indices, chosen / chosen.sum(-1, keepdim=True)
""",
    "chosen = best.values",
    "chosen = scores.gather(-1, best.indices)",
    "scores, bias = torch.tensor([[0.6, 0.2, 0.2]]), torch.tensor([0.0, 0.0, 1.0])\n"
    "at, made = shares(scores, bias, 2)\n"
    "assert at.tolist() == [[2, 0]] and torch.allclose(made, torch.tensor([[0.25, 0.75]]))",
    "The bias decides which experts are chosen, not how much they count: shares are computed from the scores without "
    "it. As it is, the bias that balances the load changes the output.",
)

# --- 17, a memory in place of a cache


@number("17.table")
def _(draw: Random) -> Asked:
    tables, wide, kv_heads = draw.choice([16, 32, 48]), draw.choice([64, 128]), draw.choice([2, 4, 8])
    head = draw.choice([64, 128, 256])
    text = (
        f"A linear layer stores {tables} tables of {wide} rows and {wide} columns. A full attention layer caches a "
        f"key and a value of {head} elements for each of {kv_heads} heads and each token. After how many tokens does "
        "the full layer store as many elements as the linear one? (The number need not be an integer.)"
    )
    key = f"${tables} \\cdot {wide}^2 / ({kv_heads} \\cdot 2 \\cdot {head})$."
    return Asked(text, key, tables * wide**2 / (kv_heads * 2 * head))


@number("17.written", points=2)
def _(draw: Random) -> Asked:
    old, new = draw.randint(2, 9), draw.randint(10, 20)
    decay, strength = draw.choice([0.5, 0.8, 0.9]), draw.choice([0.25, 0.5, 0.75])
    text = (
        f"In a layer with the gated delta rule, a key of length 1 reads {old} from the table. A token arrives with "
        f"this key, the value {new}, the decay {decay} and the write strength {strength}. What does the key read "
        "afterwards?"
    )
    key = f"$(1 - {strength}) \\cdot {decay} \\cdot {old} + {strength} \\cdot {new}$."
    return Asked(text, key, (1 - strength) * decay * old + strength * new)


reason(
    "17.chunks",
    "What a token of the delta rule writes depends on the table before it. Why can a chunk of tokens still be "
    "computed at once, and what is passed from one chunk to the next?",
    "The table is a sum of keys times corrected values, so what a token reads with its key is a sum over the "
    "corrected values before it, weighted with products of keys, which are all known (2). This is a triangular "
    "system of linear equations (1). Only the table is passed from chunk to chunk, and what each key reads from it "
    "is subtracted from the value first (1).",
)
broken(
    "17.delta",
    "This function performs one step of the delta rule with a decay. `S` is (d_k, d_v), and `k` has length 1.",
    """
def step(S, q, k, v, decay, strength):
    S = decay * S
    S = S + torch.outer(k, strength * v - S.T @ k)
    return S.T @ q, S
""",
    "S = S + torch.outer(k, strength * v - S.T @ k)",
    "S = S + torch.outer(k, strength * (v - S.T @ k))",
    "k, v = torch.tensor([1.0, 0.0]), torch.tensor([6.0])\n"
    "read, S = step(torch.tensor([[4.0], [1.0]]), k, k, v, 1.0, 0.5)\n"
    "assert torch.allclose(read, torch.tensor([5.0])) and torch.allclose(S[1], torch.tensor([1.0]))",
    "The strength must multiply the whole difference. As it is, the old value is subtracted completely, however weak "
    "the write, and a strength of 0 erases what is stored under the key instead of leaving it unchanged.",
)

# --- 18, more than one token a step


@number("18.tokens")
def _(draw: Random) -> Asked:
    rate, guesses, cost = draw.choice([0.6, 0.7, 0.8, 0.9]), draw.randint(2, 6), draw.choice([0.05, 0.1, 0.2])
    text = (
        f"Each guess of a draft is accepted with probability {rate}, independently of the others. A pass verifies "
        f"{guesses} guesses, each of which takes {cost} times as long as a pass, and passes take as long as without "
        "guesses. By what factor does the draft increase the tokens per second?"
    )
    key = f"$(1 - {rate}^{{{guesses + 1}}}) / ((1 - {rate})(1 + {guesses} \\cdot {cost}))$."
    return Asked(text, key, (1 - rate ** (guesses + 1)) / ((1 - rate) * (1 + guesses * cost)))


@number("18.blocks", points=2)
def _(draw: Random) -> Asked:
    slots, texts = draw.choice([8, 16, 32]), draw.randint(5, 40)
    prefix, more = slots * draw.randint(10, 40) + draw.randint(1, slots - 1), draw.randint(20, 200)
    text = (
        f"A cache has blocks of {slots} tokens. {texts} texts begin with the same {prefix:,} tokens, and each "
        f"continues with {more} tokens of its own, which differ from the first one on. How many blocks do they take "
        "if full blocks of equal beginnings are stored once?"
    )
    shared = prefix // slots
    key = (
        f"${shared}$ blocks are shared, and each of the ${texts}$ texts has ${prefix + more - shared * slots}$ more "
        "tokens."
    )
    return Asked(text, key, shared + texts * -(-(prefix + more - shared * slots) // slots))


reason(
    "18.exact",
    "A model samples its tokens, and a draft with a very different distribution guesses for it. Why does the text "
    "still have the model's distribution, what does the quality of the draft decide, and how would you test such a "
    "program?",
    "A guess is accepted with min(1, p / q), so a token is accepted with total probability min(p, q). A "
    "rejection has the remaining probability, and after it the token is drawn from max(0, p - q). Together this "
    "gives p (2). The draft decides how often guesses stay, which means the speed (1). A single text always looks "
    "fine, so compare the counts of many draws with p, by chi-square (1).",
)
broken(
    "18.seats",
    "This function returns the time when each text is done with continuous batching. All texts wait from the "
    "beginning, and in each step every text that has a seat writes a token.",
    """
def done_at(lengths, seats):
    waiting, left, done, now = list(range(len(lengths))), {}, {}, 0
    while waiting or left:
        free = 0 if left else seats
        for text in waiting[:free]:
            left[text] = lengths[text]
        waiting = waiting[free:]
        now += 1
        for text in list(left):
            left[text] -= 1
            if left[text] == 0:
                done[text] = now
                del left[text]
    return [done[text] for text in range(len(lengths))]
""",
    "free = 0 if left else seats",
    "free = seats - len(left)",
    "assert done_at([4, 1, 2, 3], 2) == [4, 1, 3, 6]\nassert done_at([2, 2], 5) == [2, 2]",
    "Texts take seats only when all seats are free, which is static batching. A free seat must be filled in the next "
    "step.",
)

# --- 19, fewer bits


@number("19.bytes")
def _(draw: Random) -> Asked:
    rows, group = draw.choice([1024, 2048, 4096]), draw.choice([32, 64, 128])
    columns, bits, zero = group * draw.randint(8, 32), draw.choice([3, 4, 8]), draw.choice([0, 4, 8])
    text = (
        f"A matrix of {rows} rows and {columns} columns is stored in {bits} bits per element. Every {group} "
        f"neighbouring elements of a row share a scale of 16 bits and a zero point of {zero} bits. How many bytes "
        "does it take?"
    )
    key = f"${rows} \\cdot {columns} \\cdot ({bits} + (16 + {zero})/{group}) / 8$."
    return Asked(text, key, rows * columns * (bits + (16 + zero) / group) / 8)


@number("19.makes_up", points=2)
def _(draw: Random) -> Asked:
    together, first, second = draw.choice([0.5, 0.6, 0.75]), draw.choice([0.3, 0.4, 0.45]), draw.choice([0.2, 0.25])
    text = (
        f"Two inputs of a layer have a mean square of 1 each, and the mean of their product is {together}. A row has "
        f"the weights {first} and {second} for them, and the step is 1. GPTQ rounds the first weight to 0. To what "
        "value does it move the second weight before rounding it?"
    )
    key = (
        f"${second} + {together} \\cdot {first}$: the loss of the first weight, as far as the second input can "
        "compensate for it."
    )
    return Asked(text, key, second + together * first)


reason(
    "19.straight",
    "In quantization-aware training a model computes with weights of 4 bits. Why would it learn nothing with the "
    "true derivative of rounding, what does the straight-through estimator do instead, and why are the weights still "
    "stored in 16 or 32 bits?",
    "Rounding is a staircase whose derivative is 0 nearly everywhere, so every gradient would be 0 (1). The backward "
    "pass treats rounding as the identity: the weight gets the gradient of the rounded weight (1). An update is far "
    "smaller than the step from one level to the next (1). With more bits such updates add up until the level "
    "changes, but with weights stored in 4 bits each of them would be rounded away (1).",
)
broken(
    "19.groups",
    "This function rounds each group of a row to `bits` bits, with its own step (absmax).",
    """
def rounded(W, bits, group):
    parts = W.reshape(-1, group)
    step = parts.abs().amax() / (2 ** (bits - 1) - 1)
    return ((parts / step).round() * step).reshape(W.shape)
""",
    "step = parts.abs().amax() / (2 ** (bits - 1) - 1)",
    "step = parts.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)",
    "W = torch.tensor([[0.7, 0.3, 70.0, 10.0]])\n"
    "assert torch.allclose(rounded(W, 4, 2), torch.tensor([[0.7, 0.3, 70.0, 10.0]]))",
    "The step is that of the whole matrix, so one outlier makes all groups coarse. Take the largest absolute value "
    "of each group, along the group's axis, with `keepdim=True`.",
)
