"""Load a published model from its folder, ask what comes next, and let it go on with a text.

    python -m companion.examples.published SmolLM2-135M/ ["The sea is"]

The folder is as its makers released it: config.json, model.safetensors and a tokenizer, of GPT-2, LLaMA, Mistral, Qwen,
Gemma, OLMo or SmolLM. `companion inspect FOLDER` says what became of each field. A model that is not a folder yet:
`load_pretrained("HuggingFaceTB/SmolLM2-135M", download=True)` fetches it, with pip install
"executable-transformer[published]".
"""

from __future__ import annotations

import sys

import torch

from companion import complete, load_pretrained
from companion.data.published_tokenizers import load_tokenizer
from companion.files.published.generation_config import read_writing


def main(folder: str, prompt: str = "The sea is") -> None:
    model, tokenizer = load_pretrained(folder).eval(), load_tokenizer(folder)
    says = read_writing(folder, model.config.vocab)  # how its makers let it write
    ids = tokenizer.encode(prompt)
    print(f"{folder}: {sum(weight.numel() for weight in model.parameters()):,} parameters")

    with torch.no_grad():
        chances = model(torch.tensor([ids])).logits[0, -1].softmax(dim=-1)  # (vocab)
    for chance, token in zip(*(found.tolist() for found in chances.topk(5)), strict=True):
        print(f"  {chance:6.1%}  {tokenizer.spell([token])!r}")

    [new] = complete(model, [ids], max_new_tokens=20, sampling=says.sampling, stop=says.special.stop, rules=says.rules)
    print(prompt + tokenizer.decode(new))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) if len(sys.argv) > 1 else __doc__)
