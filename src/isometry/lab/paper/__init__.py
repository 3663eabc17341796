"""What the paper says: its networks, their training, its protocol and its tables."""
