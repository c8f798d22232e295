"""Make a fine-tuned BERT or GPT2 faster by a stated factor on a stated machine."""
