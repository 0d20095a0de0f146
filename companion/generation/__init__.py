"""Text generation, token by token.

sampling        the distribution that a token is drawn from
logit_rules     which tokens are allowed at each step, whatever their probability: penalties, stops, n-grams
next_token      drawing a token
prefill_decode  reading the prompts in one pass, then one token per row and step
compiled_steps  compiled decode steps, stored on disk for the next process
request         the arguments of a generation call, validated
generate        one token per row and step
draft           the source of the proposed tokens
speculative     verification of the proposals, several tokens per pass
block_manager   which text uses which block of a paged cache
serving         many texts at once, which join and leave at any step
beam            beam search
"""
