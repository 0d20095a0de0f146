"""What a lesson needs beside the model: figures, exercises and their checks. Needs the `lab` extra."""
