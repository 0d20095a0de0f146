"""Course kit: exercise notebooks, problem sets to hand out, and the code that grades them."""
