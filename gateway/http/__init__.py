"""The one HTTP server of the gateway: who may come in, and what every answer looks like."""
