"""Load a published model from its folder, show the likeliest next tokens, and continue a text.

    python -m companion.examples.published SmolLM2-135M/ ["The sea is"]

The folder must contain the released files: config.json, model.safetensors and a tokenizer. The model can be GPT-2,
LLaMA, Mistral, Qwen, Gemma, OLMo, SmolLM or one of many others. `companion inspect FOLDER` shows how each field is
used. To download a model first, call `load_pretrained("HuggingFaceTB/SmolLM2-135M", download=True)`; this needs pip
install "executable-transformer[published]".
"""

from __future__ import annotations

import sys

import torch

from companion import complete, load_pretrained
from companion.data.published_tokenizers import load_tokenizer
from companion.files.published.generation_config import read_writing


def main(folder: str, prompt: str = "The sea is") -> None:
    model, tokenizer = load_pretrained(folder).eval(), load_tokenizer(folder)
    says = read_writing(folder, model.config.vocab)  # the generation settings in the model's folder
    ids = tokenizer.encode(prompt)
    print(f"{folder}: {sum(weight.numel() for weight in model.parameters()):,} parameters")

    with torch.no_grad():
        chances = model(torch.tensor([ids])).logits[0, -1].softmax(dim=-1)  # (vocab)
    for chance, token in zip(*(found.tolist() for found in chances.topk(5)), strict=True):
        print(f"  {chance:6.1%}  {tokenizer.spell([token])!r}")

    [new] = complete(model, [ids], max_new_tokens=20, sampling=says.sampling, stop=says.special.stop, rules=says.rules)
    print(prompt + tokenizer.decode(new))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(*sys.argv[1:])
