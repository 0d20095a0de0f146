"""The course kit: notebooks from the exercises, problem sets to hand out, and what grades them."""
