"""The references of the stages that the page does not hold: 1, 10 and 11, as plain files that import each other."""
