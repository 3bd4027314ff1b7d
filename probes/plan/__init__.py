"""What an engine would take and how fast it would be on a machine that is not here: arithmetic, no tensors."""
