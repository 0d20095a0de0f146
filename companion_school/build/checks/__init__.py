"""The parts of each stage: a module for each, under the name of the stage's file."""
