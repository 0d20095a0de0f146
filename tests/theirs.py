"""Small models of `transformers` with random weights, for the tests that compare ours with them."""

import os

import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before the import, so that nothing here tries to use a network
import transformers


def gpt2(**changes):
    config = transformers.GPT2Config(
        **{"vocab_size": 61, "n_embd": 20, "n_layer": 3, "n_head": 4, "n_positions": 24, "n_inner": 36} | changes
    )
    return _drawn(transformers.GPT2LMHeadModel(config))


def llama(**changes):
    config = transformers.LlamaConfig(
        **{
            "vocab_size": 59,
            "hidden_size": 24,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "intermediate_size": 40,
            "max_position_embeddings": 24,
        }
        | changes
    )
    return _drawn(transformers.LlamaForCausalLM(config))


def qwen3(**changes):
    config = transformers.Qwen3Config(
        **{
            "vocab_size": 59,
            "hidden_size": 24,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "head_dim": 10,
            "intermediate_size": 40,
            "max_position_embeddings": 24,
        }
        | changes
    )
    return _drawn(transformers.Qwen3ForCausalLM(config))


def mixtral(**changes):
    config = transformers.MixtralConfig(
        **{
            "vocab_size": 53,
            "hidden_size": 24,
            "num_hidden_layers": 3,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "intermediate_size": 20,
            "max_position_embeddings": 24,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
        }
        | changes
    )
    return _drawn(transformers.MixtralForCausalLM(config))


def bert(head=transformers.BertForPreTraining, **changes):
    config = transformers.BertConfig(
        **{
            "vocab_size": 57,
            "hidden_size": 20,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 36,
            "max_position_embeddings": 24,
            "type_vocab_size": 3,
        }
        | changes
    )
    return _drawn(head(config))


def marian(**changes):
    config = transformers.MarianConfig(
        **{
            "vocab_size": 47,
            "d_model": 20,
            "encoder_layers": 3,
            "decoder_layers": 3,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 36,
            "decoder_ffn_dim": 36,
            "max_position_embeddings": 40,
            "activation_function": "swish",
            "scale_embedding": True,
            "pad_token_id": 46,
            "decoder_start_token_id": 46,
            "eos_token_id": 0,
            "forced_eos_token_id": None,
        }
        | changes
    )
    model = _drawn(transformers.MarianMTModel(config))
    model.final_logits_bias.normal_()
    for stack in (model.model.encoder, model.model.decoder):
        positions = stack.embed_positions  # they are not learned, and drawing them anew would give another model
        positions.weight.copy_(positions.create_weight())
    return model


@torch.no_grad()
def _drawn(model):
    """Draw all weights, gains and biases anew, because at their initial values some could be swapped unnoticed."""
    torch.manual_seed(5)
    for p in model.parameters():
        p.normal_(std=0.3)
        if p.ndim == 1:
            p += 1
    return model.eval()
