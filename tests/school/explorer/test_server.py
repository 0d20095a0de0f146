"""Python behind the explorer's page: switching off, swapping, and which requests are answered."""

import copy
import json
import re
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field

import pytest
import torch
from safetensors.torch import load

from companion.config.model import AttentionConfig, FeedForwardConfig, ModelConfig, MoEConfig
from companion.data.number_words import task
from companion.data.tokenizer import BytePairTokenizer
from companion.transformer import Transformer
from companion_school.build.isolated_modules import World
from companion_school.build.parts import references
from companion_school.build.stages import STAGES
from companion_school.explorer import explore
from companion_school.explorer.activations import inside, patched
from companion_school.explorer.server import Asked, Server, _Answer

TOKENIZER = BytePairTokenizer.train(["the mole went to the pond and the mole was wet"] * 9, vocab=280)
BASE = {"vocab": TOKENIZER.vocab, "d_model": 24, "layers": 3, "context": 40}
NETWORK = FeedForwardConfig(36, "gelu")
TEXT = "the mole went to the pond"
WORDS = task("de", "en")


def decoder(**changes):
    torch.manual_seed(3)
    return Transformer(
        ModelConfig(**BASE, attention=AttentionConfig(4, 2), feed_forward=NETWORK).with_(**changes)
    ).eval()


def translator():
    """Return the Translator of stage 8, as a learner has written it."""
    code = World(references(STAGES[8]), STAGES[8].module, {})
    config = code["model"].Config(vocab=WORDS.vocab, d_model=24, layers=2, heads=4, kv_heads=2, d_ff=36)
    torch.manual_seed(5)
    return code.Translator(config).eval()


def rows(file, name):
    """Return the description of a pass in a reply, and the rows of a name."""
    size = int.from_bytes(file[:8], "little")
    said = json.loads(json.loads(file[8 : 8 + size])["__metadata__"]["recorded"])
    return said, torch.stack(torch.split(load(file)[name], said["sizes"][name]))


@torch.no_grad()
def test_a_head_that_is_off_gives_what_a_model_without_its_columns_gives():
    model, ids = decoder(), [TOKENIZER.separator, *TOKENIZER.encode(TEXT)]
    without = copy.deepcopy(model)
    without.decoder.blocks[1].attention.output.weight[:, 12:18] = 0
    expected = without(torch.tensor([ids])).logits[0]
    said, logits = rows(Asked(model, TOKENIZER).read(text=TEXT, off=["decoder.blocks.1.attention.2"]), "logits")
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)
    assert said["tokens"]["decoder"] == ids and said["text"] == TEXT
    assert not torch.allclose(expected, model(torch.tensor([ids])).logits[0], atol=1e-3)


@pytest.mark.parametrize("balanced", [False, True])
def test_an_expert_that_is_off_is_chosen_by_no_token(balanced):
    model, name = decoder(moe=MoEConfig(5, 2, balanced=balanced)), "decoder.blocks.0.feed_forward"
    if balanced:
        model.decoder.blocks[0].feed_forward.bias.copy_(torch.tensor([0.0, 0, 0, 9, 0]))
    asked = Asked(model, TOKENIZER)
    _, before = rows(asked.read(text=TEXT), f"{name}.experts")
    busiest = int(before.flatten().mode().values)
    _, after = rows(asked.read(text=TEXT, off=[f"{name}.{busiest}"]), f"{name}.experts")
    assert busiest in before and busiest not in after
    assert torch.equal(rows(asked.read(text=TEXT), f"{name}.experts")[1], before)
    with pytest.raises(ValueError, match="expected one that is left on"):
        asked.read(text=TEXT, off=[f"{name}.{expert}" for expert in range(5)])


