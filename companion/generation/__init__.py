"""Text from a model, token by token.

decoding  what every way of generating shares
rules     which tokens may come when
sampling  how a token is drawn
weights   the form in which steps read them
generate  a token for each row and step
beam      beam search
"""
