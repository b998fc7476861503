"""Readers of models: ONNX files, Hugging Face configurations, Python functions."""
