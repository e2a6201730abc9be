"""One module per menu or section: what may be typed, what it means, when it is refused. Never imports torch at the top."""
