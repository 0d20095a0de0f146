"""Example programs that run without changes. Copy any of them into your own code.

python -m companion.examples.own_text letter.txt       train a tokenizer and a decoder on a text of your own
python -m companion.examples.published SmolLM2-135M/   load a published model, and let it continue a text
python -m companion.examples.one_layer                 use one layer of the package in a module of your own
"""
