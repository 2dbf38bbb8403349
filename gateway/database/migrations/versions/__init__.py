"""One migration for each version of the schema. A released one never changes."""