def test_a_translator_of_your_own_writes_is_switched_and_patched():
    model = translator()
    asked, source = Asked(model, WORDS), WORDS.encode(21)[0]
    said, logits = rows(asked.read(text="einundzwanzig"), "logits")
    ids, real = torch.tensor([source]), torch.ones(1, len(source), dtype=torch.bool)
    target = torch.tensor([said["tokens"]["decoder"]])
    with torch.no_grad():
        torch.testing.assert_close(logits, model(ids, real, target)[0], atol=1e-5, rtol=1e-4)
    assert said["tokens"]["encoder"] == source and said["counts"] == {"layers": 2, "heads": 4, "experts": 0}
    given = {"tokens": said["tokens"]["decoder"][:5], "source": source}
    _, plain = rows(asked.read(**given), "logits")
    _, other = rows(asked.read(**given, off=["decoder.blocks.0.cross.1"]), "logits")
    assert not torch.equal(plain, other)
    swapped = {"tokens": [given["tokens"][0], 7, *given["tokens"][2:]], "source": source}
    end = len(swapped["tokens"]) - 1
    layers = list(asked.carried(**given, other=swapped, off=[], first=1, end=end, pair=[4, 9]))
    _, wanted = rows(asked.read(**swapped), "logits")
    answer = layers[2]
    assert len(layers) == 3 and {len(row) for row in layers} == {end}
    torch.testing.assert_close(torch.tensor(answer[-1]), wanted[end, [4, 9]], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(torch.tensor(answer[0]), plain[end, [4, 9]], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("layer", [0, 1, 3])
def test_states_put_in_one_at_a_time_are_those_of_a_pass_for_each(layer):
    model, ids = decoder(moe=MoEConfig(5, 2)), [TOKENIZER.separator, *TOKENIZER.encode(TEXT)]
    states = torch.randn(3, 24, generator=torch.Generator().manual_seed(2))
    together = patched(model, ids, (), states, layer=layer, first=1)
    for column in range(3):
        alone = patched(model, ids, (), states[column : column + 1], layer=layer, first=1 + column)
        torch.testing.assert_close(together[column], alone[0], atol=1e-5, rtol=1e-4)
    own = torch.stack(inside(model, ids)["decoder.blocks.0"])[1:4]
    back, logits = patched(model, ids, (), own, layer=1, first=1), torch.stack(inside(model, ids)["logits"])
    torch.testing.assert_close(back[1], logits, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_what_another_thread_computes_meanwhile_stays_as_it_is():
    model, ids = decoder(), torch.tensor([[3, 7, 5]])
    expected, found = model(ids).logits, []

    class Other(torch.nn.Module):
        """A model that runs another thread's computation in the middle of its pass."""

        def __init__(self):
            super().__init__()
            self.decoder, self.config = decoder().decoder, model.config
            self.embedding = decoder().embedding
            self.head = decoder().head
            self.decoder.blocks[1].attention.query.register_forward_hook(self.meanwhile)

        def meanwhile(self, *_):
            thread = threading.Thread(target=lambda: found.append(torch.no_grad()(model)(ids).logits))
            thread.start()
            thread.join()

        def forward(self, tokens):
            x = self.embedding(tokens)
            for block in self.decoder.blocks:
                x, _ = block(x)
            return self.head(self.decoder.norm(x))

    inside(Other(), [3, 7, 5, 9], off=["decoder.blocks.1.attention.0", "decoder.blocks.1.attention.1"])
    assert torch.equal(found[0], expected)


@pytest.mark.parametrize("off", [[], ["decoder.blocks.2.attention.3"]])
def test_without_gives_the_chance_of_a_token_with_each_head_off_in_turn(server, off):
    ids = [TOKENIZER.separator, *TOKENIZER.encode(TEXT)]
    given = {"tokens": ids, "off": off, "end": 3, "token": 270}
    status, said = ask(f"{server.address}without", given)
    found, asked = [json.loads(line) for line in said.splitlines()], server.answers["read"].__self__
    assert status == 200 and [len(row) for row in found] == [4, 4, 4]
    for layer, head in [(0, 2), (2, 1), (2, 3)]:
        name = f"decoder.blocks.{layer}.attention.{head}"
        _, logits = rows(asked.read(tokens=ids, off={*off, name}), "logits")
        assert found[layer][head] == pytest.approx(logits[3].softmax(-1)[270].item(), rel=1e-4)
    assert ask(f"{server.address}without", {**given, "end": len(ids)})[0] == 400


@pytest.fixture
def server():
    with Server("<p>a page</p>", Asked(decoder(), TOKENIZER)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def ask(address, given=None, **headers):
    """Return status and body of a response."""
    data = None if given is None else json.dumps(given).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(address, data, headers)) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_the_server_answers_who_knows_its_address_and_nobody_else(server):
    assert ask(server.address) == (200, b"<p>a page</p>")
    assert ask(server.address, {"text": TEXT})[0] == 404
    status, file = ask(f"{server.address}read", {"text": TEXT})
    assert status == 200 and rows(file, "logits")[1].shape == (len(TOKENIZER.encode(TEXT)) + 1, TOKENIZER.vocab)
    root = re.match(r"http://127\.0\.0\.1:\d+/", server.address)[0]
    assert ask(root)[0] == ask(f"{root}guessed/read", {"text": TEXT})[0] == 404
    assert ask(f"{server.address}read", {"text": TEXT}, Host="evil.example")[0] == 404


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"text": ""}, "expected a text with at least one token"),
        ({"text": TEXT * 40}, "expected at most 40 tokens, the model's context"),
        ({"tokens": [3, 280_000]}, "tokens=280000: expected ids from 0 to"),
        ({"text": TEXT, "off": ["decoder.blocks.9.attention.0"]}, "expected names of heads and experts"),
        ({"text": TEXT, "off": ["decoder.blocks.0.attention.4"]}, "expected heads from 0 to 3"),
        ({"text": TEXT, "off": ["decoder.blocks.0.feed_forward.1"]}, "but this layer has no experts"),
    ],
)
def test_what_cannot_be_answered_is_told_in_a_sentence(server, given, message):
    status, said = ask(f"{server.address}read", given)
    assert status == 400 and message in said.decode()


