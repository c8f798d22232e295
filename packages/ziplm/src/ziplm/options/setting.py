"""The setting in which models are measured: device, engine, regime and the shape of the inputs."""

from collections import Counter
from dataclasses import dataclass

from ziplm.errors import UsageError
from ziplm.options.kinds import Clock, Dtype, Engine, Quantize, Regime

THROUGHPUT_LENGTH = 128
FILE_ENGINES = ("onnxruntime", "openvino")
"""Engines that run exported files."""


@dataclass(frozen=True)
class Setting:
    """Where models are measured, and on which inputs.

    Attributes:
        batch_size: inputs per batch; 0 means 8 for throughput, 1 for latency and generate.
        lengths: lengths of the inputs in tokens, ascending; of the prompts, for generate. Throughput has one,
            128 if none is given. For latency and generate, () stands for defaults that fit the model.
        threads: threads of torch; None keeps torch's own number.
        device: device such as "cpu" or "cuda:0".
        dtype: data type of the models.
        engine: engine that runs the models. The dense model, to which speedups refer, runs in it as well.
        quantize: "int8" if the compressed models are quantised; the dense model never is.
        clock: "wall", "cpu" on machines with other load, or "auto" to choose before measuring.
        regime: "throughput" times one forward pass over a batch of full-length inputs; "latency"
            takes the mean over inputs of several lengths; "generate" takes the median, over prompts of
            several lengths, of generating the new tokens with a cache and top-k sampling.
        new_tokens: number of tokens to generate for each prompt.
    """

    batch_size: int = 0
    lengths: tuple[int, ...] = ()
    threads: int | None = None
    device: str = "cpu"
    dtype: Dtype = "float32"
    engine: Engine = "eager"
    quantize: Quantize | None = None
    clock: Clock = "wall"
    regime: Regime = "throughput"
    new_tokens: int = 64

    def __post_init__(self) -> None:
        lengths = self.lengths or ((THROUGHPUT_LENGTH,) if self.regime == "throughput" else ())
        object.__setattr__(self, "lengths", tuple(sorted(lengths)))
        if self.regime == "throughput" and len(lengths) > 1:
            raise UsageError(
                f"throughput is measured at one length, not at {len(lengths)}",
                "give one --input-length, or use --regime latency",
            )
        if not self.batch_size:
            object.__setattr__(self, "batch_size", 8 if self.regime == "throughput" else 1)
        self._check_engine()

    def _check_engine(self) -> None:
        if self.regime == "generate" and self.engine not in ("eager", "onnxruntime"):
            raise UsageError(
                f"generation is not measured with engine {self.engine}", "use engine eager or onnxruntime"
            )
        if self.quantize is not None and self.engine not in FILE_ENGINES:
            raise UsageError(
                f"engine {self.engine} does not run quantised models",
                "use --engine onnxruntime or openvino",
            )
        if self.engine in FILE_ENGINES and (self.dtype != "float32" or not self.device.startswith("cpu")):
            raise UsageError(
                f"engine {self.engine} runs models that are exported in float32, on the CPU",
                "leave out --dtype and --device; --quantize int8 makes the exported models smaller",
            )

    @property
    def runs_files(self) -> bool:
        """Whether models are exported to be run."""
        return self.engine in FILE_ENGINES

    @property
    def shares(self) -> dict[int, float]:
        """Weight of each input length in the time of a measurement, which is the weighted sum over lengths.

        Longer prompts take longer, in every model and branch. The median over prompts is therefore the time
        of the middle prompt, or the mean of the two middle ones.
        """
        counted = self.lengths
        if self.regime == "generate":
            middle = len(counted) // 2
            counted = counted[middle : middle + 1] if len(counted) % 2 else counted[middle - 1 : middle + 1]
        return {length: count / len(counted) for length, count in Counter(counted).items()}
