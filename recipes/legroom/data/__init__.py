"""Rows of token ids, and the batches that both recipes train on."""
