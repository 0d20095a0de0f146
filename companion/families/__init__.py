"""Published models, a file for each family: its fields, its tensors' names, what it refuses, its releases by name.

llama                 LLaMA; its kin take from it what they share: mistral (and Mixtral), qwen, gemma, olmo, smollm,
                      glm, phi, granite, olmoe, exaone, ernie, seed_oss, deepseek, gpt_oss, llama4, starcoder2,
                      cohere, minimax, qwen3_next, qwen3_5, kimi
gpt2, gpt_neo, opt    decoders with learned positions; gpt_neox (Pythia) has rotary ones
bert                  encoders: BERT; roberta (and XLM-R), distilbert, modernbert
marian, bart, t5      encoder-decoders
original_transformer  the transformer of 2017, of which there are no weights
registry              finds all these, and a preset by its name
pretrained            loads whatever a folder, or a name on a hub, holds
export                a model of ours as a published one; adapters: low-rank ones, in peft's layout
inspected             a folder looked into, field by field
"""
