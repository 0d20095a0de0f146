"""Beam search: compared with enumeration and with `transformers`, and unchanged when prompts share a batch."""

import itertools
import math
import os
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import drawn

from companion import AttentionConfig, FeedForwardConfig, ModelConfig, PositionConfig, RotaryScaling
from companion.families.pretrained import load_pretrained
from companion.generation import beam as module
from companion.generation.beam import Beam, beam_search
from companion.generation.generate import complete
from companion.generation.logit_rules import Rules
from companion.generation.sampling import Sampling
from companion.layers.cache import KVCache

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the import, so that nothing here tries to use a network
import transformers

SMALL = ModelConfig(
    vocab=4,
    d_model=12,
    layers=2,
    context=12,
    attention=AttentionConfig(heads=6, kv_heads=2, d_head=4, d_v=5),
    feed_forward=FeedForwardConfig(d_ff=14),
)
BOTH = SMALL.with_(stack="encoder_decoder", positions=PositionConfig("sinusoidal"))
GREEDY = Sampling(temperature=0)

# ---- compared with enumeration --------------------------------------------------------------------------------------


@torch.no_grad()
def every_continuation(model, prompt, steps, stop, source=None):
    """Return all texts of up to `steps` tokens that end at a stop token, with their ln p, computed without a cache."""
    texts = set()
    for tokens in itertools.product(range(4), repeat=steps):
        ends = next((i + 1 for i, token in enumerate(tokens) if token in stop), steps)
        texts.add(tokens[:ends])  # each stopped text once
    found = []
    for length in range(1, steps + 1):
        alike = sorted(text for text in texts if len(text) == length)
        if alike:
            sources = None if source is None else torch.tensor([source] * len(alike))
            logits = model(torch.tensor([[*prompt, *text] for text in alike]), source=sources).logits
            logp = logits[:, len(prompt) - 1 : -1].double().log_softmax(-1)
            taken = logp.gather(-1, torch.tensor(alike)[..., None])[..., 0].sum(-1)
            found += [Beam(text, float(total)) for text, total in zip(alike, taken, strict=True)]
    return found


@pytest.mark.parametrize("stop", [(), (2,), (0, 3)])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize("sources", [None, [[1, 0, 3, 3, 2], [2, 2]]], ids=["decoder", "encoder-decoder"])
def test_a_wide_enough_beam_finds_what_enumeration_finds(sources, stop, length_penalty):
    model = drawn(SMALL if sources is None else BOTH, seed=8).eval()
    prompts = [[1, 3], [2]]
    found = beam_search(
        model, prompts, source=sources, width=300, max_new_tokens=4, stop=stop, length_penalty=length_penalty
    )
    for row, (prompt, beams) in enumerate(zip(prompts, found, strict=True)):
        expected = every_continuation(model, prompt, 4, stop, sources and sources[row])
        expected.sort(key=lambda b: b.log_probability / len(b.tokens) ** length_penalty, reverse=True)
        assert [beam.tokens for beam in beams] == [beam.tokens for beam in expected]
        assert [b.log_probability for b in beams] == pytest.approx([b.log_probability for b in expected], abs=1e-5)
        assert sum(math.exp(beam.log_probability) for beam in beams) == pytest.approx(1)


@pytest.mark.parametrize("stop", [(), (2,)])
def test_a_beam_of_one_is_greedy(stop):
    for seed in range(5):
        model = drawn(SMALL, seed=seed)
        ((beam,),) = beam_search(model, [[1, 3]], width=1, max_new_tokens=6, stop=stop)
        assert list(beam.tokens) == complete(model, [[1, 3]], max_new_tokens=6, sampling=GREEDY, stop=stop)[0]


