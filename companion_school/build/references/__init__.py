"""The references of the stages that the page does not hold: 1, 10, 11 and 12, as plain files that import each other."""
