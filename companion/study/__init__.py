"""What a lesson draws and calculates with, beside the model. Needs the `lab` extra.

figures        one style, one way to finish a figure
slider         a figure that moves
model_map      what a word passes through, each station with its lesson
micro_example  a transformer that fits on a sheet of paper
"""
