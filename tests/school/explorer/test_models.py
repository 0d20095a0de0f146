"""The explorer's models: the contents of their files, and their record."""

import hashlib
import re
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qsl

import pytest

from authoring.pages import explorer
from authoring.records import live, story
from authoring.site import explorer as site
from authoring.site.output import Assets
from companion.config.model import (
    AttentionConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    ModelConfig,
    MoEConfig,
    NormConfig,
    PositionConfig,
    WindowConfig,
)
from companion.transformer import Transformer
from companion_school.explorer import page_files
from companion_school.explorer.models import (
    NAMES,
    header,
    live_file,
    load_live,
    not_computed,
    save_live,
)
from companion_school.explorer.page_files import shipped_scripts
from companion_school.records import record, story_model

ROOT = Path(__file__).parents[3]


def test_a_file_gives_back_the_model_that_it_was_written_of(tmp_path):
    model, _ = story_model()
    file = tmp_path / "model.safetensors"
    save_live(file, model, {"made_of": "a hash"})
    assert header(file)["made_of"] == "a hash"
    for name, kept in load_live(file).state_dict().items():
        true = model.state_dict()[name]
        assert (kept - true).abs().max() <= true.abs().max() / 250


def test_a_name_that_no_model_has_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="model 'other': expected one of story, experts, translator"):
        live_file("other")


def test_the_record_is_of_the_files_that_ship_which_are_small_and_lose_little():
    found, text = record("live"), SimpleNamespace(fingerprint=record("story")["text"])
    assert tuple(found) == NAMES
    for name, made in found.items():
        content = live_file(name).read_bytes()
        assert (made["sha256"], made["bytes"]) == (hashlib.sha256(content).hexdigest(), len(content))
        assert header(live_file(name))["made_of"] == made["made_of"]
        assert abs(made["bits_after"] - made["bits_before"]) < 0.01
        assert made["weights"] == sum(weight.numel() for weight in load_live(live_file(name)).parameters())
    assert sum(made["bytes"] for made in found.values()) < 2e6
    assert found["story"]["made_of"] == record("story")["runs"][0]["made_of"]
    assert found["experts"]["made_of"] == story.made_of(text, found["experts"])
    assert found["experts"]["plan"]["updates"] == live.TWIN and found["translator"]["updates"] == live.UPDATES


def test_the_site_has_a_page_with_each_model_as_a_script_and_its_loss():
    assets = Assets()
    text = site.with_explorer(explorer.render([]), assets)
    assert "{{" not in text and "companion explore" not in text
    for model in NAMES:
        assert assets.files[f"_static/explorer/{model}.js"].decode() == shipped_scripts()[model]
        assert f"_static/explorer/{model}.js" in text
        assert f"{record('live')[model]['bits_after']:.5f}" in text


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"norm": NormConfig(placement="post")}, "norm"),
        ({"positions": PositionConfig("rotary", partial_rotary_factor=0.5)}, "positions"),
        ({"embedding": EmbeddingConfig(tied=False)}, "embedding"),
        ({"attention": AttentionConfig(4, window=WindowConfig(8))}, "attention"),
        ({"feed_forward": FeedForwardConfig(64, "gelu")}, "activation"),
        ({"moe": MoEConfig(4, 2, shared=1)}, "moe"),
        ({"residual": 0.5}, "residual"),
    ],
)
def test_what_the_page_does_not_compute_is_named_and_not_written(change, named, tmp_path):
    config = ModelConfig(19, 32, 2, 64, AttentionConfig(4, 2), FeedForwardConfig(48))
    assert not_computed(config) is None
    with pytest.raises(ValueError, match=f"this one has a different {named}"):
        save_live(tmp_path / "model.safetensors", Transformer(config.with_(**change)), {})


def test_what_lessons_link_to_is_there():
    script, found = page_files.script(), {}
    for lesson in sorted((ROOT / "authoring" / "lessons").glob("*.md")):
        for state in re.findall(r"\(explorer\.md#([^)]+)\)", lesson.read_text("utf-8")):
            said = found[lesson.name[:2]] = dict(parse_qsl(state, strict_parsing=True))
            model = load_live(live_file(said["model"]))
            for head in (said[name] for name in ("head", "beside") if name in said):
                layer, number = head.split(":")
                assert 0 <= int(number) < model.get_submodule(layer).sizes.heads
            assert f'section("{said["show"]}"' in script
            assert said.keys() <= {"model", "at", "head", "beside", "key", "temperature", "top-p", "each", "show"}
    assert list(found) == ["02", "03", "05", "07", "08", "10", "11", "14", "21"]
