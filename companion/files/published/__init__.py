"""What published checkpoints of all families have in common.

family             what a family is, and a preset
config_fields      what becomes of every field: tables, and the rows that all families share
checkpoint_folder  the fields and the tensors of a folder
state_dict         tensors on their way to our names
mxfp4              weights of four bits, made into plain numbers
rope               how LLaMA's kin write rotary positions and windows
catalogue          published models that have a short name here
fetching           getting them: from the hub, or from the package index
generation_config  what a folder says of writing
"""
