"""Colours to a plan of edits that can be printed, and the plan to new protos: all of it or nothing."""
