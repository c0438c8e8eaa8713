"""Features of a frozen backbone: cached, learned from by classic learners, and what they say about labels."""
