"""A trained model on its way out: weights as safetensors or ONNX, a card, and a program that loads them.

It must not know how the model was trained: what is exported stands in one checkpoint.
"""

from sbpipe.export.write import Exported, export

__all__ = ["Exported", "export"]
