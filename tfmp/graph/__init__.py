"""Typed view over FunctionDef and GraphDef; the only room that reads or writes graph protos."""
