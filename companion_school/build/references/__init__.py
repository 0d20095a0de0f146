"""The references of the stages that are not on the page, as plain files that import each other."""