def test_a_beam_finds_a_more_probable_text_than_greedy():
    better = 0
    for seed in range(10):
        model = drawn(SMALL, seed=seed, std=0.2)
        ((greedy,),) = beam_search(model, [[2]], width=1, max_new_tokens=5)
        (found,) = beam_search(model, [[2]], width=16, max_new_tokens=5)
        assert len(found) == 16 and found == sorted(found, key=lambda beam: -beam.log_probability)
        better += found[0].log_probability > greedy.log_probability + 1e-5
    assert better >= 3


def test_a_length_penalty_favours_longer_texts():
    model = drawn(SMALL, seed=3)
    lengths = [
        len(beam_search(model, [[1]], width=300, max_new_tokens=4, stop=(2,), length_penalty=penalty)[0][0].tokens)
        for penalty in (-3.0, 0.0, 3.0)
    ]
    assert lengths == sorted(lengths) and lengths[0] == 1 and lengths[2] == 4


# ---- compared with transformers -------------------------------------------------------------------------------------


def redrawn(model, std, vocab):
    """Draw every weight anew, with a spread that gives several tokens a probability."""
    torch.manual_seed(5)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "embed_positions" not in name:  # Marian's are sinusoids and not parameters
                # A large tied table would predict the token just read, whatever the layers do.
                p.normal_(std=0.1 if "shared" in name else std)
            if p.ndim == 1 and name.endswith("weight"):
                p += 1
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                buffer.normal_(std=0.3)
    model.generation_config = transformers.GenerationConfig()  # no settings except those that a test passes
    assert model.config.vocab_size == vocab
    return model.eval()


def gpt2():
    config = transformers.GPT2Config(vocab_size=29, n_embd=20, n_layer=2, n_head=4, n_positions=24, n_inner=36)
    return redrawn(transformers.GPT2LMHeadModel(config), 0.12, 29)


def llama():
    config = transformers.LlamaConfig(
        vocab_size=31,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        intermediate_size=40,
        max_position_embeddings=24,
    )
    return redrawn(transformers.LlamaForCausalLM(config), 0.12, 31)


def marian():
    config = transformers.MarianConfig(
        vocab_size=37,
        d_model=20,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=28,
        decoder_ffn_dim=28,
        max_position_embeddings=24,
        activation_function="swish",
        scale_embedding=True,
        pad_token_id=36,
        eos_token_id=0,
        decoder_start_token_id=36,
        forced_eos_token_id=None,
    )
    return redrawn(transformers.MarianMTModel(config), 0.6, 37)


WIDTHS, STOPS = (2, 3, 5), ((), (1, 8), (2, 12, 19))
PENALTIES, EARLY = (-0.5, 0.0, 0.6, 1.0, 2.0), (False, True, "never")
SETTINGS = random.Random(0).sample([*itertools.product(WIDTHS, STOPS, PENALTIES, EARLY)], 8)


