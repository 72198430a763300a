"""What people compile: situations that a graph of torch.compile is only a part of."""
