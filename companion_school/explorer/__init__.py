"""The explorer, a page that runs a model and shows all of its activations.

models       the models that ship, and their file format
engine.js    their forward pass, with a KV cache
words.js     their tokenizers
page.js      the page's controls and views; page.css is its style
page_files   assemble a page from its parts
activations  compute the same activations in Python, for any decoder
logit_lens   predict the next token from the states after each layer
model_page   a page for a model of your own, or for one pass of it
server       a local server that computes a pass for each request of a page; served.js is its client
notebook     `explore`, which shows a page in a notebook
"""

from companion_school.explorer.notebook import explore as explore
