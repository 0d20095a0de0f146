"""Published models. Each family has a file with its configuration fields, tensor names, rejected settings and releases.

llama                 LLaMA, and the code shared by its relatives: mistral (and Mixtral), qwen, gemma, olmo, smollm,
                      glm, phi, granite, olmoe, exaone, ernie, seed_oss, deepseek, gpt_oss, llama4, starcoder2,
                      cohere, minimax, qwen3_next, qwen3_5, kimi
gpt2, gpt_neo, opt    decoders with learned positions; gpt_neox (Pythia): rotary positions
bert                  BERT; other encoders: roberta (and XLM-R), distilbert, modernbert
marian, bart, t5      encoder-decoders
original_transformer  the 2017 Transformer, whose weights were never published
registry              lists all families, and finds a preset by its name
pretrained            loads a model from a folder, a GGUF file or a hub
export                writes one of our models in a published layout
adapters              reads and writes low-rank adapters in peft's layout
inspected             reports on a model's folder, field by field
"""
