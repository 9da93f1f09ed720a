"""The parts of first_hour.py. Each part is a generator of steps; a step runs programs with time limits and returns its results."""
