"""Example programs that run without changes. Copy any of them into your own code.

python -m companion.examples.own_text letter.txt       a tokenizer and a decoder for a text of yours
python -m companion.examples.published SmolLM2-135M/   a published model: likely next tokens, and a text
python -m companion.examples.one_layer                 one layer of the package in a module of your own
"""
