"""Code that is shared by the published checkpoints of all families.

family             a family of published models, and a preset
config_fields      tables with the policy for each field, and the rows that all families share
checkpoint_folder  reading the fields and the tensors of a folder
state_dict         converting published tensors to our names, and back
mxfp4              dequantizing 4-bit weights
rope               rotary positions and windows in the configurations of LLaMA and its relatives
catalogue          published models that have a short name here
fetching           downloads from the hub or from the package index
generation_config  special tokens and generation settings of a folder
"""
