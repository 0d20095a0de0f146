"""What every floor stands on: values that are checked, files that are written whole, and the machine.

boundary     what a caller hands in
fields       fields of configurations
quantities   numbers with limits
readable     figures, counts and tables as text
atomic       files that are written whole or not at all
reading      a file, and nothing else in its place
kept         what is kept of a reader
lock         one process at a time
device       which device and precision
installed    what is installed beside the course
room         what this machine can hold
"""
