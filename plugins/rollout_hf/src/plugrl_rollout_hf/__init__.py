"""PlugRL rollout backend that generates in process with a Hugging Face model."""
