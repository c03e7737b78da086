"""The tables of the pages, a module a kind of data; `write_tables.py` puts them in their places."""
