"""From text on a disk to batches of token ids: corpora, the tokenizer, batches, and the yardsticks to beat."""
