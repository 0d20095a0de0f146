"""The commands of `companion`, one module each.

In each module, `parser()` returns the parser of the flags, and `run(flags)` does the work and returns the exit code.
Bad input raises a `ValueError` before anything is written. `main` then prints the message and exits with code 2.

main           all commands, from the command line to an exit code
parser         reads flags and reports bad ones; help_format: layout of the help
settings_file  `--config`; preflight: checks that run before anything is written
runs           finding a run, and reading a configuration, for several commands
train, tune    start or resume a run; train_help: what the help of train says besides its flags
writer         a model with its tokenizer and its generation settings
"""
