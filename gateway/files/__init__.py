"""Attachments of messages and files of answers: downloaded, stored, converted for the model, and sent."""
