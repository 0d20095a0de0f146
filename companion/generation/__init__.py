"""Text from a model, token by token.

decoding     what every way of generating shares
rules        which tokens may come when
sampling     how a token is drawn
weights      the form in which steps read them
drawing      what a step adds to a text
generate     a token for each row and step
draft        who proposes tokens ahead of the model
speculative  the model judges what is proposed, several tokens in a pass
batch        sequences that come and go
beam         beam search
"""
