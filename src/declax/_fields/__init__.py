"""What a class declares: specifiers, expressions, annotations, and snapshots of static values."""
