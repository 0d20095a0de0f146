"""Text from a model, token by token.

generate   prefill and decode, cached, in batches of unequal lengths
sampling   temperature, top-k and top-p
beam       the search for the most probable text
decoding   what one step of decoding needs: the prompts side by side, the cache, where to stop
"""
