"""Training on several processes: data parallel, sharded, and experts spread over processes.

parallel         what the rest of training knows of it, and how it is for one process
data_parallel    how several share out the work
expert_parallel  tokens that travel to experts elsewhere
launch           starting them, and ending when another is gone
"""
