"""The embedded default: a small trained model, its prompts, and a judge of what it draws."""
