"""PlugRL policies and value models from Hugging Face transformers."""
