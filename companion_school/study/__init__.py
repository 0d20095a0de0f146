"""Figures, small tasks and pages that the lessons use. Needs the `lab` extra.

figures         the style of all figures, and `show`, which checks and displays one; palette: the colors
figure_html     the HTML around a figure; plotted_numbers: the numbers behind it
live/           figures that move
model_map       the path of a word through the model, with the lesson for each step
micro_example   a transformer that fits on a sheet of paper
progress_table  the course's table of lessons with the reader's progress; where_next: the next thing to do
dictionary      a look-up task for attention; rounds: a task that needs order; published: small published models
real            measurements on real models, with their records
workers         processes that run a lesson's own functions together
readers_copy    the reader's copy of the notebooks, opened in JupyterLab
missing_names   the note that its kernel adds to a NameError
"""