@pytest.mark.parametrize(
    ("length", "body", "status"),
    [
        ("-1", b"", 411),
        ("abc", b"", 411),
        ("1_0", b"", 411),
        ("1000001", b"", 413),
        ("9" * 5000, b"", 413),
        ("4", b"[21]", 400),
        ("40000", b"[" * 40000, 400),
    ],
)
def test_a_request_has_a_length_and_an_object_in_it(server, length, body, status, capfd):
    path = re.sub(r"http://[^/]+", "", server.address) + "read"
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as line:
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\nContent-Length: {length}\r\n\r\n"
        line.sendall(head.encode() + body)
        assert line.recv(99).split()[1] == str(status).encode()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8888", 200),
        ("http://127.0.0.1:9", 200),
        ("http://[::1]:8888", 200),
        ("null", 200),
        ("https://evil.example", 404),
        ("http://localhost.evil.example", 404),
    ],
)
def test_only_pages_of_this_machine_are_answered(server, origin, status):
    assert ask(f"{server.address}read", {"text": TEXT}, Origin=origin)[0] == status


def test_a_page_that_goes_away_or_falls_silent_leaves_no_traceback(server, monkeypatch, capfd):
    gone, held = threading.Event(), threading.Event()

    def slow():
        held.set()
        gone.wait(20)
        return b"x" * 30_000_000

    monkeypatch.setitem(server.answers, "read", slow)
    monkeypatch.setattr(_Answer, "timeout", 0.05)
    path = re.sub(r"http://[^/]+", "", server.address) + "read"
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\nContent-Length: 2\r\n\r\n"
    for sent in (head.encode() + b"{}", head.encode() + b"{", head.encode()[:20]):
        line = socket.create_connection(("127.0.0.1", server.server_port))
        line.sendall(sent)
        assert held.wait(20)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close with a reset
        line.close()
    gone.set()
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as silent:
        silent.sendall(head.encode())
        assert silent.recv(9) == b""
    assert ask(server.address)[0] == 200
    assert capfd.readouterr() == ("", "")


@dataclass
class Parrot:
    """A conversation whose model repeats the last question word for word and is then cut off."""

    title: str = "<parrot>"
    turns: list[str] = field(default_factory=list)
    answers: int = 0
    cut: str = ""

    def ask(self, question):
        if question == "too long":
            raise ValueError("the conversation has 99 tokens")
        yield from (f"{word} " for word in question.split())
        if question == "break":
            raise RuntimeError("no more")
        self.cut = f"cut after {len(self.turns)} turns and {self.answers} answers"


