"""Stand-in for the library of operators."""
