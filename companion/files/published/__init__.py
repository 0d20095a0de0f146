"""Published checkpoints: GPT-2, BERT, Marian, LLaMA and its kin, read into our model.

pretrained  whatever a folder, or a name on a hub, holds
table       what becomes of every field: the table; policy: as values
folder      the fields and the tensors of such a folder
places      tensors on their way to our names
reader      how a folder goes through a layout
gpt2, bert, marian, llama    a layout each; rotary: how LLaMA's kin write their positions
writing     what a folder says of writing
inspected   a folder looked into, field by field
"""