def as_theirs(rows, theirs, scores, width, length_penalty):
    """Check that our beams of each row equal the new tokens that `transformers` returned, with the same scores."""
    assert [len(beams) for beams in rows] == [width] * (len(theirs) // width)
    for beam, tokens, score in zip(itertools.chain(*rows), theirs.tolist(), scores.tolist(), strict=True):
        assert tokens[: len(beam.tokens)] == list(beam.tokens)
        assert len(set(tokens[len(beam.tokens) :])) <= 1  # the rest is padding
        assert beam.log_probability / len(beam.tokens) ** length_penalty == pytest.approx(score, abs=2e-5)


def their_beams(model, width, steps, stop, length_penalty, early_stopping, **inputs):
    out = model.generate(
        num_beams=width,
        num_return_sequences=width,
        max_new_tokens=steps,
        do_sample=False,
        eos_token_id=list(stop) or None,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        return_dict_in_generate=True,
        output_scores=True,
        **inputs,
    )
    return out.sequences, out.sequences_scores


@pytest.mark.parametrize("make", [gpt2, llama])
def test_the_same_beams_as_transformers_decoders_for_ragged_prompts(make, tmp_path):
    theirs = make()
    theirs.save_pretrained(tmp_path)
    ours = load_pretrained(tmp_path)
    prompts = [[3, 1, 4, 1, 5], [9], [2, 6, 5]]
    left = torch.tensor([[0] * (5 - len(p)) + p for p in prompts])
    real = torch.tensor([[0] * (5 - len(p)) + [1] * len(p) for p in prompts])
    lengths = set()
    for width, stop, penalty, early in SETTINGS:
        sequences, scores = their_beams(
            theirs, width, 9, stop, penalty, early, input_ids=left, attention_mask=real, pad_token_id=0
        )
        rows = beam_search(
            ours, prompts, width=width, max_new_tokens=9, stop=stop, length_penalty=penalty, early_stopping=early
        )
        as_theirs(rows, sequences[:, 5:], scores, width, penalty)
        lengths |= {len(beam.tokens) for beams in rows for beam in beams}
    assert len(lengths) >= 4  # some texts stopped early, some late, and some not at all


SOURCES = [[5, 8, 13, 21, 0], [34, 1, 0], [2, 3, 0, 33], [30]]


@pytest.fixture(scope="module")
def translators(tmp_path_factory):
    theirs = marian()
    folder = tmp_path_factory.mktemp("marian")
    theirs.save_pretrained(folder)
    ours = load_pretrained(folder)
    ids = torch.tensor([s + [36] * (5 - len(s)) for s in SOURCES])
    real = torch.tensor([[1] * len(s) + [0] * (5 - len(s)) for s in SOURCES])
    start = torch.full((4, 1), 36)
    with torch.no_grad():  # both compute the same function, so their choices can be compared
        expected = theirs(input_ids=ids, attention_mask=real, decoder_input_ids=start).logits
        torch.testing.assert_close(ours(start, source=ours.encode(ids, attention_mask=real == 1)).logits, expected)
    return theirs, ours, {"input_ids": ids, "attention_mask": real, "pad_token_id": 36, "decoder_start_token_id": 36}


def test_the_same_beams_as_transformers_encoder_decoder_for_ragged_sources(translators):
    theirs, ours, inputs = translators
    lengths = set()
    for width, stop, penalty, early in SETTINGS:
        stop = {(1, 8): (31, 34), (2, 12, 19): (31,)}.get(stop, stop)  # ids that this model often generates
        sequences, scores = their_beams(theirs, width, 9, stop, penalty, early, **inputs)
        rows = beam_search(
            ours,
            source=SOURCES,
            start=36,
            width=width,
            max_new_tokens=9,
            stop=stop,
            length_penalty=penalty,
            early_stopping=early,
        )
        as_theirs(rows, sequences[:, 1:], scores, width, penalty)
        lengths |= {len(beam.tokens) for beams in rows for beam in beams}
    assert len(lengths) >= 4


def test_the_rules_are_those_of_transformers(translators):
    """Marian's published settings ban its padding id and force the last step to end the text."""
    theirs, ours, inputs = translators
    for width, early, least, last in [(2, False, 3, 0), (4, True, 0, None)]:
        named = {"bad_words_ids": [[36], [14]], "min_new_tokens": least, "forced_eos_token_id": last}
        rules = Rules(never=[36, 14], min_new_tokens=least, last=last)
        sequences, scores = their_beams(theirs, width, 7, (0, 9), 1.0, early, **inputs, **named)
        rows = beam_search(
            ours,
            source=SOURCES,
            start=36,
            width=width,
            max_new_tokens=7,
            stop=(0, 9),
            length_penalty=1.0,
            early_stopping=early,
            rules=rules,
        )
        as_theirs(rows, sequences[:, 1:], scores, width, 1.0)
        greedy = theirs.generate(**inputs, **named, max_new_tokens=7, do_sample=False, eos_token_id=[0, 9])
        for text, whole in zip(
            complete(ours, source=SOURCES, start=36, max_new_tokens=7, stop=(0, 9), rules=rules, sampling=GREEDY),
            greedy[:, 1:].tolist(),
            strict=True,
        ):
            assert whole[: len(text)] == text and set(whole[len(text) :]) <= {36}


# ---- unchanged when prompts share a batch ---------------------------------------------------------------------------


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6)), min_size=1, max_size=4),
    st.integers(1, 4),
    st.sampled_from(((), (7,), (3, 11))),
    st.sampled_from(PENALTIES),
    st.sampled_from(EARLY),
    st.booleans(),
    st.integers(0, 99),
)
def test_a_prompt_and_its_source_search_as_if_alone(lengths, width, stop, penalty, early, cross, seed):
    model = drawn((BOTH if cross else SMALL).with_(vocab=13), seed, std=0.25).double().eval()
    ids = torch.Generator().manual_seed(seed)
    prompts, sources = (
        [torch.randint(0, 13, (pair[i],), generator=ids).tolist() for pair in lengths] for i in range(2)
    )
    options = dict(width=width, max_new_tokens=6, stop=stop, length_penalty=penalty, early_stopping=early)
    together = beam_search(model, prompts, source=sources if cross else None, **options)
    for prompt, source, beams in zip(prompts, sources, together, strict=True):
        (alone,) = beam_search(model, [prompt], source=[source] if cross else None, **options)
        assert [beam.tokens for beam in alone] == [beam.tokens for beam in beams]
        for found, expected in zip(alone, beams, strict=True):
            assert found.log_probability == pytest.approx(expected.log_probability, abs=1e-9)
        with torch.no_grad():  # the log-probability of a text is what the model gives without a cache
            tokens = beams[0].tokens
            text = torch.tensor([[*prompt, *tokens]])
            logp = model(text, source=torch.tensor([source]) if cross else None).logits[0].log_softmax(-1)
        places = torch.arange(len(prompt) - 1, text.shape[1] - 1)
        assert beams[0].log_probability == pytest.approx(logp[places, text[0, len(prompt) :]].sum().item(), abs=1e-9)


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
@pytest.mark.parametrize("width", [1, 3])
@torch.no_grad()
def test_beams_read_a_text_anew_where_greedy_does(kind, width):
    """Rotary scaling depends on the length, and prompts exceed the first context at different steps or at once."""
    lists = {"short": (1.0, 1.5), "long": (2.0, 4.0)} if kind == "longrope" else {}
    scaling = RotaryScaling(kind, 3.0, 6, **lists)
    model = drawn(SMALL.with_(vocab=13, context=24, positions=PositionConfig("rotary", scaling=scaling)), 4, std=0.3)
    model = model.double().eval()
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10], [1, 2, 3, 4, 5, 6, 7, 8]]
    found = beam_search(model, prompts, width=width, max_new_tokens=9, stop=(2,))
    if width == 1:
        greedy = complete(model, prompts, max_new_tokens=9, sampling=GREEDY, stop=(2,))
        assert [list(beam.tokens) for (beam,) in found] == greedy
    for prompt, beams in zip(prompts, found, strict=True) if kind == "longrope" else ():
        for beam in beams:
            texts = [torch.tensor([[*prompt, *beam.tokens[:i]]]) for i in range(len(beam.tokens))]
            # Uncached, with the text's length at that step
            each = [model(text).logits[0, -1].log_softmax(-1) for text in texts]
            total = sum(float(logp[token]) for logp, token in zip(each, beam.tokens, strict=True))
            assert beam.log_probability == pytest.approx(total, abs=1e-9)
    for prompt, beams in zip(prompts, found, strict=True):
        assert beam_search(model, [prompt], width=width, max_new_tokens=9, stop=(2,))[0][0].tokens == beams[0].tokens


