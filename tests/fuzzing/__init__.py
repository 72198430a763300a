"""Random models, the checks that they must pass, and how those that fail become small."""
