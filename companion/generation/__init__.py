"""Text from a model, token by token.

sampling        the distribution that a token is drawn from
logit_rules     which tokens may come when, whatever their probability: penalties, stops, n-grams
next_token      a token is drawn
prefill_decode  the model reads the prompts, then a token per row and step
weights         the form in which steps read them, put into the one model
calibration     the levels of int4, chosen by a text
quantization    weights rounded to few bits
matmul_kernels  one product in each of these forms; compiled_steps: made once, for the next process
request         what is asked of a model, checked
generate        a token for each row and step
draft           who proposes tokens ahead of the model
speculative     the model judges what is proposed, several tokens in a pass
block_manager   who has which block of a paged cache
serving         many texts at once, which come and go
beam            beam search
"""
