"""Networks in files; each format goes through the table of tensors."""
