"""Declarations of classes: specifiers, expressions, annotations, and snapshots of static values."""
