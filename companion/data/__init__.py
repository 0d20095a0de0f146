"""Data: corpora, tokenizers, batches of token ids, and baselines for a model to beat.

corpora               real text to learn from; deduplication: removing repeated paragraphs;
                      near_duplicates: finding texts that share most of their wording
tokenizer             text to token ids and back; published_tokenizers: those of published models
packing               windows that no document crosses
batches               windows for training and for evaluation
large_corpora         text too large for memory, part by part
yardsticks            baselines for a model
number_names          numbers and their names in several languages
stories               stories from a grammar, and a check whether a story is consistent
number_words          translating number names, as a task
conversations         files of conversations, and of preferences between answers
verifiable            problems whose answers a function checks
chat_tokens           which tokens of a conversation are an answer, for one model
chat_template         turns of a conversation as the text that a published model expects
"""
