"""The base layer: argument checks, atomic file operations, and facts about the machine.

annotations    check arguments against the annotations of a public function
arguments      check what annotations cannot express about arguments: ids, masks, padding
fields         fields of configurations
number_limits  numbers with limits
padding        pad rows of unequal lengths, and make one tensor of them
display        figures, counts and tables as text
atomic         files that are written completely or not at all
reading        read a text file, and reject anything else
user_files     small files that are stored for a user
lock           allow one process at a time
time_limit     limits on the time and memory of code that may never end
device         choose the device and the precision
precision      the precision of sums and exponentials
processor      this machine's processor, and the variables that choose its kernels
installed      which packages are installed
memory         how much memory this machine has
"""
