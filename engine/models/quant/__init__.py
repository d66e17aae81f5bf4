"""Weights stored in fewer bits than they compute in: told from the header, then kept so or made plain."""
