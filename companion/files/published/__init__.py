"""Published checkpoints: GPT-2, BERT, LLaMA, Mixtral and Marian, read into our model.

pretrained  whatever a folder, or a name on a hub, holds
folder      the fields, the tensors and the special tokens of such a folder
gpt2, bert, llama, marian    a layout each
"""
