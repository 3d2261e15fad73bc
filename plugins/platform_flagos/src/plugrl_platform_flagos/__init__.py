"""FlagOS, a software stack on GPUs of several vendors: the platform and its engines."""
