"""What happened, for people: records of every conversion and their printed forms."""
