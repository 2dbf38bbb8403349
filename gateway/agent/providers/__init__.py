"""Model providers: how each API is called, retried and translated."""
