"""The part of the HTTP API that runs the gateway itself, for owners and tokens with `admin`. The console uses it."""
