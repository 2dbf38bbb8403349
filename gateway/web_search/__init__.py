"""Web search: asks the search engine that the settings choose."""