def test_a_page_to_chat_in_stands_beside_the_explorer():
    with Server("<p>a page</p>", Asked(decoder(), TOKENIZER), talk=Parrot()) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        status, page = ask(f"{server.address}chat")
        assert status == 200 and b"Chat with &lt;parrot&gt;" in page and b"{title}" not in page
        status, lines = ask(f"{server.address}say", {"turns": ["Hi", "Hello", "who are you"]})
        assert status == 200 and [json.loads(line) for line in lines.splitlines()] == [
            *({"text": f"{word} "} for word in ("who", "are", "you")),
            {"note": "cut after 2 turns and 1 answers"},
        ]
        _, lines = ask(f"{server.address}say", {"turns": ["break"]})
        assert json.loads(lines.splitlines()[-1]) == {"note": "The model raises RuntimeError: no more"}
        for turns in ([], ["a", "b"], ["a", 3, "b"], ["a", "", "b"], "abc"):
            status, sentence = ask(f"{server.address}say", {"turns": turns})
            assert status == 400 and b"expected texts of the user and the model in turn" in sentence
        assert ask(f"{server.address}say", {"turns": ["too long"]}) == (400, b"the conversation has 99 tokens")
        server.shutdown()


def test_without_a_conversation_there_is_no_page_to_chat_in(server):
    assert ask(f"{server.address}chat")[0] == 404 and ask(f"{server.address}say", {"turns": ["a"]})[0] == 404


def test_a_cell_shows_a_page_that_asks_python_and_keeps_its_text():
    model = decoder().train()
    shown = explore(model, TOKENIZER, TEXT)
    assert model.training and "data-served" not in shown.page
    assert f"data-served=&quot;{shown.address}&quot;" in shown._repr_html_()
    before = rows(ask(f"{shown.address}read", {"text": TEXT})[1], "logits")[1]
    torch.nn.init.zeros_(model.embedding.weight)  # the page shows the model as it was
    assert torch.equal(rows(ask(f"{shown.address}read", {"text": TEXT})[1], "logits")[1], before)


def test_a_port_that_is_taken_is_refused(server):
    with pytest.raises(ValueError, match=r"port=\d+: expected a free port on 127\.0\.0\.1"):
        Server("", server.answers["read"].__self__, server.server_port)


@pytest.mark.parametrize("kind", ["decoder", "translator"])
def test_requests_at_the_same_time_get_what_each_gets_alone(kind, monkeypatch):
    """Four threads request passes, patched states, and heads that are switched off one by one."""
    if kind == "decoder":
        asked, ids = Asked(decoder(), TOKENIZER), {"tokens": [TOKENIZER.separator, *TOKENIZER.encode(TEXT)]}
    else:
        asked = Asked(translator(), WORDS)
        ids = {"tokens": [1, 3, 4, 5, 7], "source": [6, 7, 8]}
    off = ["decoder.blocks.0.attention.1"]
    other = ids | {"tokens": ids["tokens"][::-1]}
    carried = {"other": other, "off": off, "first": 1, "end": 3, "pair": [3, 5]}
    asks = [
        lambda: asked.read(**ids, off=off),
        lambda: asked.read(**ids),
        lambda: list(asked.carried(**ids, **carried)),
        lambda: list(asked.without(**ids, off=off, end=3, token=6)),
    ]
    alone = [ask() for ask in asks]
    found = [[] for _ in asks]

    def run(number):
        for _ in range(4):
            try:
                found[number].append(asks[number]())
            except Exception as error:
                found[number].append(error)

    norm = asked.model.decoder.norm
    real = norm.forward
    # So that other requests come in between
    monkeypatch.setattr(norm, "forward", lambda x: (time.sleep(0.002), real(x))[1])
    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(asks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wrong = [one for results, wanted in zip(found, alone, strict=True) for one in results if one != wanted]
    assert not wrong
