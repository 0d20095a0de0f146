"""Training in several processes: data parallel, sharded, and expert parallel.

parallel         the interface used by the rest of training, and its implementation for one process
data_parallel    dividing the work among several processes
expert_parallel  sending tokens to remote experts
launch           joining the processes that were started, and exiting if one of them is lost
"""
