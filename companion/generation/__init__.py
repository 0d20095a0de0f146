"""Text from a model, token by token.

decoding  what every way of generating shares
sampling  how a token is drawn
weights   the form in which steps read them
generate  a token for each row and step
beam      beam search
"""
