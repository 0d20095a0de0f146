"""The commands of `companion`, a file each: its flags beside its deed.

main         all commands, from the command line to an exit code
parser       how flags are read and refused; help_format: how help is laid out
runs         what several commands ask for
"""
