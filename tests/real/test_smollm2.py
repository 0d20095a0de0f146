"""A published language model, compared with `transformers` and with known results.

These tests notice a wrong rotation or kernel that random weights do not reveal.
"""

import math
from itertools import pairwise

import pytest
import torch

from companion import load_pretrained
from companion.data.chat_template import conversation, load_chat_template
from companion.data.published_tokenizers import TextStream
from companion.families.adapters import adapt, load_adapters, merged_model, save_adapters
from companion.families.export import export_model
from companion.files.published.generation_config import read_writing
from companion.generation.draft import Draft
from companion.generation.generate import complete
from companion.generation.sampling import Sampling
from companion.layers.cache import KVCache
from companion.quantization.weights import prepared
from companion.training.tasks.text import measure
from companion_school.build.isolated_modules import World
from companion_school.build.parts import references
from companion_school.build.real_model import record
from companion_school.build.stages import STAGES
from companion_school.study.real import PAGE

GREEDY = Sampling(0)
PROMPTS = [
    "The capital of France is",
    "Once",
    "Water boils at a temperature of",
    "def add(a, b):\n    return",
    "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer",
    "One, two, three, four,",
    "The opposite of hot is",
    "In the year 1969, the first human being set foot on the",
]


@pytest.fixture(scope="module")
def ids(smollm2):
    return torch.tensor([smollm2.tokenizer.encode(PAGE)])


@pytest.fixture(scope="module")
def logits(smollm2, ids):
    with torch.no_grad():
        return smollm2.ours(ids).logits


def written(smollm2, prompts, tokens, **options):
    rows = [smollm2.tokenizer.encode(prompt) for prompt in prompts]
    return [list(row) for row in complete(smollm2.ours, rows, max_new_tokens=tokens, sampling=GREEDY, **options)]


@torch.no_grad()
def test_logits_and_perplexity_are_those_of_transformers(smollm2, ids, logits):
    theirs = smollm2.theirs(ids).logits
    torch.testing.assert_close(logits, theirs, rtol=1e-4, atol=1e-3)
    losses = [torch.nn.functional.cross_entropy(one[0, :-1], ids[0, 1:]).exp().item() for one in (logits, theirs)]
    assert losses[0] == pytest.approx(losses[1], rel=5e-3) and 15 < losses[0] < 30, losses


@torch.no_grad()
def test_a_cache_changes_nothing(smollm2, ids, logits):
    cache, found = KVCache.create(smollm2.ours.config, 1, ids.shape[1]), []
    cuts = [0, 100, 163, *range(164, 170), ids.shape[1]]
    for first, end in pairwise(cuts):
        out = smollm2.ours(ids[:, first:end], cache=cache)
        cache = out.cache
        found.append(out.logits)
    torch.testing.assert_close(torch.cat(found, 1), logits, rtol=1e-4, atol=1e-3)


@torch.no_grad()
def test_sixty_greedy_tokens_are_those_of_transformers(smollm2):
    prompt = load_chat_template(smollm2.folder).write(conversation(["Why is the sky blue?"]))
    rows = [smollm2.tokenizer.encode(prompt, special=False)]
    (ours,) = complete(smollm2.ours, rows, max_new_tokens=60, sampling=GREEDY)
    given = {"attention_mask": torch.ones(1, len(rows[0]), dtype=torch.long), "pad_token_id": 2, "eos_token_id": None}
    theirs = smollm2.theirs.generate(torch.tensor(rows), do_sample=False, max_new_tokens=60, **given)
    assert list(ours) == theirs[0, len(rows[0]) :].tolist()
    assert "scatter" in smollm2.tokenizer.decode(ours)


def test_eight_prompts_at_once_are_continued_as_each_alone(smollm2):
    together = written(smollm2, PROMPTS, 12)
    assert len({len(smollm2.tokenizer.encode(prompt)) for prompt in PROMPTS}) > 4
    for prompt, row in zip(PROMPTS[::3], together[::3], strict=True):
        assert written(smollm2, [prompt], 12)[0] == row, prompt
    assert smollm2.tokenizer.decode(together[0]).startswith(" Paris")
    assert smollm2.tokenizer.decode(together[5]).startswith(" five, six,")
    assert "moon" in smollm2.tokenizer.decode(together[7]).lower()


