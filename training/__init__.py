"""Training: data, tokenizers, maximum likelihood, GRPO with verifiable rewards, evaluation."""
