"""What becomes of every field of a published folder: the one table that readers, refusals and `inspect` go by.

Each row is a field, its policy, and for a reader's eyes where its value goes or who wrote it:

    taken                the value becomes a part of the model; it must be there
    taken = DEFAULT      the same; a file that leaves it out means DEFAULT
    must be VALUE        other values would make another function: they are refused; a file may leave it out
    must equal FIELD     our models have one number for both
    neutral              says nothing about the function from tokens to logits, or about a text: any value will do
    writing              says nothing about logits, but how text is made of them: the rows under "writing"

A field without a row is refused by name, unless it is null. Rows of a kind of model come before those of every release.
Rows of writing are those of generation_config.json; where there is no such file, of config.json.

The versions after a neutral field are those of `transformers` that wrote it, the first and last seen among 2.2, 2.9,
3.0, 3.5, 4.0, 4.6, 4.10, 4.18, 4.22, 4.26, 4.30, 4.33, 4.36, 4.40, 4.44, 4.46, 4.48, 4.51, 4.53, 4.55, 4.57 and 5.0;
`on` means that the newest of them does. "By hand" are fields that those who published a model added themselves.
"""

TABLE = """
every release
    model_type                       neutral                 chooses the reader
    is_encoder_decoder               must be false
    architectures                    neutral                 2.9 on; the tensors say which ends there are
    transformers_version             neutral                 4.6 on
    torch_dtype                      neutral                 4.10 on; the file's own tensors say it
    dtype                            neutral                 4.57 on; the file's own tensors say it
    _name_or_path                    neutral                 3.5 on
    name_or_path                     neutral                 3.5 on
    _commit_hash                     neutral                 4.22 on
    _attn_implementation_autoset     neutral                 4.46 to 4.53
    attn_implementation              neutral                 4.36 on
    _experts_implementation          neutral                 5.0 on
    use_cache                        neutral                 2.9 on
    initializer_range                neutral                 2.2 on
    gradient_checkpointing           neutral                 3.0 to 4.57
    chunk_size_feed_forward          neutral                 3.5 on; the same sums in pieces
    torchscript                      neutral                 2.2 to 4.57
    use_bfloat16                     neutral                 2.2 to 4.57; TensorFlow's
    tf_legacy_loss                   neutral                 4.22 to 4.57; TensorFlow's
    xla_device                       neutral                 2.9 to 4.53
    output_past                      neutral                 2.2
    output_attentions                neutral                 2.2 on
    output_hidden_states             neutral                 2.2 on
    return_dict                      neutral                 3.5 on
    finetuning_task                  neutral                 2.2 to 4.57
    task_specific_params             neutral                 2.9 to 4.57; for pipelines
    tokenizer_class                  neutral                 3.5 to 4.57
    problem_type                     neutral                 4.6 on
    id2label                         neutral                 2.9 on
    label2id                         neutral                 2.9 on
    num_labels                       neutral                 2.2 to 4.53
    _num_labels                      neutral                 2.9 to 3.0, as a property
    classifier_dropout               neutral                 4.6 on; of heads that are not read
    bos_token_id                     writing
    eos_token_id                     writing
    pad_token_id                     writing
    sep_token_id                     neutral                 3.5 to 4.57
    unk_token_id                     neutral                 by hand
    pruned_heads                     must be {}
    tie_encoder_decoder              must be false
    add_cross_attention              must be false
    cross_attention_hidden_size      must be null
    prefix                           must be null or ""

gpt2
    vocab_size                       taken                   vocab
    n_embd                           taken                   d_model
    n_layer                          taken                   layers
    n_head                           taken                   attention.heads
    n_positions                      taken                   context
    n_ctx                            must equal n_positions
    n_inner                          taken = null            feed_forward.d_ff; null: 4 d_model
    activation_function              taken = "gelu_new"      feed_forward.activation
    layer_norm_epsilon               taken = 1e-05           norm.eps
    resid_pdrop                      taken = 0.1             dropout
    embd_pdrop                       must equal resid_pdrop = 0.1
    attn_pdrop                       must equal resid_pdrop = 0.1
    tie_word_embeddings              taken = true            embedding.tied
    scale_attn_weights               must be true
    scale_attn_by_inverse_layer_idx  must be false
    reorder_and_upcast_attn          must be false
    is_decoder                       neutral                 2.2 to 4.57; it always is one
    summary_type                     neutral                 2.2 on; of a head that is not read
    summary_use_proj                 neutral                 2.2 on
    summary_activation               neutral                 2.2 on
    summary_proj_to_labels           neutral                 2.2 on
    summary_first_dropout            neutral                 2.2 on

bert
    vocab_size                       taken                   vocab
    hidden_size                      taken                   d_model
    num_hidden_layers                taken                   layers
    num_attention_heads              taken                   attention.heads
    intermediate_size                taken                   feed_forward.d_ff
    max_position_embeddings          taken                   context
    type_vocab_size                  taken = 2               embedding.segments
    hidden_act                       taken = "gelu"          feed_forward.activation
    layer_norm_eps                   taken = 1e-12           norm.eps
    hidden_dropout_prob              taken = 0.1             dropout
    attention_probs_dropout_prob     must equal hidden_dropout_prob = 0.1
    tie_word_embeddings              must be true
    is_decoder                       must be false
    position_embedding_type          must be "absolute"
    directionality                   neutral                 by hand
    pooler_fc_size                   neutral                 by hand
    pooler_num_attention_heads       neutral                 by hand
    pooler_num_fc_layers             neutral                 by hand
    pooler_size_per_head             neutral                 by hand
    pooler_type                      neutral                 by hand

marian
    is_encoder_decoder               must be true
    vocab_size                       taken                   vocab
    decoder_vocab_size               must equal vocab_size
    d_model                          taken                   d_model
    encoder_layers                   taken                   layers
    decoder_layers                   must equal encoder_layers
    num_hidden_layers                must equal encoder_layers
    encoder_attention_heads          taken                   attention.heads
    decoder_attention_heads          must equal encoder_attention_heads
    encoder_ffn_dim                  taken                   feed_forward.d_ff
    decoder_ffn_dim                  must equal encoder_ffn_dim
    max_position_embeddings          taken                   context
    activation_function              taken = "gelu"          feed_forward.activation
    scale_embedding                  taken = false           embedding.scaled
    dropout                          taken = 0.1             dropout
    attention_dropout                must be 0.0
    activation_dropout               must be 0.0
    encoder_layerdrop                must be 0.0
    decoder_layerdrop                must be 0.0
    normalize_before                 must be false
    normalize_embedding              must be false
    add_final_layer_norm             must be false
    add_bias_logits                  must be false
    static_position_embeddings       must be true
    share_encoder_decoder_embeddings must be true
    tie_word_embeddings              must be true
    is_decoder                       must be false
    decoder_start_token_id           writing
    force_bos_token_to_be_generated  must be false
    extra_pos_embeddings             neutral                 3.0 to 4.0; rows of a table that sinusoids replaced
    classif_dropout                  neutral                 2.9 to 3.0
    init_std                         neutral                 2.9 on

llama
    vocab_size                       taken                   vocab
    hidden_size                      taken                   d_model
    num_hidden_layers                taken                   layers
    num_attention_heads              taken                   attention.heads
    num_key_value_heads              taken = null            attention.kv_heads; null: as many as heads
    head_dim                         taken = null            attention.d_head; null: d_model / heads
    attention_bias                   taken = false           attention.bias
    intermediate_size                taken                   feed_forward.d_ff
    mlp_bias                         taken = false           feed_forward.bias
    hidden_act                       taken = "silu"          feed_forward.activation, of the gate
    max_position_embeddings          taken                   context
    rope_theta                       taken = 10000.0         positions.base
    rope_scaling                     taken = null            positions.scaling; up to 4.57
    rope_parameters                  taken = null            positions; 5.0 on
    partial_rotary_factor            must be 1.0 or null
    rms_norm_eps                     taken = 1e-06           norm.eps
    tie_word_embeddings              taken = false           embedding.tied
    attention_dropout                must be 0.0
    pretraining_tp                   must be 1
    is_decoder                       neutral                 2.2 to 4.57; it always is one
    is_llama_config                  neutral                 by hand
    unsloth_fixed                    neutral                 by hand
    rope_interleaved                 must be false

mistral, as llama but for
    num_key_value_heads              taken = 8               attention.kv_heads
    sliding_window                   taken = 4096            attention.window.width; null: none
    layer_types                      taken = null            attention.window.pattern
    attention_bias                   must be false
    mlp_bias                         must be false

mixtral, as mistral but for
    rope_theta                       taken = 1000000.0       positions.base
    rms_norm_eps                     taken = 1e-05           norm.eps
    sliding_window                   taken = null            attention.window.width; null: none
    num_local_experts                taken = 8               moe.experts
    num_experts_per_tok              taken = 2               moe.top_k
    router_jitter_noise              must be 0.0
    router_aux_loss_coef             neutral                 4.36 on; of a loss in training
    output_router_logits             neutral                 4.36 on

qwen2, as llama but for
    num_key_value_heads              taken = 32              attention.kv_heads
    attention_bias                   must be true
    mlp_bias                         must be false
    use_sliding_window               taken = false           attention.window
    sliding_window                   taken = 4096            attention.window.width, where there is one
    max_window_layers                taken = 28              attention.window.pattern: those from this one on
    layer_types                      taken = null            attention.window.pattern; 4.53 on
    use_mrope                        must be false

qwen3, as qwen2 but for
    head_dim                         taken = 128             attention.d_head
    attention_bias                   taken = false           attention.bias

qwen3_moe, as llama but for
    num_key_value_heads              taken = 4               attention.kv_heads
    mlp_bias                         must be false
    moe_intermediate_size            taken = 768             feed_forward.d_ff, of an expert
    intermediate_size                neutral                 4.51 on; of layers without experts
    num_experts                      taken = null            moe.experts; null: 128
    num_local_experts                taken = null            the same, as 5.0 on writes it
    num_experts_per_tok              taken = 8               moe.top_k
    norm_topk_prob                   taken = false           moe.gating
    decoder_sparse_step              must be 1
    mlp_only_layers                  must be [] or null
    use_sliding_window               must be false
    sliding_window                   neutral                 4.51 on; of a window that is not used
    max_window_layers                neutral                 4.51; the same
    router_aux_loss_coef             neutral                 4.51 on; of a loss in training
    output_router_logits             neutral                 4.51 on

gemma2, as llama but for
    num_key_value_heads              taken = 4               attention.kv_heads
    head_dim                         taken = 256             attention.d_head
    hidden_activation                taken = "gelu_pytorch_tanh"  feed_forward.activation, of the gate
    hidden_act                       must equal hidden_activation
    query_pre_attn_scalar            taken = 256             attention.score_width
    attn_logit_softcapping           taken = 50.0            attention.score_cap
    final_logit_softcapping          taken = 30.0            embedding.logit_cap
    sliding_window                   taken = 4096            attention.window.width
    layer_types                      taken = null            attention.window.pattern; null: every second is global
    tie_word_embeddings              taken = true            embedding.tied
    mlp_bias                         must be false
    use_bidirectional_attention      must be false or null
    cache_implementation             neutral                 4.44 to 4.51

gemma3_text, as gemma2 but for
    rope_theta                       taken = 1000000.0       positions.base
    rope_local_base_freq             taken = 10000.0         attention.window.base
    attn_logit_softcapping           must be null
    final_logit_softcapping          taken = null            embedding.logit_cap
    layer_types                      taken = null            attention.window.pattern; 4.53 on
    sliding_window_pattern           taken = 6               attention.window.pattern: one in so many is global; 4.51
    _sliding_window_pattern          must equal sliding_window_pattern

olmo2, as llama but for
    rms_norm_eps                     taken = 1e-05           norm.eps
    mlp_bias                         must be false

smollm3, as llama but for
    num_key_value_heads              taken = 4               attention.kv_heads
    rope_theta                       taken = 2000000.0       positions.base
    no_rope_layers                   taken = null            positions.pattern: 1 turns, 0 does not
    no_rope_layer_interval           taken = 4               positions.pattern: one in so many does not
    use_sliding_window               taken = false           attention.window
    sliding_window                   taken = null            attention.window.width
    layer_types                      taken = null            attention.window.pattern
    tie_word_embeddings              taken = true            embedding.tied
    pretraining_tp                   neutral                 by hand
    max_window_layers                neutral                 by hand

writing
    bos_token_id                     taken = null            what a decoder's text begins with
    decoder_start_token_id           taken = null            what a translation begins with
    eos_token_id                     taken = null            what ends a text; one, or several
    pad_token_id                     taken = null            what fills up a batch; nothing here needs it
    do_sample                        taken = null            draw, or take the most probable token
    temperature                      taken = null            Sampling.temperature
    top_k                            taken = null            Sampling.top_k; 0: all
    top_p                            taken = null            Sampling.top_p
    min_p                            taken = null            Sampling.min_p
    num_beams                        taken = 1               beam_search(width)
    length_penalty                   taken = 1.0             beam_search(length_penalty)
    early_stopping                   taken = false           beam_search(early_stopping)
    max_new_tokens                   taken = null            most tokens to write
    max_length                       taken = null            the same, with those before; 20 is what 4 said of itself
    min_new_tokens                   taken = null            Rules.min_new_tokens
    min_length                       taken = 0               the same, with those before: of translators alone
    repetition_penalty               taken = 1.0             Rules.repetition_penalty
    no_repeat_ngram_size             taken = 0               Rules.no_repeat
    bad_words_ids                    taken = null            Rules.never; single tokens
    suppress_tokens                  taken = null            Rules.never
    forced_eos_token_id              taken = null            Rules.last
    renormalize_logits               taken = false           Rules.renormalised
    stop_strings                     taken = null            texts that end a text; one, or several
    begin_suppress_tokens            must be null or []
    forced_bos_token_id              must be null
    forced_decoder_ids               must be null or []
    force_words_ids                  must be null or []
    constraints                      must be null or []
    sequence_bias                    must be null or {} or []
    typical_p                        must be 1.0 or null
    epsilon_cutoff                   must be 0.0 or null
    eta_cutoff                       must be 0.0 or null
    top_h                            must be null
    encoder_repetition_penalty       must be 1.0 or null
    encoder_no_repeat_ngram_size     must be 0 or null
    exponential_decay_length_penalty must be null
    diversity_penalty                must be 0.0 or null
    num_beam_groups                  must be 1 or null
    penalty_alpha                    must be null or 0.0
    guidance_scale                   must be null or 1.0
    dola_layers                      must be null
    watermarking_config              must be null
    token_healing                    must be false or null
    remove_invalid_values            must be false or null
    num_return_sequences             must be 1 or null
    max_time                         must be null
    use_mtp                          must be null or false
    generation_kwargs                must be {} or null
    use_cache                        neutral                 4.26 on
    cache_implementation             neutral                 4.40 on
    cache_config                     neutral                 4.44 on
    max_cache_len                    neutral                 5.0 on
    return_legacy_cache              neutral                 4.44 to 4.57
    output_attentions                neutral                 4.26 on
    output_hidden_states             neutral                 4.26 on
    output_scores                    neutral                 4.26 on
    output_logits                    neutral                 4.40 on
    return_dict_in_generate          neutral                 4.26 on
    low_memory                       neutral                 4.33 on
    compile_config                   neutral                 4.48 on
    disable_compile                  neutral                 4.51 on
    prefill_chunk_size               neutral                 4.51 on
    continuous_batching_config       neutral                 5.0 on
    is_assistant                     neutral                 5.0 on; the next seven: the same text in fewer steps
    num_assistant_tokens             neutral                 4.36 on
    num_assistant_tokens_schedule    neutral                 4.36 on
    assistant_confidence_threshold   neutral                 4.46 on
    assistant_early_exit             neutral                 4.48 on
    assistant_lookbehind             neutral                 4.48 on
    target_lookbehind                neutral                 4.48 on
    assistant_ensemble_weight        neutral                 5.0 on
    speculation_type                 neutral                 5.0 on
    prompt_lookup_num_tokens         neutral                 4.40 on
    max_matching_ngram_size          neutral                 4.40 on
    _from_model_config               neutral                 4.26 on
    _commit_hash                     neutral                 4.26 on
    transformers_version             neutral                 4.26 on
"""
"""A kind of model begins at the margin; `as` another it has that one's rows too, but for its own."""
__doc__ = f"{__doc__}{TABLE}"
