"""Exhibits as files and as one page."""
