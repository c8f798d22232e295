"""The values that options with a choice may have."""

from typing import Literal

Clock = Literal["auto", "wall", "cpu"]
Dtype = Literal["float32", "float16", "bfloat16"]
Engine = Literal["eager", "compile", "onnxruntime", "openvino"]
Loss = Literal["kl", "task"]
Method = Literal["default", "ziplm"]
Mode = Literal["oneshot", "finetune", "gradual"]
Precision = Literal["float32", "bf16", "fp16"]
Prior = Literal["auto", "factored", "scalar", "exact", "stream", "own"]
Quantize = Literal["int8"]
Regime = Literal["throughput", "latency", "generate"]
Search = Literal["direct", "evolution", "ziplm", "prior", "uniform"]
Selection = Literal["obs", "scores-once", "activation", "magnitude"]
