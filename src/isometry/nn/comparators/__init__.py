"""The recurrent networks with which the paper compares its own."""
