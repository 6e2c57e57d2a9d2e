"""The decode loop: its state, its contracts with policies and models, and the step."""
