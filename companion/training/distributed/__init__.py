"""Training in several processes: data parallel, sharded, and expert parallel.

parallel         the interface used by the rest of training, and its implementation for one process
data_parallel    how several processes divide the work
expert_parallel  sending tokens to remote experts
launch           starting the processes, and ending when another one is gone
"""
