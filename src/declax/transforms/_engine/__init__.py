"""The engine that lifts a transform of JAX to functions of models."""
