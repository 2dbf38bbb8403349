"""The HTTP server of the gateway, with its security checks."""
