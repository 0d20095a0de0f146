"""The commands of `companion`, a file each: its flags beside its deed.

In each, `parser()` gives the flags, and `run(flags)` does what they ask for and gives the exit code. It raises
`ValueError` for bad input, before anything is written; `main` prints that in a sentence and ends with 2.

main           all commands, from the command line to an exit code
parser         how flags are read and refused; help_format: how help is laid out
settings_file  `--config`; preflight: what is asked before anything is made
runs           what several commands ask for
train, tune    a run, begun or gone on with
writer         a model with its tokenizer, and how it writes
"""
