"""What runs inside the allocation."""
