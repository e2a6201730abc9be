"""model.attention: the implementations of attention."""
