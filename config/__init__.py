"""TOML to validated, frozen settings, and back."""
