"""Files that come with messages or go with answers: fetched, kept, read to the model, and sent."""
