"""The commands of `companion`, one module each.

In each module, `parser()` returns the parser of the flags, and `run(flags)` does the work and returns the exit code.
Bad input raises a `ValueError` before anything is written. `main` then prints the message and exits with code 2.

main           runs any command, from the command line to the exit code
parser         reads flags and reports bad ones; help_format: lays out the help
settings_file  reads the file that `--config` names; preflight: checks made before anything is written
runs           finds a run and reads a configuration, for several commands
train, tune    start or resume a run; train_help: the texts of `companion train --help`
writer         generates text with a model, its tokenizer and its generation settings
"""