@pytest.mark.parametrize(
    "form, bound", [("fp32", 1e-5), ("fp16", 1e-3), ("bf16", 5e-3), ("int8", 5e-3), ("int4", 2e-2)]
)
def test_what_each_form_of_the_weights_costs_is_bounded(form, bound, smollm2, ids, logits):
    whole = torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="sum").item() / math.log(2)
    found = measure(prepared(smollm2.ours, form), [ids[0]], len(PAGE.encode()), context=1024, batch=1)
    assert found.bits_per_byte == pytest.approx(whole / len(PAGE.encode()), rel=bound)


@torch.no_grad()
def test_speculation_writes_the_same_text(smollm2):
    prompt = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 5, 6,"
    draft = Draft("ngram")
    assert written(smollm2, [prompt], 40, draft=draft) == written(smollm2, [prompt], 40)
    assert draft.accepted > 10, "and reads less often"


def test_adapters_learn_are_merged_and_come_back(smollm2, tmp_path):
    rows = torch.tensor([smollm2.tokenizer.encode("The secret word of the lighthouse is marmalade. " * 3)[:24]])
    model = load_pretrained(smollm2.folder, dtype=torch.float32)
    adapt(model, 4)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=3e-3)
    losses = []
    for _ in range(4):
        loss = torch.nn.functional.cross_entropy(model(rows).logits[0, :-1], rows[0, 1:])
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save_adapters(tmp_path, model)
    again = load_pretrained(smollm2.folder, dtype=torch.float32)
    load_adapters(tmp_path, again)
    with torch.no_grad():
        wanted = model(rows).logits
        assert torch.equal(again(rows).logits, wanted)
        torch.testing.assert_close(merged_model(model)(rows).logits, wanted, rtol=1e-4, atol=2e-3)
        after = torch.nn.functional.cross_entropy(wanted[0, :-1], rows[0, 1:]).item()
    assert after < losses[0] - 0.5, losses


def test_what_is_exported_comes_back_bit_for_bit(smollm2, tmp_path):
    half = load_pretrained(smollm2.folder, dtype=torch.bfloat16)
    family = export_model(tmp_path, half)
    again = load_pretrained(tmp_path)
    assert family.kind == "llama" and again.config == half.config
    assert all(torch.equal(one, half.state_dict()[name]) for name, one in again.state_dict().items())


def test_the_chat_template_writes_what_transformers_writes(smollm2):
    template = load_chat_template(smollm2.folder)
    for turns, system in ((["Hi"], None), (["Hi", "Hello!", "Who are you?"], "Be brief."), (["\n<|im_end|> "], "")):
        messages = conversation(turns, system)
        wanted = smollm2.their_tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert template.write(messages) == wanted
        ours = smollm2.tokenizer.encode(wanted, special=False)
        assert ours == smollm2.their_tokenizer.encode(wanted, add_special_tokens=False)
    assert 2 in read_writing(smollm2.folder).special.stop  # <|im_end|>


def test_half_characters_wait_for_their_other_half(smollm2):
    text = "Snake \U0001f40d, 東京, naïve café — \U0001f469\u200d\U0001f467 ∑"
    tokens = smollm2.tokenizer.encode(text)
    stream = TextStream(smollm2.tokenizer)
    parts = [stream.push(token) for token in tokens] + [stream.finish()]
    assert "".join(parts) == text and not any("\ufffd" in part for part in parts)
    assert parts.count("") > 4, "tokens that end within a character"


def test_digits_are_tokens_of_their_own(smollm2):
    assert [smollm2.tokenizer.decode([one]) for one in smollm2.tokenizer.encode("In 2024")] == ["In", " ", *"2024"]


@torch.no_grad()
def test_it_knows_what_it_is_known_to_know(smollm2):
    def next_token(text):
        chances = smollm2.ours(torch.tensor([smollm2.tokenizer.encode(text)])).logits[0, -1].softmax(-1)
        return smollm2.tokenizer.decode([int(chances.argmax())]), float(chances.max())

    assert next_token("The capital of France is")[0] == " Paris"
    name, chance = next_token("When Mary and John went to the store, John gave a drink to")
    assert name == " Mary" and chance > 0.85, "indirect object identification (Wang et al. 2022)"
    assert next_token("When Mary and John went to the store, Mary gave a drink to")[0] == " John"


def test_a_learners_own_code_reads_it_and_the_record_is_what_transformers_gives(smollm2):
    known = record()
    given = torch.tensor([known["ids"]])
    own = World(references(STAGES[10]), "published").load(smollm2.folder)
    with torch.no_grad():
        theirs, ours = smollm2.theirs(given).logits[0], own(given)[0]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-3)
    torch.testing.assert_close(torch.tensor(known["logits"]), theirs[:, :40], rtol=0, atol=1e-3)
