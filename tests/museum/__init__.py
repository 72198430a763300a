"""Candidates that are wrong in one way each, with the check that must tell, and right ones."""
