"""What every floor stands on: values that are checked, files that are written whole, and the machine.

annotations    arguments against the annotations of a public function: its door
arguments      what annotations cannot say of what a caller hands in: ids, masks, padding
fields         fields of configurations
number_limits  numbers with limits
padding        rows of unequal lengths as one table
display        figures, counts and tables as text
atomic         files that are written whole or not at all
reading        a file, and nothing else in its place
user_files     what is kept of a reader
lock           one process at a time
time_limit     an end to code that may never come to one
device         which device and precision
precision      what sums and exponentials are computed in
processor      this machine's processor, and the variables that choose its kernels
installed      what is installed beside the course
memory         what this machine can hold
"""
