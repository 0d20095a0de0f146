"""Training on one device: the loss, the schedule, and the loop that can be stopped and continued at any moment."""
