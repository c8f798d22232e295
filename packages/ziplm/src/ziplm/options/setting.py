"""The setting in which models are measured: device, engine, regime and the shape of the inputs."""

from collections import Counter
from dataclasses import dataclass

from ziplm.errors import UsageError
from ziplm.options.kinds import Clock, Dtype, Engine, Regime


@dataclass(frozen=True)
class Setting:
    """Where models are measured, and on which inputs.

    Attributes:
        batch_size: inputs per batch; 0 means 8 for throughput, 1 for latency and generate.
        sequence_length: length of the inputs in tokens, for throughput.
        threads: threads of torch; None keeps torch's own number.
        device: device such as "cpu" or "cuda:0".
        dtype: data type of the models.
        engine: engine that runs the models.
        clock: "wall", "cpu" on machines with other load, or "auto" to choose before measuring.
        regime: "throughput" times one forward pass over a batch of full-length inputs; "latency"
            takes the mean over inputs of several lengths; "generate" takes the median, over prompts of
            several lengths, of generating the new tokens with a cache and top-k sampling.
        prompt_lengths: input lengths for latency and generate; () means 16, 64 and 128 where they fit.
        new_tokens: number of tokens to generate for each prompt.
    """

    batch_size: int = 0
    sequence_length: int = 128
    threads: int | None = None
    device: str = "cpu"
    dtype: Dtype = "float32"
    engine: Engine = "eager"
    clock: Clock = "wall"
    regime: Regime = "throughput"
    prompt_lengths: tuple[int, ...] = ()
    new_tokens: int = 64

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt_lengths", tuple(sorted(self.prompt_lengths)))
        if not self.batch_size:
            object.__setattr__(self, "batch_size", 8 if self.regime == "throughput" else 1)
        if self.regime == "generate" and self.engine != "eager":
            raise UsageError(f"generation is not measured with engine {self.engine}", "use engine eager")

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the inputs of one measurement, ascending."""
        return (self.sequence_length,) if self.regime == "throughput" else self.prompt_lengths

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
