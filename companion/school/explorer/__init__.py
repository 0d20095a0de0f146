"""The explorer: a page on which a model runs, and every number of it can be seen.

models       the models that ship, and the form in which a page reads them
engine.js    their forward pass, with a cache
words.js     their tokens
page.js      what is chosen and shown; page.css how it looks
files        what a page is made of
"""
