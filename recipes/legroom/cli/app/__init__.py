"""The command `scripts/app.py`: will it fit? A page in the browser that answers with estimates."""
