"""What a lesson draws and calculates with, beside the model. Needs the `lab` extra.

figures         one style, one way to finish a figure; palette: its colours
figure_html     the HTML around a figure; plotted_numbers: those behind it
live/           figures that move
model_map       what a word passes through, each station with its lesson
micro_example   a transformer that fits on a sheet of paper
progress_table  the path through the course, with what the reader has done; where_next: where to go on
dictionary      a look-up that attention learns; rounds: a task that needs order; published: real models, where they are
readers_copy    the reader's copy of the notebooks, and JupyterLab on it
"""
