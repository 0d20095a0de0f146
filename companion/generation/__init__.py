"""Text generation, token by token.

sampling        the distribution that a token is drawn from
logit_rules     rules on tokens, whatever their probability: penalties, stop tokens, repeated n-grams
next_token      drawing the next token
prefill_decode  reading the prompts in one pass, then one token per row and step
compiled_steps  compiled decode steps, stored on disk for the next process
request         the arguments of a generation call, validated
generate        generating text, one token per row and step
draft           sources of proposed tokens for speculative decoding
speculative     verifying the proposed tokens, several in one pass
block_manager   which text uses which block of a paged cache
serving         generating many texts at once, which can join and leave at any step
beam            beam search
"""
