"""Weights in fewer bits, for faster decoding.

rounding        int8 and int4 values of a matrix, with their scales
matmul_kernels  matrix products in each format, using the fastest kernel for one row
weights         the formats: a copy of a model whose decode steps read fewer bytes
calibration     int4 values chosen with a calibration text (GPTQ)
"""
