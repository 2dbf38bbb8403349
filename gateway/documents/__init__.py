"""Documents as text: PDF, DOCX, spreadsheets, EPUB and HTML, converted by a process of their own with limits."""
