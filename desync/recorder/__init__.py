"""What runs inside each rank: records, and never harms."""
