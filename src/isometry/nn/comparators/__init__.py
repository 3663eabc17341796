"""The recurrent networks that the paper compares with its own."""
