"""The built-in loggers, one module each."""
