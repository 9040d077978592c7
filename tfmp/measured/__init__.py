"""What was measured of the magnitudes in a program, as records without NumPy or TensorFlow: how they add up, are kept in files, and which rules follow."""
