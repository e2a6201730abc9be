"""One module per menu or section: what may be typed, what it means, when it is refused. No torch at the top."""