def test_a_prompt_whose_search_is_over_costs_nothing_more():
    model = drawn(BOTH, seed=2, std=0.3).eval()
    rows, sources = [], []
    hook = model.embedding.register_forward_hook(lambda module, args, out: rows.append(out.shape[0]))
    cross = model.decoder.blocks[1].cross.key.register_forward_hook(lambda module, args, out: sources.append(out.shape))
    beams = beam_search(model, source=[[1, 2], [3], [0, 2]], start=1, width=2, max_new_tokens=9, stop=(2, 3))
    hook.remove(), cross.remove()
    assert rows[:3] == [3, 3, 6]  # the sources, the prompts, and two candidates for each
    # Fewer after the search for one of them is finished
    assert rows[2:] == sorted(rows[2:], reverse=True) and rows[-1] < 6
    assert len(sources) == 1  # keys and values of the sources are computed once, whatever the number of steps and beams
    assert all(len(found) == 2 for found in beams)


def test_beam_search_leaves_the_model_as_it_was():
    model = drawn(SMALL)
    model.train()
    beam_search(model, [[1]], width=2, max_new_tokens=3)
    assert torch.is_grad_enabled() and all(module.training for module in model.modules())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 0}, "width=0: expected a whole number >= 1"),
        ({"length_penalty": math.nan}, "length_penalty=nan: expected a finite number"),
        ({"length_penalty": -900.0}, "length_penalty=-900.0: expected an exponent"),
        ({"early_stopping": "always"}, "early_stopping='always': expected True, False or 'never'"),
        ({"prompts": [[]]}, "is empty: expected at least one token"),
        ({"prompts": [[4]]}, "token id 4: expected a whole number from 0 to 3"),
        (
            {"max_new_tokens": 12},
            "a prompt of 1 tokens and max_new_tokens=12 add up to 13; expected at most context=12",
        ),
        ({"stop": [9]}, "stop: token id 9"),
        ({"rules": Rules(never=[0, 1], min_new_tokens=1), "stop": [2, 3]}, "exclude all 4 token ids"),
        ({"source": [[1]]}, "stack='decoder' got one; a source is required for encoder_decoder"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_input_is_refused(change, message):
    with pytest.raises(ValueError) as caught:
        beam_search(drawn(SMALL), **{"prompts": [[1]], "width": 2, "max_new_tokens": 3, **change})
    assert message in str(caught.value)


@pytest.mark.parametrize("config", [SMALL, BOTH], ids=["decoder", "encoder-decoder"])
def test_only_what_candidates_do_not_share_is_copied_and_the_bits_are_those_of_copying_all(config, monkeypatch):
    config = config.with_(vocab=9, context=60)
    model = drawn(config, seed=4, std=0.4).eval()
    prompts = [[1, 3, 5, 7, 2, 8], [2], [6, 6, 1]]
    asked = {"width": 5, "max_new_tokens": 40, "stop": (0,), "source": None}
    if config.stack == "encoder_decoder":
        asked["source"] = [[4, 5], [6], [1, 2, 3]]
    copied, moved = [], []
    reordered = module._reordered

    def counted(cache, parents, trails):
        before = [store.clone() for store in cache.keys]
        after = reordered(cache, parents, trails)
        if len(parents) == cache.batch:
            expected = KVCache(tuple(before), cache.values, cache.lengths, cache.filled).select(torch.tensor(parents))
            for kept, whole in zip(after.keys, expected.keys, strict=True):
                assert torch.equal(kept[:, :, : cache.filled], whole[:, :, : cache.filled])
            assert torch.equal(after.lengths, expected.lengths)
            moved.append(sum(i != parent for i, parent in enumerate(parents)) * cache.filled)
            copied.append(sum(int((a != b).any((1, 3)).sum()) for a, b in zip(after.keys[:1], before[:1], strict=True)))
        return after

    monkeypatch.setattr(module, "_reordered", counted)
    found = beam_search(model, prompts, **asked)
    assert sum(moved) > 20 and sum(copied) < sum(moved) / 2
    monkeypatch.setattr(module, "_reordered", lambda cache, parents, trails: cache.select(torch.tensor(parents)))
    assert beam_search(model, prompts, **asked) == found
