"""The runs in which each stage's code is compared with the reference, and the tensors that are compared."""

from companion_school.build.scenes import (
    attention,
    experts,
    generation,
    latent,
    later,
    layers,
    model,
    positions,
    published,
    training,
    translation,
)
from companion_school.build.scenes.scene import Scene

_SCENES = {
    2: attention.SCENES,
    3: positions.SCENES,
    4: layers.SCENES,
    5: model.SCENES,
    6: training.SCENES,
    7: generation.SCENES,
    8: translation.SCENES,
    9: experts.SCENES,
    10: published.LLAMA_SCENES,
    12: latent.SCENES,
    13: published.GPT2_SCENES,
    14: later.DELTA,
    15: later.SPECULATIVE,
    16: later.QUANTIZED,
    17: later.ADAPTERS,
    18: later.INSIDE,
}


def scenes(number: int) -> tuple[Scene, ...]:
    """Return the scenes of a stage, simplest first, or an empty tuple if the stage has none."""
    return _SCENES.get(number, ())
