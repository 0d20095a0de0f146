"""The explorer: a page on which a model runs, and every number of it can be seen.

models       the models that ship, and the form in which a page reads them
engine.js    their forward pass, with a cache
words.js     their tokens
page.js      what is chosen and shown; page.css how it looks
page_files   what a page is made of
activations  the same numbers by Python, of any decoder
logit_lens   what a model would say next if it ended after a layer
model_page   a page of a model of your own, or a pass of it
server       a server on this machine, which makes a pass at every request of a page; served.js asks
notebook     `explore`, which shows a page in a notebook
"""

from companion_school.explorer.notebook import explore as explore
