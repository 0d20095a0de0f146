"""From text on a disk to batches of token ids: corpora, the tokenizer, batches, and the yardsticks to beat.

corpora        real text to learn from; deduplication: what it says twice
tokenizer      text to token ids and back; published_tokenizers: those of published models
packing        windows that no document crosses
batches        windows to train on and to measure with
large_corpora  text too large to hold, part by part
yardsticks     what a model has to beat
number_names   numbers and their names in several languages
stories        stories from a grammar, and whether a story makes sense
number_words   translating them, as a task
conversations  files of them, and of preferences between answers
verifiable     problems whose answers a function checks
chat_tokens    which tokens of a conversation are an answer, for one model
chat_template  turns of a conversation as the text that a published model expects
"""
