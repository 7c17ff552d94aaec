"""Video world models: tokenizers, codecs and the sliding-window rollout."""
