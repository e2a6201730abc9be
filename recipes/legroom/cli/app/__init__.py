"""The command `app`: will it fit? A page in the browser that answers with estimates."""
